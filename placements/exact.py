"""The best placement, proven: every partition of the roles, bounded away or solved by boxes of stage seconds.

HybridFlow walks all partitions and all splits of the devices (Sheng and others, 2024, arXiv 2409.19256, algorithm 1);
the splits grow with the devices to the power of the pools. Giving devices one by one to whoever gains most is best for
a sum of convex functions of one block each (Fox, 1966, Management Science 13:210-216), but a step is a sum over stages
of the slowest block, for which it is not. A branch and bound over the seconds of each stage (`boxes`) has as many
dimensions as there are stages, whatever the blocks and the devices, and proves its answer.
"""

from __future__ import annotations

from heapq import nsmallest
from time import perf_counter

import numpy as np

from placements.bounds import covers_of, narrowed_covers, opened_covers
from placements.boxes import FAR, Cover, Plans, solve_cover
from placements.problem import Answer, Choice, Problem, choice_of, rank
from placements.tables import Indices, Table, block_of, goal_of, tables_of

KEPT = 50
WITHIN = 0.1  # share of the best value: what waits for stages here may overlap when a simulator plays it
EXAMINED_AT_MOST = 5_000_000
TOLERANCE = 1e-12  # share of a value that the order of a sum may change


def solve_exact(
    problem: Problem, *, kept: int = KEPT, within: float = WITHIN, examined_at_most: int = EXAMINED_AT_MOST
) -> Answer | None:
    """Find the best choice, proven, and others near it; None: no choice fits.

    Promised: `best` is first of all choices by `rank`, up to a share of 1e-12 of its value. Of other partitions (with a
    class of device for each block) the best choice of each is among `runners_up` if it is one of the `kept` best of
    these and within a share `within` of the best. Places left are filled with other choices of the same partitions that
    were met, of which nothing is promised. After `examined_at_most` boxes the search stops with the bound so far, and
    `exact` is False unless that proves the best. The same problem gives the same answer.
    """
    began = perf_counter()
    tables = tables_of(problem)
    search = _Search(problem, tables, kept, within)
    bound = search.run(examined_at_most)
    if not search.solved:
        return None
    best, *others = search.choices()
    proven = bound >= search.best * (1 - TOLERANCE)
    return Answer(
        best,
        bound=best.value if proven else bound,
        exact=proven,
        partitions=len(search.solved),
        examined=search.examined,
        runners_up=tuple(others),
        seconds=perf_counter() - began,
    )


class _Search:
    def __init__(self, problem: Problem, tables: list[Table], kept: int, within: float) -> None:
        self.problem, self.tables, self.kept, self.within = problem, tables, kept, within
        self.solved: list[tuple[Indices, Plans]] = []
        self.firsts: list[float] = []
        self.examined = 0
        self.best = self.most = FAR

    def run(self, examined_at_most: int) -> float:
        """Solve covers in order of their bounds; give the least first key of what was left open."""
        goal, capacity = goal_of(self.problem), self.problem.capacity
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
        """Solve one cover; give the least first key of what was left open."""
        cover = cover[cover < len(self.tables)]
        tables = Cover.of([self.tables[at] for at in cover], self.problem.capacity, goal_of(self.problem))
        solved = solve_cover(tables, self.most, examined_at_most=examined_at_most)
        self.examined += solved.examined
        if solved.plans is not None:
            self.solved.append((cover, solved.plans))
            self.firsts = nsmallest(self.kept, [*self.firsts, float(solved.plans.first[0])])
            self.best = self.firsts[0]
            last = self.firsts[-1] if len(self.firsts) == self.kept else FAR
            self.most = min(last, self.best * (1 + self.within)) * (1 + TOLERANCE)
        return solved.open_first

    def choices(self) -> list[Choice]:
        """Give the best of each partition, and others to fill up, best first."""
        most = self.best * (1 + self.within) * (1 + TOLERANCE)
        near = [(cover, plans) for cover, plans in self.solved if plans.first[0] <= most]
        chosen = sorted((self._choice(cover, plans, 0) for cover, plans in near), key=self._rank)[: self.kept]
        for place in range(1, self.kept):
            others = [
                (cover, plans) for cover, plans in near if plans.first.size > place and plans.first[place] <= most
            ]
            filling = sorted((self._choice(cover, plans, place) for cover, plans in others), key=self._rank)
            chosen += filling[: self.kept - len(chosen)]
            if not others or len(chosen) == self.kept:
                break
        return sorted(chosen, key=self._rank)

    def _rank(self, choice: Choice) -> tuple[object, ...]:
        return rank(self.problem, choice)

    def _choice(self, cover: Indices, plans: Plans, at: int) -> Choice:
        tables = [self.tables[each] for each in cover]
        orders = plans.orders[:, at]
        return choice_of(
            self.problem,
            ((block_of(each.roles), each.options[int(order)]) for each, order in zip(tables, orders, strict=True)),
        )
