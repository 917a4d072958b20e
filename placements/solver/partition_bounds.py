"""Partitions of the roles, and lower bounds of the value of every plan with these partitions.

Not here: the bound of one partition while it is solved (`branch_and_bound`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from placements.solver.branch_and_bound import CELLS_AT_ONCE, FAR
from placements.solver.option_table import Bits, Indices, JoinedTables, Numbers, ObjectiveArrays, OptionTable, block_of
from placements.solver.problem import AssignmentProblem

BISECTIONS = 8
ROUNDS_AT_MOST = 4
PRECISION = 1e-3


def covers_of(tables: Sequence[OptionTable], roles: int) -> Iterator[tuple[int, ...]]:
    """Yield every partition of the roles with a class of device for each block, as indices into `tables`.

    `roles` is the number of roles.

    >>> from placements.solver.problem import Option
    >>> from placements.solver.option_table import tables_of
    >>> anything = AssignmentProblem(("a", "b", "c"), (1,), lambda block: [Option((1,), (1.0,))])
    >>> len(list(covers_of(tables_of(anything), 3)))
    5
    """
    starting = [
        [(at, table.roles) for at, table in enumerate(tables) if table.roles & -table.roles == 1 << role]
        for role in range(roles)
    ]
    waiting: list[tuple[int, tuple[int, ...]]] = [((1 << roles) - 1, ())]
    while waiting:
        rest, chosen = waiting.pop()
        if not rest:
            yield chosen
            continue
        lowest = (rest & -rest).bit_length() - 1
        waiting += [(rest ^ block, (*chosen, at)) for at, block in reversed(starting[lowest]) if block & rest == block]


def count_covers(problem: AssignmentProblem) -> int:
    """Return how many partitions of the roles the pins allow, counted with a class of device for each block.

    This is the length of `covers_of` if every block that the pins allow can run on every class of device.

    >>> count_covers(AssignmentProblem(("a", "b", "c", "d", "e"), (8,), lambda _: ()))
    52
    """
    sets = range(1 << len(problem.roles))
    classes = np.array([len(problem.capacity) * (roles > 0 and problem.allows(block_of(roles))) for roles in sets])
    ways = np.array([1.0] + [0.0] * (len(sets) - 1))
    for roles in sets[1:]:
        parts = _parts(roles)
        ways[roles] = (classes[parts] * ways[roles ^ parts]).sum()
    return int(ways[-1])


@dataclass(frozen=True, eq=False)
class Covers:
    """Partitions (covers), each with lower bounds of the devices, money and seconds that its blocks take.

    `tables` [cover, block] are indices into the list of tables; the length of that list marks absent blocks. `devices`
    and `cost` [cover, block] are for the fewest devices that each block can run on. The slowest block of a span takes
    at least `low_s` [span, cover] seconds.
    """

    tables: Indices
    devices: Numbers
    cost: Numbers
    spare: Numbers
    """Devices of each block's class that remain if all blocks take their fewest, [cover, block]; if below 0, no fit."""
    low_s: Numbers
    spent: Numbers
    """The least money that each block takes for a step, [cover, block]; only used if money is the objective."""

    def some(self, which: Bits | Indices) -> Covers:
        """Return only the covers that a mask or an array of indices selects."""
        mine = self.tables[which], self.devices[which], self.cost[which], self.spare[which]
        return Covers(*mine, self.low_s[:, which], self.spent[which])

    def keys(self, goal: ObjectiveArrays) -> tuple[Numbers, Numbers]:
        """Return lower bounds of the two keys of the plans of each cover, as two arrays [cover]."""
        first, second = goal.keys(goal.step_s(self.low_s), self.devices.sum(1), self.cost.sum(1))
        return np.maximum(first, self.spent.sum(1)), second

    def best_first(self, goal: ObjectiveArrays) -> Covers:
        """Return the covers that can fit the devices, sorted by the lower bounds of their keys, lowest first."""
        first, second = self.keys(goal)
        order = np.lexsort((second, first))
        return self.some(order[(self.spare[order] >= 0).all(1)])


