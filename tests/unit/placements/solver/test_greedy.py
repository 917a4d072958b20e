"""The greedy walk: never better than the best, bounded honestly, and where it is known to go wrong."""

from __future__ import annotations

from statistics import median, quantiles

import pytest

from benchmarks.search import roofline
from placements.solver.exact import solve_exact
from placements.solver.greedy import BOUNDED_ROLES, allocate, solve_greedy
from placements.solver.option_table import JoinedTables, block_of, objective_arrays, tables_of, tables_of_block
from placements.solver.partition_bounds import count_covers, covers_of, fewest_devices, least_value
from placements.solver.problem import AssignmentProblem, Block, Objective, Option
from placements.solver.solve import solve
from tests.looped import looped
from tests.placement.search_oracles import blocks_of, random_problem, table_problem

OBJECTIVES: tuple[Objective, ...] = ("step", "devices", "cost")


@looped("first", [0], slow=[100, 200])
def test_its_value_and_its_bound_hold_the_best_between_them(first: int) -> None:
    missed = 0
    for seed in range(first, first + 100):
        problem = random_problem(seed, roles_at_most=5)
        exact, greedy = solve_exact(problem), solve_greedy(problem)
        if exact is None or greedy is None:
            missed += exact is not None
            assert greedy is None
            continue
        assert greedy.value >= exact.value * (1 - 1e-9)
        assert greedy.bound is not None and greedy.bound <= exact.value * (1 + 1e-9)
        assert not greedy.exact or greedy.value <= exact.value * (1 + 1e-9)
        assert greedy.gap is not None and 0.0 <= greedy.gap <= 1.0
    assert missed <= 1, "what fits is nearly always found, where there are two classes of device"


@pytest.mark.slow(group="planner")
@looped("objective, tokens", [("step", 2)], slow=[("step", 1), ("cost", 1)])
def test_on_rooflines_it_is_near_the_best_and_knows_it(objective: Objective, tokens: int) -> None:
    above, stated = list[float](), list[float]()
    for seed in range(12):
        problem = roofline(128, seed, objective=objective, tokens=tokens)
        exact, greedy = solve_exact(problem), solve_greedy(problem)
        assert exact is not None and greedy is not None and greedy.gap is not None
        above.append(1 - exact.value / greedy.value)
        stated.append(greedy.gap)
    assert median(above) < 0.02
    assert quantiles(above, n=10)[-1] < 0.10
    assert max(stated) < 0.15
    assert all(ours >= real - 1e-9 for ours, real in zip(stated, above, strict=True))


def test_marginal_gains_are_best_for_one_stage_of_convex_seconds() -> None:
    """One span and one pool each: the largest of work / devices, where giving one more to the slowest is best."""
    works = (12.0, 7.0, 5.0)
    table = {Block({role}): [Option((n,), (work / n,)) for n in range(1, 13)] for role, work in enumerate(works)}
    problem = table_problem(table, (12,))
    exact, greedy = solve_exact(problem), solve_greedy(problem)
    assert exact is not None and greedy is not None
    assert exact.value == greedy.value == 7.0 / 3


def counterexample() -> AssignmentProblem:
    """Return what marginal gains get wrong: more devices for `a` leave too few for `b` and `c` together.

    Speeding `a` up by 3 s takes both devices that are left, as does speeding up `b` and `c` by 4 s: they hold up the
    same span, so that neither alone gains anything.
    """
    table = {
        Block({0}): [Option((1,), (10.0, 0.0)), Option((3,), (7.0, 0.0))],
        Block({1}): [Option((1,), (0.0, 9.0)), Option((2,), (0.0, 5.0))],
        Block({2}): [Option((1,), (0.0, 9.0)), Option((2,), (0.0, 5.0))],
    }
    return table_problem(table, (5,))


def test_marginal_gains_are_not_best_for_a_sum_over_stages_of_the_slowest() -> None:
    exact, greedy = solve_exact(counterexample()), solve_greedy(counterexample())
    assert exact is not None and greedy is not None
    assert (exact.value, greedy.value) == (15.0, 16.0)


def test_a_partition_that_is_solved_after_the_walk_is_at_its_best() -> None:
    settled = solve_greedy(counterexample(), settled=1)
    assert settled is not None
    assert settled.value == 15.0


