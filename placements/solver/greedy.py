"""The greedy solver: a good placement without a proof, by local search over partitions of the roles.

Each block starts with its fewest devices and gets more by marginal gain, which is not optimal (see `exact`). From
each partition, the search continues with the best partition that results from merging two blocks or moving a role. The
answer has a bound that is valid for every partition, so its gap is known. Not here: the proven answer (`exact`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations
from time import perf_counter

import numpy as np

from placements.solver.branch_and_bound import FAR, Cover, solve_cover
from placements.solver.option_table import (
    JoinedTables,
    Numbers,
    ObjectiveArrays,
    bits,
    block_of,
    objective_arrays,
    tables_of,
    tables_of_block,
)
from placements.solver.partition_bounds import fewest_devices, least_value
from placements.solver.problem import Assignment, AssignmentProblem, Option, Solution, assignment_of, fused, rank

KEPT = 50
BOUNDED_ROLES = 12  # more have too many blocks for a bound that holds for every partition
SETTLED_AT_MOST = 20_000  # boxes for one partition that is solved after the walk
NEGLIGIBLE = 1e-9  # share of a value that does not count as a gain

Partition = tuple[int, ...]


def solve_greedy(
    problem: AssignmentProblem, *, width: int = 1, settled: int = 0, kept: int = KEPT, bounded: bool = True
) -> Solution | None:
    """Return a good choice by local search from two partitions: one pool for all roles, and a pool for each role.

    If neither fits, or if the objective is devices, the search also starts at the partition with the fewest devices (up
    to 12 roles). Each round continues from the `width` best partitions of the last round until none is better. Then the
    best option of each block is searched again by branch and bound in the `settled` best partitions, with at most
    20,000 boxes each. At most `kept` choices are returned. Returns None if no choice was found, which does not prove
    that none exists. The bound is None if `bounded` is False, or for more than 12 roles. The same problem always gives
    the same answer. Raises ValueError for options that `tables_of_block` refuses.
    """
    began, problem = perf_counter(), problem.remembering()
    walk = _LocalSearch(problem)
    walk.run(width)
    walk.settle(settled)
    if not walk.found:
        return None
    best, *rest = sorted(walk.found.values(), key=walk.rank)
    bound = None
    if bounded and len(problem.roles) <= BOUNDED_ROLES:
        goal, roles = objective_arrays(problem), len(problem.roles)
        bound = least_value(tables_of(problem), roles, problem.capacity, goal, best.value)
    return Solution(
        best,
        bound=bound,
        exact=bound is not None and bound >= best.value,
        partitions=len(walk.found),
        examined=walk.examined,
        runners_up=tuple(rest[: kept - 1]),
        seconds=perf_counter() - began,
    )


def allocate(blocks: Sequence[JoinedTables], capacity: Sequence[int], goal: ObjectiveArrays) -> list[int] | None:
    """Return the index of each block's option, chosen by marginal gain; None if the blocks do not fit.

    `capacity` has the number of devices of each class. If no single block shortens the step, one of the slowest blocks
    of a span is sped up, so that two equally slow blocks do not prevent each other's improvement. Source: Fox (1966),
    Management Science 13:210-216, on marginal allocation; here one gain may be of several devices at once.
    """
    rows = fewest(blocks, capacity)
    while rows is not None:
        longest_s = np.array([block.times_s[:, row] for block, row in zip(blocks, rows, strict=True)])
        free = np.array(capacity) - sum(block.used[:, row] for block, row in zip(blocks, rows, strict=True))
        gains = [_gains(blocks, rows, at, longest_s, free, goal) for at in range(len(blocks))]
        for kind in (0, 1):
            best = [float(gain[kind].max()) for gain in gains]
            block = int(np.argmax(best))
            if best[block] > 0:
                rows[block] = int(gains[block][kind].argmax())
                break
        else:
            return rows
    return None


def fewest(blocks: Sequence[JoinedTables], capacity: Sequence[int]) -> list[int] | None:
    """Return for each block the index of the option with the smallest share of devices; None if a block does not fit.

    The share is of all devices of the option's class. Blocks that need the largest share choose first, and later blocks
    choose from the devices that are left.
    """
    free = np.array(capacity, dtype=np.float64)
    rows = [0] * len(blocks)
    for at in sorted(range(len(blocks)), key=lambda block: -float(blocks[block].share.min())):
        block = blocks[at]
        fits = (block.used <= free[:, None]).all(0)
        if not fits.any():
            return None
        rows[at] = int(np.where(fits, block.share, FAR).argmin())
        free -= block.used[:, rows[at]]
    return rows


def _gains(
    blocks: Sequence[JoinedTables],
    rows: Sequence[int],
    at: int,
    longest_s: Numbers,
    free: Numbers,
    goal: ObjectiveArrays,
) -> tuple[Numbers, Numbers]:
    """Return the gain of each option of a block by share: in the objective and, if that stays, in seconds."""
    block, now = blocks[at], rows[at]
    rest_s = np.delete(longest_s, at, axis=0).max(0, initial=0.0)[:, None]
    rest = [(options, row) for options, row in zip(blocks, rows, strict=True) if options is not block]
    devices = block.devices + sum(options.devices[row] for options, row in rest)
    cost = block.cost + sum(options.cost[row] for options, row in rest)
    step_s = goal.step_s(np.maximum(block.times_s, rest_s))
    first, second = goal.keys(step_s, devices, cost)
    smallest = NEGLIGIBLE * first[now]
    fits = (block.used <= (free + block.used[:, now])[:, None]).all(0)
    extra = np.maximum(block.share - block.share[now], NEGLIGIBLE)
    if goal.objective == "devices":
        sped_s = second[now] - second
    else:
        slow = block.times_s[:, now] >= rest_s[:, 0]
        sped_s = np.where(slow[:, None], block.times_s[:, [now]] - block.times_s, 0.0).sum(0)
        fits &= (first < first[now] - smallest) | (block.share > block.share[now])
    gained = np.where(fits & (first < first[now] - smallest), first[now] - first, 0.0)
    sped = fits & (first <= first[now]) & (sped_s > NEGLIGIBLE * step_s[now])
    return gained / extra, np.where(sped, sped_s, 0.0) / extra


class _LocalSearch:
    def __init__(self, problem: AssignmentProblem) -> None:
        self.problem, self.goal = problem, objective_arrays(problem)
        self.units = tuple(bits(block) for block in fused(problem.together, len(problem.roles)))
        self.rank = partial(rank, problem)
        self.found: dict[Partition, Assignment] = {}
        self.examined = 0
        self._rows: dict[int, JoinedTables | None] = {}
        self._tried: set[Partition] = set()

    def run(self, width: int) -> None:
        packed = self._packed() if self.problem.objective == "devices" else ()
        front = self._try((sum(self.units),), self.units, *packed) or self._try(*self._packed())
        while front:
            neighbours = {neighbour for partition in front[:width] for neighbour in self._neighbours(partition)}
            met = self._try(*sorted(neighbours))
            front = met if met and self.rank(self.found[met[0]]) < self.rank(self.found[front[0]]) else []

    def _packed(self) -> Iterator[Partition]:
        if len(self.problem.roles) <= BOUNDED_ROLES and (tables := tables_of(self.problem)):
            yield from fewest_devices(tables, len(self.problem.roles), self.problem.capacity)

    def settle(self, count: int) -> None:
        for partition in sorted(self.found, key=lambda partition: self.rank(self.found[partition]))[:count]:
            tables = [
                next(table for table in tables_of_block(self.problem, block) if option.devices[table.device_class])
                for block, option in self.found[partition].blocks
            ]
            cover = Cover.of(tables, self.problem.capacity, self.goal)
            solved = solve_cover(cover, FAR, examined_at_most=SETTLED_AT_MOST)
            self.examined += solved.examined
            if solved.plans is not None:
                picked = zip(tables, solved.plans.orders[:, 0], strict=True)
                self._keep(partition, [(table.roles, table.options[int(order)]) for table, order in picked])

    def _try(self, *partitions: Partition) -> list[Partition]:
        untried = (partition for partition in dict.fromkeys(partitions) if partition not in self._tried)
        new = list(filter(self._may_be_best, untried))
        self._tried.update(new)
        for partition in new:
            blocks = [rows for rows in map(self._block, partition) if rows is not None]
            self.examined += 1
            rows = allocate(blocks, self.problem.capacity, self.goal)
            if rows is not None:
                picked = (block.at(row) for block, row in zip(blocks, rows, strict=True))
                self._keep(partition, [(table.roles, table.option(column)) for table, column in picked])
        fitting = (partition for partition in new if partition in self.found)
        return sorted(fitting, key=lambda partition: self.rank(self.found[partition]))

    def _keep(self, partition: Partition, blocks: Iterable[tuple[int, Option]]) -> None:
        choice = assignment_of(self.problem, ((block_of(roles), option) for roles, option in blocks))
        before = self.found.get(partition)
        if before is None or self.rank(choice) < self.rank(before):
            self.found[partition] = choice

    def _block(self, roles: int) -> JoinedTables | None:
        if roles not in self._rows:
            tables = tuple(tables_of_block(self.problem, block_of(roles)))
            self._rows[roles] = JoinedTables.of(tables, self.problem.capacity) if tables else None
        return self._rows[roles]

    def _may_be_best(self, partition: Partition) -> bool:
        blocks = [rows for rows in map(self._block, partition) if rows is not None]
        if len(blocks) < len(partition):
            return False
        longest_s = np.max([block.times_s.min(1) for block in blocks], axis=0)
        devices = np.sum([block.devices.min() for block in blocks], axis=0)
        cost = np.sum([block.cost.min() for block in blocks], axis=0)
        first, _ = self.goal.keys(self.goal.step_s(longest_s), devices, cost)
        return not self.found or bool(first <= min(assignment.value for assignment in self.found.values()))

    def _neighbours(self, partition: Partition) -> Iterator[Partition]:
        for first, second in combinations(partition, 2):
            yield _ordered(partition, {first, second}, [first | second])
        for unit in self.units:
            home = next(block for block in partition if block & unit)
            if home != unit:
                yield _ordered(partition, {home}, [home ^ unit, unit])
            for block in partition:
                if block != home and home != unit:
                    yield _ordered(partition, {home, block}, [home ^ unit, block | unit])


def _ordered(partition: Partition, without: set[int], plus: Sequence[int]) -> Partition:
    blocks = [*(block for block in partition if block not in without), *plus]
    return tuple(sorted(blocks, key=lambda block: block & -block))