def opened_covers(tables: Sequence[OptionTable], covers: Sequence[tuple[int, ...]], capacity: Sequence[int]) -> Covers:
    """Return partitions as arrays, with lower bounds of their devices, money and seconds.

    The bounds assume for each block that it is as fast as possible while all others take their fewest devices. `covers`
    are tuples of indices into `tables`, and `capacity` has the number of devices of each class.
    """
    padded = np.full((len(covers), max(map(len, covers), default=1)), len(tables), dtype=np.int64)
    for at, cover in enumerate(covers):
        padded[at, : len(cover)] = cover
    devices = np.array([table.devices[0] for table in tables] + [0.0])[padded]
    cost = np.array([table.cost[0] for table in tables] + [0.0])[padded]
    spare = _spare(tables, padded, devices, capacity)
    low_s = np.zeros((len(tables[0].times_s), len(padded)))
    for table, rows, columns in _places(tables, padded):
        room = spare[rows, columns] + devices[rows, columns]
        last = np.searchsorted(table.devices, room, side="right") - 1
        best_s = np.minimum.accumulate(table.times_s, axis=1)[:, np.maximum(last, 0)]
        low_s[:, rows] = np.maximum(low_s[:, rows], best_s)
    return Covers(padded, devices, cost, spare, low_s, np.zeros_like(cost))