def test_two_blocks_that_are_equally_slow_do_not_stop_it() -> None:
    """Neither of two equal blocks shortens the step alone, and both get their devices all the same."""
    tables = {block: [Option((n,), (24.0 / n,)) for n in (1, 2, 3, 4)] for block in blocks_of(2) if len(block) == 1}
    problem = table_problem(tables, (8,))
    blocks = [JoinedTables.of(tuple(tables_of_block(problem, block_of(role))), problem.capacity) for role in (1, 2)]
    assert allocate(blocks, problem.capacity, objective_arrays(problem)) == [3, 3]


def test_it_finds_what_fits_where_roles_fit_neither_together_nor_apart() -> None:
    pairs = {Block({0, 1}): 2, Block({2, 3}): 2, Block({0}): 9, Block({1, 2, 3}): 9}
    table = {block: [Option((devices,), (1.0,))] for block, devices in pairs.items()}
    answer = solve_greedy(table_problem(table, (4,)))
    assert answer is not None
    assert [block for block, _ in answer.blocks] == [Block({0, 1}), Block({2, 3})]


def test_pins_hold_on_the_walk() -> None:
    for seed in range(20):
        problem = roofline(64, seed, roles=4, together=(Block({0, 1}),), apart=(Block({1, 2}),))
        answer = solve_greedy(problem)
        assert answer is not None
        choices = (answer.best, *answer.runners_up)
        assert all(problem.allows(block) for choice in choices for block, _ in choice.blocks)


def thirteen(devices: int = 32) -> AssignmentProblem:
    def options(block: Block) -> list[Option]:
        work = sum(1.0 + role % 3 for role in block)
        return [Option((n,), (work / n, float(len(block)))) for n in (1, 2, 4, 8, 16, 32)]

    return AssignmentProblem(tuple(f"judge{role}" for role in range(BOUNDED_ROLES + 1)), (devices,), options)


def test_of_more_roles_than_can_be_bounded_the_gap_is_unknown_and_not_nothing() -> None:
    answer = solve(thirteen())
    assert answer is not None
    assert (answer.bound, answer.gap, answer.exact) == (None, None, False)


def test_auto_is_exact_where_that_can_be_afforded() -> None:
    problem = roofline(64, 0, roles=5)
    assert solve(problem) == solve_exact(problem)
    assert solve(problem, "greedy") == solve_greedy(problem)
    wide = AssignmentProblem(tuple("abcdefghijk"), (16,), lambda block: [Option((len(block),), (1.0 / len(block),))])
    walked = solve(wide)
    assert walked is not None and walked.bound is not None and not walked.bound > walked.value


@looped("roles, classes, covers", [(3, 1, 5), (4, 1, 15), (5, 1, 52), (10, 1, 115_975), (5, 2, 454)])
def test_partitions_are_counted_as_bell_did(roles: int, classes: int, covers: int) -> None:
    assert count_covers(AssignmentProblem(tuple(map(str, range(roles))), (8,) * classes, lambda _: ())) == covers


def test_covers_are_counted_as_they_are_listed() -> None:
    pinned = AssignmentProblem(
        tuple("abcdef"),
        (4,),
        lambda _: [Option((1,), (1.0,))],
        together=(Block({0, 3}),),
        apart=(Block({1, 2}),),
    )
    covers = list(covers_of(tables_of(pinned), 6))
    assert len(set(covers)) == len(covers) == count_covers(pinned)


@pytest.mark.slow(group="planner")
def test_the_bound_over_all_partitions_is_a_bound_and_close_on_rooflines() -> None:
    far = list[float]()
    for seed in range(6):
        for objective in OBJECTIVES:
            problem = roofline(128, seed, objective=objective)
            answer = solve_exact(problem)
            assert answer is not None
            bound = least_value(tables_of(problem), 5, problem.capacity, objective_arrays(problem), answer.value * 1.3)
            assert bound <= answer.value * (1 + 1e-9)
            far.append(1 - bound / answer.value)
    assert median(far) < 0.05


def test_the_fewest_devices_are_those_of_the_objective() -> None:
    for seed in range(6):
        problem = roofline(128, seed, objective="devices")
        answer, tables = solve_exact(problem), tables_of(problem)
        assert answer is not None
        (partition,) = fewest_devices(tables, 5, problem.capacity)
        least = {each.roles: each.devices[0] for each in tables}
        assert sum(least[block] for block in partition) == answer.value
