"""The order of finished groups: whatever finishes when, each group is trained on once, and none too late."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowgraph.errors import DataError, LawError
from flowgraph.runtime.group_order import GroupName, GroupOrder

Steps = list[tuple[GroupName, ...]]
Pick = Callable[[Sequence[GroupName]], GroupName]


def run(order: GroupOrder, steps: int, size: int, depth: int, pick: Pick, at_once: Callable[[], int]) -> Steps:
    """Run steps whose groups finish in the order of `pick`, a few (`at_once`) before each look at what has finished."""
    taken = Steps()
    for step in range(-depth, steps):
        if step + depth < steps:
            order.start(step + depth, [*range(step, step + size)])  # a prompt comes again in later steps
        while step >= 0 and len(taken) == step:
            for _ in range(min(at_once(), len(order.under_way))):
                order.finish(pick(order.under_way))
            groups = order.take(step)
            if groups is not None:
                taken.append(groups)
            else:
                assert order.under_way, "a step that waits has something to wait for"
                order.finish(pick(order.under_way))
    return taken


runs = st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.integers(0, 4), st.integers(0, 10**6))


@settings(max_examples=150, deadline=None)
@given(runs)
def test_each_group_is_taken_once_and_none_is_late_whatever_finishes_when(case: tuple[int, int, int, int, int]) -> None:
    steps, size, depth, behind, seed = case
    chance = random.Random(seed)
    order = GroupOrder(behind)
    taken = run(order, steps, size, depth, chance.choice, lambda: chance.randrange(3 * size))
    every = [group for groups in taken for group in groups]
    assert all(len(groups) == size for groups in taken)
    assert len(every) == len({*every}) == steps * size, "each once, and nothing is left"
    assert not order.waiting
    for step, groups in enumerate(taken):
        assert all(step - behind <= group.step <= step + depth for group in groups)
        assert [*groups] == sorted(groups, key=lambda group: group.step), "the oldest first"


@settings(max_examples=60, deadline=None)
@given(runs)
def test_a_plan_of_what_was_taken_repeats_it_in_any_order_of_finishing(case: tuple[int, int, int, int, int]) -> None:
    steps, size, depth, behind, seed = case
    chance = random.Random(seed)
    first = run(GroupOrder(behind), steps, size, depth, chance.choice, lambda: chance.randrange(3 * size))
    known = dict(enumerate(first[: chance.randrange(steps + 1)]))
    again = run(GroupOrder(behind, known), steps, size, depth, chance.choice, lambda: 0)
    assert again[: len(known)] == first[: len(known)]
    assert {group for groups in again for group in groups} == {group for groups in first for group in groups}


def test_a_group_that_never_comes_first_is_waited_for_in_its_last_step() -> None:
    order = GroupOrder(behind=3)

    def all_but_one(groups: Sequence[GroupName]) -> GroupName:
        return next((group for group in groups if group != GroupName(0, -2)), groups[0])

    taken = run(order, steps=8, size=2, depth=2, pick=all_but_one, at_once=lambda: 1)
    assert [step for step, groups in enumerate(taken) if GroupName(0, -2) in groups] == [3]


def test_without_steps_to_spare_each_step_takes_its_own_groups() -> None:
    taken = run(GroupOrder(behind=0), steps=5, size=3, depth=2, pick=lambda groups: groups[-1], at_once=lambda: 2)
    assert [{group.step for group in groups} for groups in taken] == [{step} for step in range(5)]


def test_what_no_run_can_do_is_refused() -> None:
    order = GroupOrder(behind=1)
    order.start(0, [1, 2])
    with pytest.raises(LawError, match="equally many, different prompts; step 1: 3 prompts, after 2"):
        order.start(1, [1, 2, 3])
    with pytest.raises(LawError, match="step 1: a prompt twice"):
        order.start(1, [4, 4])
    order.finish(GroupName(0, 1))
    for group in (GroupName(0, 1), GroupName(1, 1)):
        with pytest.raises(LawError, match=f"the group of prompt 1 of step {group.step} has finished, which is not"):
            order.finish(group)


def test_a_plan_that_cannot_be_of_this_run_is_refused_with_what_is_wrong() -> None:
    def step_1(*groups: tuple[int, int]) -> None:
        order = GroupOrder(1, {1: [GroupName(*group) for group in groups]}, "groups.jsonl")
        order.start(0, [1, 2])
        order.start(1, [1, 2])
        for group in order.under_way[1:]:
            order.finish(group)
        assert order.take(0) == ((0, 2), (1, 1))
        order.finish(GroupName(0, 1))
        order.take(1)

    step_1((0, 1), (1, 2))
    for groups, why in (
        ([(0, 1)], "step 1 names 1 groups, and a step trains on 2"),
        ([(0, 1), (0, 1)], "step 1 names 1 groups"),
        ([(0, 1), (1, 1)], "step 1 names prompt 1 of step 1, which was not under way"),
    ):
        with pytest.raises(DataError, match=f"groups.jsonl: {why}"):
            step_1(*groups)
    order = GroupOrder(1, {1: [GroupName(1, 1), GroupName(1, 2)]})
    order.restore([GroupName(0, 2), GroupName(1, 1), GroupName(1, 2)], size=2)
    with pytest.raises(DataError, match="step 1 leaves out prompt 2 of step 0, for which it is the last"):
        order.take(1)


def test_groups_that_had_finished_are_taken_before_newer_ones() -> None:
    order = GroupOrder(behind=2)
    order.restore([GroupName(3, 7), GroupName(4, 1)], size=2)
    order.start(5, [7, 8])
    order.finish(GroupName(5, 8))
    assert order.size == 2
    assert order.take(4) == ((3, 7), (4, 1))
    assert order.waiting == ((5, 7), (5, 8))
    assert order.under_way == ((5, 7),)