def narrowed_covers(
    tables: Sequence[OptionTable], covers: Covers, capacity: Sequence[int], goal: ObjectiveArrays, limit: float
) -> Covers:
    """Return the `covers` that a plan within `limit` can have, with tighter lower bounds; the lowest come first.

    A plan is within the limit if the value of its objective (its first key: seconds of a step, money or devices) is at
    most `limit`. Bounds are computed from the options that such a plan can have. A cover is dropped if one of its
    blocks has no such option, or if it needs more devices of a class than `capacity` has. `covers` has indices into
    `tables`.
    """
    devices, cost, spent = covers.devices.copy(), covers.cost.copy(), covers.spent.copy()
    low_s = covers.low_s.copy()
    for table, rows, columns in _places(tables, covers.tables):
        for some in np.array_split(np.arange(rows.size), -(-rows.size * table.devices.size // CELLS_AT_ONCE)):
            row, column = rows[some], columns[some]
            step_s, fit = _fitting(table, covers, row, column, goal, limit)
            at, none = fit.argmax(1), ~fit.any(1)
            devices[row, column] = np.where(none, FAR, table.devices[at])
            cost[row, column] = np.where(none, FAR, table.cost[at])
            if goal.objective == "cost":
                spent[row, column] = np.where(fit, step_s * table.cost, FAR).min(1)
            best_s = np.array([np.where(fit, times_s, FAR).min(1) for times_s in table.times_s])
            low_s[:, row] = np.maximum(low_s[:, row], best_s)
    narrowed = Covers(covers.tables, devices, cost, _spare(tables, covers.tables, devices, capacity), low_s, spent)
    return narrowed.some(np.flatnonzero((devices < FAR).all(1))).best_first(goal)


def _fitting(
    table: OptionTable, covers: Covers, row: Indices, column: Indices, goal: ObjectiveArrays, limit: float
) -> tuple[Numbers, Bits]:
    """Return the least seconds of a step with each option of a table in covers, and whether it fits [cover, option]."""
    used = covers.devices[row, column], covers.cost[row, column], covers.spent[row, column]
    step_s = goal.step_s(np.maximum(table.times_s[:, None, :], covers.low_s[:, row, None]))
    devices = (covers.devices[row].sum(1) - used[0])[:, None] + table.devices
    first, _ = goal.keys(step_s, devices, (covers.cost[row].sum(1) - used[1])[:, None] + table.cost)
    if goal.objective == "cost":
        first = np.maximum(first, (covers.spent[row].sum(1) - used[2])[:, None] + step_s * table.cost)
    return step_s, (first <= limit) & (table.devices <= (covers.spare[row, column] + used[0])[:, None])


def _spare(tables: Sequence[OptionTable], padded: Indices, devices: Numbers, capacity: Sequence[int]) -> Numbers:
    classes = np.array([table.device_class for table in tables] + [-1])[padded]
    spare = np.zeros_like(devices)
    for device_class, limit in enumerate(capacity):
        in_class = classes == device_class
        spare += np.where(in_class, limit - np.where(in_class, devices, 0.0).sum(1, keepdims=True), 0.0)
    return spare


def _places(tables: Sequence[OptionTable], padded: Indices) -> Iterator[tuple[OptionTable, Indices, Indices]]:
    flat = padded.ravel()
    sort = np.argsort(flat, kind="stable")
    ends = np.searchsorted(flat[sort], np.arange(len(tables) + 1))
    for at, table in enumerate(tables):
        rows, columns = np.divmod(sort[ends[at] : ends[at + 1]], padded.shape[1])
        if rows.size:
            yield table, rows, columns


def least_value(
    tables: Sequence[OptionTable], roles: int, capacity: Sequence[int], goal: ObjectiveArrays, value: float
) -> float:
    """Return a lower bound of the value of every choice in any partition, given that a choice with `value` exists.

    The bound is at most `value`. `roles` is the number of roles, and `capacity` has the number of devices of each
    class.

    Source: destructive bounds of Klein and Scholl (1999), Eur. J. Oper. Res. 112:322-346.
    """
    options = JoinedTables.of(tables, capacity)
    low, high = _relaxed_bound(options, roles, capacity, goal, FAR), value
    if low >= high * (1 - PRECISION):
        return min(low, high)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        bound = _relaxed_bound(options, roles, capacity, goal, middle)
        low, high = (max(low, middle), high) if bound > middle else (max(low, min(bound, middle)), middle)
    return low


def _relaxed_bound(
    options: JoinedTables, roles: int, capacity: Sequence[int], goal: ObjectiveArrays, limit: float
) -> float:
    """Bound the choices whose first key is at most `limit`, with each resource covered by itself; FAR if none do."""
    blocks = np.array([table.roles for table in options.tables])
    sizes = [table.devices.size for table in options.tables]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    room = np.array([*capacity, len(capacity) * (1 + 1e-9), limit if goal.objective == "cost" else FAR])
    holds = (blocks >> np.arange(roles)[:, None]) & 1 > 0
    everyone, bound, low_s = (1 << roles) - 1, 0.0, np.zeros(len(options.times_s))
    rest = np.zeros((len(room) + 2, blocks.size))
    for _ in range(ROUNDS_AT_MOST):
        step_s = goal.step_s(np.maximum(options.times_s, low_s[:, None]))
        used = np.vstack([options.used, options.share, step_s * options.cost, options.devices, options.cost])
        with_rest = used + np.repeat(rest, sizes, axis=1)
        fit = (goal.keys(step_s, *with_rest[-2:])[0] <= limit) & (with_rest[:-2] <= room[:, None]).all(0)
        block = np.full((1 << roles, len(used)), FAR)
        np.minimum.at(block, blocks, np.minimum.reduceat(np.where(fit, used, FAR), starts, axis=1).T)
        smallest = covering(np.ascontiguousarray(block.T))
        if (smallest[:-2, everyone] > room).any():
            return FAR
        rest = smallest[:, everyone ^ blocks]
        # The slowest block of a span takes no less than each role does in its best block.
        best_s = np.minimum.reduceat(np.where(fit, options.times_s, FAR), starts, axis=1)
        low_s = np.maximum(low_s, np.where(holds[:, None, :], best_s, FAR).min(2).max(0))
        first, _ = goal.keys(goal.step_s(low_s), *smallest[-2:, everyone])
        spent = smallest[-3, everyone] if goal.objective == "cost" else first
        before, bound = bound, float(np.maximum(first, spent))
        if bound <= before * (1 + PRECISION):
            break
    return bound


def fewest_devices(tables: Sequence[OptionTable], roles: int, capacity: Sequence[int]) -> list[tuple[int, ...]]:
    """Return a list with only the partition that takes the smallest share of the devices; [] if there is none.

    The partition has one integer for each block, with a bit for each role. `roles` is the number of roles. With one
    class of device, this partition fits if any partition does.
    """
    block = np.full((1, 1 << roles), FAR)
    for table in tables:
        block[0, table.roles] = min(block[0, table.roles], table.devices[0] / capacity[table.device_class])
    smallest, rest, blocks = covering(block), (1 << roles) - 1, list[int]()
    if smallest[0, rest] >= FAR:
        return []
    while rest:
        parts = _parts(rest)
        blocks.append(int(parts[(block[0, parts] + smallest[0, rest ^ parts]).argmin()]))
        rest ^= blocks[-1]
    return [tuple(blocks)]


def covering(block: Numbers) -> Numbers:
    """Return the smallest amount of each resource that any partition of a set of roles takes, [resource, set].

    `block` [resource, set] has the amount that each set takes as one block. A set is an integer with a bit for each
    role.
    """
    smallest = np.zeros_like(block)
    for roles in range(1, block.shape[1]):
        parts = _parts(roles)
        smallest[:, roles] = (block[:, parts] + smallest[:, roles ^ parts]).min(1)
    return smallest


@cache
def _parts(roles: int) -> Indices:
    lowest, parts = roles & -roles, np.zeros(1, dtype=np.int64)
    rest = roles ^ lowest
    while rest:
        member = rest & -rest
        parts = np.concatenate([parts, parts | member])
        rest ^= member
    return parts | lowest
