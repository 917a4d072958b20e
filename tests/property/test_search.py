"""Laws of the search that hold for any problem: devices, names, scale, lag, one pool, one role more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import product
from math import isclose
from random import Random

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from placements.solver.exact import solve_exact
from placements.solver.greedy import solve_greedy
from placements.solver.problem import AssignmentProblem, Block, Option, Solution, step_seconds
from tests.placement.search_oracles import OBJECTIVES, random_problem

problems = st.integers(0, 10**6).map(lambda seed: random_problem(seed, roles_at_most=5))


def additive_problem(seed: int) -> AssignmentProblem:
    """Make options of a block as sums of those of its roles: a role more makes no block faster or smaller."""
    rng = np.random.default_rng(seed)
    roles, spans, price = int(rng.integers(2, 5)), int(rng.integers(1, 4)), int(rng.integers(1, 5))

    def of_role(devices: int) -> Option:
        return Option((devices,), tuple(map(float, rng.integers(0, 9, size=spans) / devices)), cost=price * devices)

    rows = [[of_role(1), *(of_role(int(rng.integers(1, 6))) for _ in range(2))] for _ in range(roles)]

    def options(block: Block) -> Sequence[Option]:
        return [reduce(add, each) for each in product(*(rows[role] for role in sorted(block)))]

    capacity = (int(rng.integers(roles, 12)),)
    names, objective = tuple(f"role{role}" for role in range(roles)), OBJECTIVES[int(rng.integers(len(OBJECTIVES)))]
    return AssignmentProblem(names, capacity, options, tokens=int(rng.integers(1, 4)), objective=objective)


def add(one: Option, other: Option) -> Option:
    """Run two by turns on one pool, large enough for both."""
    spans_s = tuple(a + b for a, b in zip(one.spans_s, other.spans_s, strict=True))
    return Option((one.devices[0] + other.devices[0],), spans_s, one.cost + other.cost)


def solved(problem: AssignmentProblem) -> Solution:
    answer = solve_exact(problem)
    assume(answer is not None)
    assert answer is not None
    return answer


@given(problems, st.lists(st.integers(0, 8), min_size=2, max_size=2))
def test_more_devices_never_hurt(problem: AssignmentProblem, more: list[int]) -> None:
    answer = solved(problem)
    larger = tuple(count + extra for count, extra in zip(problem.capacity, more, strict=False))
    assert solved(replace(problem, capacity=larger)).value <= answer.value * (1 + 1e-12)


@given(problems, st.randoms(use_true_random=False))
def test_renaming_roles_changes_nothing_but_names(problem: AssignmentProblem, random: Random) -> None:
    answer = solved(problem)
    new = list(range(len(problem.roles)))
    random.shuffle(new)
    old = {number: role for role, number in enumerate(new)}
    renamed = replace(
        problem,
        options=lambda block: problem.options(Block(old[each] for each in block)),
        together=tuple(Block(new[each] for each in pin) for pin in problem.together),
        apart=tuple(Block(new[each] for each in pin) for pin in problem.apart),
    )
    again = solved(renamed)
    assert isclose(again.value, answer.value, rel_tol=1e-12)
    assert len(again.blocks) == len(answer.blocks)
    assert again.best.devices == answer.best.devices


@given(problems, st.sampled_from([0.001, 0.3, 7.0, 1e4]))
def test_scaled_seconds_scale_the_step(problem: AssignmentProblem, factor: float) -> None:
    answer = solved(problem)

    def options(block: Block) -> list[Option]:
        return [replace(each, spans_s=tuple(factor * s for s in each.spans_s)) for each in problem.options(block)]

    scaled = solved(replace(problem, options=options))
    expected = 1.0 if problem.objective == "devices" else factor
    assert isclose(scaled.value, expected * answer.value, rel_tol=1e-9)
    assert isclose(scaled.best.step_s, factor * answer.best.step_s, rel_tol=1e-9) or problem.objective != "devices"


@given(problems)
def test_with_ever_more_lag_the_step_is_the_busiest_pool(problem: AssignmentProblem) -> None:
    answer = solved(replace(problem, tokens=10**9, objective="step"))
    assert isclose(answer.value, max(option.busy_s for _, option in answer.blocks), abs_tol=1e-6)
    least = min(solved(replace(problem, tokens=tokens, objective="step")).value for tokens in (1, 2, 64))
    assert answer.value <= least * (1 + 1e-12)


@given(problems)
def test_one_pool_on_policy_takes_the_sum_of_everything(problem: AssignmentProblem) -> None:
    everyone = (Block(range(len(problem.roles))),)
    answer = solved(replace(problem, tokens=1, objective="step", together=everyone, apart=()))
    ((_, option),) = answer.blocks
    fits = [
        each
        for each in problem.options(everyone[0])
        if each.devices[each.device_class] <= problem.capacity[each.device_class]
    ]
    assert isclose(answer.value, option.busy_s) and isclose(answer.value, min(each.busy_s for each in fits))


@given(st.integers(0, 10**6).map(additive_problem))
def test_one_role_more_never_lowers_the_value(problem: AssignmentProblem) -> None:
    answer = solved(problem)
    fewer = replace(problem, roles=problem.roles[:-1])
    assert solved(fewer).value <= answer.value * (1 + 1e-9)


@given(problems)
def test_a_pin_never_lowers_the_value(problem: AssignmentProblem) -> None:
    answer = solved(problem)
    assert solved(replace(problem, together=(), apart=())).value <= answer.value * (1 + 1e-12)


@given(problems)
def test_pinning_the_blocks_of_the_answer_gives_it_again(problem: AssignmentProblem) -> None:
    answer = solved(problem)
    pinned = tuple(block for block, _ in answer.blocks)
    firsts = Block(min(block) for block in pinned)
    again = solved(replace(problem, together=pinned, apart=(firsts,)))
    assert again.blocks == answer.blocks or isclose(again.value, answer.value, rel_tol=1e-12)


@given(problems)
def test_every_answer_is_worth_what_it_says(problem: AssignmentProblem) -> None:
    for answer in (solve_exact(problem), solve_greedy(problem)):
        for choice in (answer.best, *answer.runners_up) if answer is not None else ():
            step_s = step_seconds((option for _, option in choice.blocks), problem.tokens)
            money = step_s * sum(option.cost for _, option in choice.blocks)
            devices = sum(sum(option.devices) for _, option in choice.blocks)
            assert isclose(choice.value, {"step": step_s, "devices": devices, "cost": money}[problem.objective])
