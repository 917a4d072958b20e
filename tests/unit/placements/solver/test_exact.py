"""The exact search against every choice, and against a set-partition program; what it promises, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import pytest

from placements.solver.exact import WITHIN, assignments_below, is_below, keys_of, solve_exact
from placements.solver.problem import Assignment, AssignmentProblem, Block, Option, Solution, assignment_of
from tests.looped import looped
from tests.placement.search_oracles import (
    Kind,
    Least,
    blocks_of,
    by_milp,
    every_choice,
    partitions,
    program_problem,
    random_problem,
    table_problem,
)

CLOSE = 1e-9


def close(value: float, other: float) -> bool:
    return abs(value - other) <= CLOSE * max(1.0, abs(other))


def is_choice(problem: AssignmentProblem, choice: Assignment) -> bool:
    """Return whether blocks hold each role once, are allowed, run as an option of theirs, fit."""
    held = sorted(role for block, _ in choice.blocks for role in block)
    offered = all(problem.allows(block) and option in problem.options(block) for block, option in choice.blocks)
    used = [sum(each) for each in zip(*(option.devices for _, option in choice.blocks), strict=True)]
    fits = all(count <= most for count, most in zip(used, problem.capacity, strict=True))
    return held == [*range(len(problem.roles))] and offered and fits and choice == assignment_of(problem, choice.blocks)


def kind_of(choice: Assignment) -> Kind:
    return Kind(frozenset((block, option.device_class) for block, option in choice.blocks))


def check_against(problem: AssignmentProblem, every: dict[Kind, Least], kept: int = 10) -> None:
    answer = solve_exact(problem, kept=kept)
    if not every:
        assert answer is None
        return
    assert answer is not None
    least = min(each.value for each in every.values())
    assert close(answer.value, least)
    assert answer.exact and answer.gap == 0.0 and answer.bound == answer.value
    assert all(is_choice(problem, each) for each in (answer.best, *answer.runners_up))
    near = sorted(each.value for each in every.values() if each.value <= least * (1 + WITHIN))
    check_runners_up(answer, near[:kept], kept)


def check_runners_up(answer: Solution, near: Sequence[float], kept: int) -> None:
    """The best of each kind that is near is there: as many as are kept, each at its best."""
    given = [answer.best, *answer.runners_up]
    assert [each.value for each in given] == sorted(each.value for each in given)
    assert len(given) <= kept and len(set(given)) == len(given)
    best = dict[Kind, float]()
    for each in given:
        best.setdefault(kind_of(each), each.value)
    assert all(map(close, sorted(best.values()), near)) and len(best) >= len(near)


@looped("first", [0], slow=range(100, 600, 100))
def test_it_is_the_best_of_every_choice_on_a_hundred_random_problems(first: int) -> None:
    fits = 0
    for seed in range(first, first + 100):
        problem = random_problem(seed)
        every = every_choice(problem)
        check_against(problem, every)
        fits += bool(every)
    assert 50 < fits < 100, "problems that fit, and problems that do not"


def test_of_choices_that_are_equal_it_takes_the_fewest_pools_then_the_fewest_devices() -> None:
    """Seconds are small whole numbers, so that many choices are equal to the last digit."""
    ties = 0
    for seed in range(200):
        problem = random_problem(seed, roles_at_most=4)
        whole = {block: [rounded(each) for each in problem.options(block)] for block in blocks_of(len(problem.roles))}
        problem = replace(problem, options=whole.__getitem__, tokens=1, objective="step")
        every = every_choice(problem)
        answer = solve_exact(problem)
        if answer is None:
            assert not every
            continue
        best = [(len(kind.blocks), each.devices) for kind, each in every.items() if each.value == answer.value]
        assert (len(answer.blocks), answer.best.devices) == min(best)
        ties += len(best) > 1
    assert ties > 30


def rounded(option: Option) -> Option:
    return replace(option, spans_s=tuple(float(round(each)) for each in option.spans_s))


def check_program(seed: int) -> None:
    problem = program_problem(seed)
    answer, value = solve_exact(problem), by_milp(problem)
    assert (answer is None) == (value is None)
    assert answer is None or value is None or (answer.exact and abs(answer.value - value) < 1e-6 * value)


@pytest.mark.slow(group="planner")
@looped("seed", [0, 7], slow=range(1, 108))
def test_it_agrees_with_a_set_partition_program_on_seven_and_eight_roles(seed: int) -> None:
    check_program(seed)


def test_each_block_that_the_pins_allow_is_asked_for_its_options_once() -> None:
    asked = Counter[Block]()

    def options(block: Block) -> list[Option]:
        asked[block] += 1
        return [Option((len(block),), (1.0,))]

    problem = AssignmentProblem(("a", "b", "c"), (8,), options, together=(Block({0, 1}),))
    assert solve_exact(problem) is not None
    assert asked == {Block({0, 1}): 1, Block({2}): 1, Block({0, 1, 2}): 1}


def test_nothing_that_fits_is_no_answer() -> None:
    assert solve_exact(AssignmentProblem(("a", "b"), (2,), lambda _: ())) is None
    assert solve_exact(AssignmentProblem(("a", "b"), (2,), lambda block: [Option((3,), (1.0,))])) is None
    alone = {Block({0}): [Option((2,), (1.0,))], Block({1}): [Option((1,), (1.0,))]}
    assert solve_exact(table_problem(alone, (2,))) is None
    assert solve_exact(table_problem(alone, (3,))) is not None


def test_an_answer_that_was_cut_short_says_how_far_from_the_best_it_may_be() -> None:
    cut = 0
    for seed in range(40):
        problem = random_problem(seed, roles_at_most=5)
        proven, answer = solve_exact(problem), solve_exact(problem, examined_at_most=1)
        if answer is None or proven is None:
            continue
        assert answer.bound is not None and answer.bound <= proven.value * (1 + CLOSE)
        assert proven.value <= answer.value * (1 + CLOSE)
        assert not answer.exact or close(answer.value, proven.value)
        cut += not answer.exact
    assert cut > 5


def test_the_same_problem_gives_the_same_answer() -> None:
    problem = program_problem(3)
    assert solve_exact(problem) == solve_exact(problem)


def test_what_an_option_was_made_from_comes_back_with_it() -> None:
    table = {Block({0}): [Option((1,), (1.0,), key=("tensor", 2))]}
    answer = solve_exact(table_problem(table, (1,)))
    assert answer is not None
    assert [option.key for _, option in answer.blocks] == [("tensor", 2)]


def test_many_stages_and_rows_of_no_seconds_are_no_trouble() -> None:
    table = {block: [Option((n,), (0.0,) * 9 + (4.0 / n,)) for n in (1, 2, 4)] for block in blocks_of(3)}
    answer = solve_exact(table_problem(table, (4,)))
    assert answer is not None
    assert (answer.value, len(answer.blocks), answer.best.devices) == (1.0, 1, 4)


def choices_of(problem: AssignmentProblem) -> Iterator[Assignment]:
    """Return every choice that fits, one by one."""
    for blocks in partitions(range(len(problem.roles))):
        if all(map(problem.allows, blocks)):
            for taken in product(*map(problem.options, blocks)):
                used = [sum(each) for each in zip(*(option.devices for option in taken), strict=True)]
                if all(count <= most for count, most in zip(used, problem.capacity, strict=True)):
                    yield assignment_of(problem, zip(blocks, taken, strict=True))


@looped("seed", range(60))
def test_choices_below_some_keys_are_all_that_there_are_in_order(seed: int) -> None:
    """Up to the tenth best of all, listed whole, and up to four: the others take no less than is said."""
    problem = random_problem(seed, roles_at_most=4)
    every = sorted({keys_of(problem, each): each for each in choices_of(problem)})
    below = every[min(10, len(every) - 1)] if every else (1.0, 0.0)
    wanted = {each.blocks for each in choices_of(problem) if is_below(keys_of(problem, each), below)}
    listed = assignments_below(problem, below, at_most=10**6)
    assert {each.blocks for each in listed.choices} == wanted
    keys = [keys_of(problem, each) for each in listed.choices]
    assert keys == sorted(keys) and listed.open_keys >= below
    few = assignments_below(problem, below, at_most=4)
    assert len(few.choices) <= 4
    left = [keys_of(problem, each) for each in listed.choices if each.blocks not in {own.blocks for own in few.choices}]
    assert all(not is_below(each, few.open_keys) for each in left)
