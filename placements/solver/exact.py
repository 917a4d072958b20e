"""The exact solver: every partition of the roles is either excluded by its bound or solved by branch and bound.

HybridFlow walks all partitions and all splits of the devices (Sheng and others, 2024, arXiv 2409.19256, algorithm 1);
the number of splits grows as the number of devices to the power of the pools. Giving devices one by one to the block
that gains most is optimal for a sum of convex functions of one block each (Fox, 1966, Management Science 13:210-216),
but a step is a sum over spans of the slowest block, for which it is not. A branch and bound over the seconds of spans
(`branch_and_bound`) has as many dimensions as there are spans, however many blocks and devices there are, and proves
its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from math import isclose
from time import perf_counter

import numpy as np

from placements.solver.branch_and_bound import FAR, Cover, CoverPlans, solve_cover
from placements.solver.option_table import (
    Indices,
    ObjectiveArrays,
    OptionTable,
    block_of,
    objective_arrays,
    tables_of,
)
from placements.solver.partition_bounds import covers_of, narrowed_covers, opened_covers
from placements.solver.problem import Assignment, AssignmentProblem, Solution, assignment_of, rank

KEPT = 50
WITHIN = 0.1  # share of the best value: work that waits for spans here may overlap in the simulated step
EXAMINED_AT_MOST = 5_000_000
LISTED_AT_MOST = 300
TOLERANCE = 1e-12  # share of a value that the order of a sum may change
ROUNDING = 1e-9  # share of a value below which a choice is not better than another

Keys = tuple[float, float]
"""The keys by which choices are compared: the value, then the seconds if the objective is devices, else 0."""


def solve_exact(
    problem: AssignmentProblem, *, kept: int = KEPT, within: float = WITHIN, examined_at_most: int = EXAMINED_AT_MOST
) -> Solution | None:
    """Search all partitions for the best choice, and return it with a proof and other good choices; None if none fits.

    `best` is the first of all choices in the order of `rank`, up to a relative rounding error of 1e-12 in its value.
    `runners_up` contains the best choice of each other partition (with a class of device for each block) whose value is
    within a share `within` of the best, up to `kept` choices in all. If there are fewer, other choices of the same
    partitions fill the list. After `examined_at_most` boxes the search stops: `best` is then the best found, and
    `exact` is False unless the bound already proves it. The same problem always gives the same answer. Raises
    ValueError for options that `tables_of_block` refuses.
    """
    began = perf_counter()
    tables = tables_of(problem)
    search = _PartitionSearch(problem, tables, kept, within)
    bound = search.run(examined_at_most)
    if not search.solved:
        return None
    best, *runners_up = search.choices()
    proven = bound >= search.best * (1 - TOLERANCE)
    return Solution(
        best,
        bound=best.value if proven else bound,
        exact=proven,
        partitions=len(search.solved),
        examined=search.examined,
        runners_up=tuple(runners_up),
        seconds=perf_counter() - began,
    )


class _PartitionSearch:
    def __init__(self, problem: AssignmentProblem, tables: Sequence[OptionTable], kept: int, within: float) -> None:
        self.problem, self.tables, self.kept, self.within = problem, tables, kept, within
        self.solved: list[tuple[Indices, CoverPlans]] = []
        self.firsts: list[float] = []
        self.examined = 0
        self.best = self.most = FAR

    def run(self, examined_at_most: int) -> float:
        goal, capacity = objective_arrays(self.problem), self.problem.capacity
        listed = sorted(covers_of(self.tables, len(self.problem.roles)), key=len)
        single = sum(len(cover) == 1 for cover in listed)
        # One pool for all is solved by a look at its table, and is something to measure the rest against.
        open_first = min((self._solve(np.array(cover), examined_at_most) for cover in listed[:single]), default=FAR)
        if len(listed) == single:
            return open_first
        waiting, together = opened_covers(self.tables, listed[single:], capacity).best_first(goal), 2
        while True:
            # Bounds are worth more once a good plan is known, but cost as much as solving a few covers.
            waiting, together = narrowed_covers(self.tables, waiting, capacity, goal, self.most), 2 * together
            firsts = waiting.keys(goal)[0]
            for at, first in enumerate(firsts[:together]):
                if first > self.most:
                    return open_first
                if self.examined >= examined_at_most:
                    return min(open_first, float(first))
                open_first = min(open_first, self._solve(waiting.tables[at], examined_at_most - self.examined))
            if firsts.size <= together:
                return open_first
            waiting = waiting.some(np.arange(together, firsts.size))

    def _solve(self, cover: Indices, examined_at_most: int) -> float:
        cover = cover[cover < len(self.tables)]
        tables = Cover.of([self.tables[at] for at in cover], self.problem.capacity, objective_arrays(self.problem))
        solved = solve_cover(tables, self.most, examined_at_most=examined_at_most)
        self.examined += solved.examined
        if solved.plans is not None:
            self.solved.append((cover, solved.plans))
            self.firsts = nsmallest(self.kept, [*self.firsts, float(solved.plans.first[0])])
            self.best = self.firsts[0]
            last = self.firsts[-1] if len(self.firsts) == self.kept else FAR
            self.most = min(last, self.best * (1 + self.within)) * (1 + TOLERANCE)
        return solved.open_first

    def choices(self) -> list[Assignment]:
        limit = self.best * (1 + self.within) * (1 + TOLERANCE)
        chosen, by_rank = list[Assignment](), partial(rank, self.problem)
        for place in range(self.kept):
            near_best = [
                self._choice(cover, plans, place)
                for cover, plans in self.solved
                if plans.first[0] <= limit and plans.first.size > place and plans.first[place] <= limit
            ]
            chosen += sorted(near_best, key=by_rank)[: self.kept - len(chosen)]
            if not near_best or len(chosen) == self.kept:
                break
        return sorted(chosen, key=by_rank)

    def _choice(self, cover: Indices, plans: CoverPlans, plan: int) -> Assignment:
        tables = [self.tables[at] for at in cover]
        orders = plans.orders[:, plan]
        return assignment_of(
            self.problem,
            ((block_of(table.roles), table.options[int(order)]) for table, order in zip(tables, orders, strict=True)),
        )


@dataclass(frozen=True)
class RankedAssignments:
    """Choices in order of their keys; every choice that is not listed has keys of at least `open_keys`."""

    choices: tuple[Assignment, ...]
    open_keys: Keys


def keys_of(problem: AssignmentProblem, choice: Assignment) -> Keys:
    """Return the two keys that rank a choice: its value, then its seconds if the objective is devices, else 0."""
    return choice.value, choice.step_s if problem.objective == "devices" else 0.0


def is_below(keys: Keys, bound: Keys) -> bool:
    """Return whether `keys` are smaller than `bound`, compared by the first key and, if those are equal, by the second.

    Numbers that differ by less than a relative 1e-9 count as equal.

    >>> is_below((1.0, 0.0), (1.0 + 1e-12, 0.0)), is_below((2.0, 3.0), (2.0, 4.0)), is_below((1.0, 9.0), (2.0, 4.0))
    (False, True, True)
    """
    first, second = (keys, bound) if isclose(keys[0], bound[0], rel_tol=ROUNDING) else (keys[:1], bound[:1])
    return first[-1] < second[-1] * (1 - ROUNDING)


def assignments_below(problem: AssignmentProblem, below: Keys, *, at_most: int = LISTED_AT_MOST) -> RankedAssignments:
    """Return the choices whose keys are below `below` by more than a rounding error, in order of their keys.

    At most `at_most` choices are listed. Every other choice has keys of at least the result's `open_keys`, or keys that
    are not below `below`. Raises ValueError for options that `tables_of_block` refuses.
    """
    tables, goal = tables_of(problem), objective_arrays(problem)
    below = below[0] * (1 - ROUNDING) if problem.objective != "devices" else below[0], below[1] * (1 - ROUNDING)
    covers = list(covers_of(tables, len(problem.roles)))
    if not covers:
        return RankedAssignments((), (FAR, FAR))
    opened = opened_covers(tables, covers, problem.capacity).best_first(goal)
    narrowed = narrowed_covers(tables, opened, problem.capacity, goal, below[0])
    listed, open_keys = list[tuple[Keys, Sequence[OptionTable], Indices]](), (FAR, FAR)
    for cover in narrowed.tables:
        of_cover = [tables[at] for at in cover if at < len(tables)]
        keys, picks, left_out = _joined_options(of_cover, problem.capacity, goal, below, at_most)
        open_keys = min(open_keys, left_out)
        listed += [(key, of_cover, columns) for key, columns in zip(keys, picks.T, strict=True)]
        if len(listed) > at_most:  # later choices must be as good as the last of these
            listed.sort(key=lambda choice: choice[0])
            below = open_keys = min(open_keys, listed[at_most][0])
            listed = listed[:at_most]
    choices = list[Assignment]()
    for _, cut, columns in listed:
        picked = ((block_of(table.roles), table.option(int(at))) for table, at in zip(cut, columns, strict=True))
        choices.append(assignment_of(problem, picked))
    choices.sort(key=lambda choice: (keys_of(problem, choice), rank(problem, choice)))
    return RankedAssignments(tuple(choices), open_keys)


def _joined_options(
    tables: Sequence[OptionTable], capacity: Sequence[int], goal: ObjectiveArrays, below: Keys, at_most: int
) -> tuple[list[Keys], Indices, Keys]:
    """Return the keys and columns [block, choice] of choices of one option per block, and the least keys left out."""
    times_s, used, cost = np.zeros((len(tables[0].times_s), 1)), np.zeros((len(capacity), 1)), np.zeros(1)
    first = second = np.zeros(1)
    picks, open_keys = np.zeros((0, 1), dtype=np.int64), (FAR, FAR)
    for place, table in enumerate(tables):
        row, column = np.divmod(np.arange(cost.size * table.devices.size), table.devices.size)
        times_s = np.maximum(times_s[:, row], table.times_s[:, column])
        used, cost = used[:, row], cost[row] + table.cost[column]
        used[table.device_class] += table.devices[column]
        rest, least_s, devices, least_cost = tables[place + 1 :], times_s, used.sum(0), cost
        for later in rest:
            least_s = np.maximum(least_s, later.times_s.min(1)[:, None])
            devices, least_cost = devices + later.devices.min(), least_cost + later.cost.min()
        first, second = goal.keys(goal.step_s(least_s), devices, least_cost)
        second = second if goal.objective == "devices" else np.zeros_like(first)
        fewest = [sum(later.devices[0] for later in rest if later.device_class == of) for of in range(len(capacity))]
        fits = (used <= np.array(capacity, dtype=np.float64)[:, None] - np.array(fewest)[:, None]).all(0)
        chosen = np.flatnonzero(fits & ((first < below[0]) | ((first == below[0]) & (second < below[1]))))
        if chosen.size > at_most:
            chosen = chosen[np.lexsort((second[chosen], first[chosen]))]
            open_keys = min(open_keys, (float(first[chosen[at_most]]), float(second[chosen[at_most]])))
            chosen = chosen[:at_most]
        picks = np.concatenate([picks[:, row[chosen]], column[None, chosen]])
        times_s, used, cost = times_s[:, chosen], used[:, chosen], cost[chosen]
        first, second = first[chosen], second[chosen]
    return list(zip(first.tolist(), second.tolist(), strict=True)), picks, open_keys
