"""Options of a problem as arrays: a table for each block and class of device, and the objective as functions of arrays.

Not here: bounds over every partition (`partition_bounds`), and searches (`exact`, `greedy`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from placements.solver.problem import AssignmentProblem, Block, Objective, Option

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]
Bits = NDArray[np.bool_]


@dataclass(frozen=True)
class ObjectiveArrays:
    """The objective of a problem as functions of arrays.

    The first axis of seconds is spans; where steps overlap (`tokens` > 1), its last row is the busy seconds of a pool.
    """

    objective: Objective
    tokens: int

    def times(self, spans_s: Numbers, busy_s: Numbers) -> Numbers:
        """Return the rows of seconds that determine a step, as one array [row, option].

        They are the rows of `spans_s` [span, option] and, if steps overlap, `busy_s` [option].
        """
        return np.vstack([spans_s, busy_s]) if self.tokens > 1 else spans_s

    def step_s(self, times_s: Numbers) -> Numbers:
        """Return the seconds of a step, given the slowest block's in each row; the first axis of `times_s` is rows."""
        if self.tokens == 1:
            return np.asarray(times_s.sum(0))
        return np.asarray(np.maximum(times_s[-1], times_s[:-1].sum(0) / self.tokens))

    def widest(self, low_s: Numbers, high_s: Numbers) -> Indices:
        """Return for each box the row, by index, whose seconds contribute most to the distance between its corners."""
        if self.tokens == 1:
            return np.asarray((high_s - low_s).argmax(0))
        apart_s = high_s - low_s
        span, last = apart_s[:-1].argmax(0), len(high_s) - 1
        busy = (apart_s[-1] > 0) & (high_s[-1] >= high_s[:-1].sum(0) / self.tokens)
        return np.where(busy | (apart_s[:-1].max(0) <= 0), last, span)

    def keys(self, step_s: Numbers, devices: Numbers, cost: Numbers) -> tuple[Numbers, Numbers]:
        """Return the two keys by which plans are minimised; the second one breaks ties.

        They are the seconds or the money of a step, then devices; if the objective is devices, devices and then
        seconds.
        """
        if self.objective == "devices":
            return devices, step_s
        return (step_s * cost if self.objective == "cost" else step_s), devices


@dataclass(frozen=True, eq=False)
class OptionTable:
    """The options of one block on one class of device, sorted by number of devices."""

    roles: int
    """The block, a bit for each role."""
    device_class: int
    devices: Numbers
    times_s: Numbers
    """Seconds [row, option]: a row for each span, and where steps overlap the busy seconds (`ObjectiveArrays`)."""
    cost: Numbers
    order: Indices
    """The index of each column in `options`."""
    options: Sequence[Option] = field(repr=False)

    def only(self, columns: Bits) -> OptionTable:
        """Return the table with only the columns that a mask selects."""
        arrays = self.devices[columns], self.times_s[:, columns], self.cost[columns], self.order[columns]
        return OptionTable(self.roles, self.device_class, *arrays, self.options)

    def option(self, column: int) -> Option:
        """Return the option that a column of the table refers to."""
        return self.options[int(self.order[column])]


@dataclass(frozen=True, eq=False)
class JoinedTables:
    """The options of several tables, concatenated along the option axis."""

    tables: tuple[OptionTable, ...]
    used: Numbers
    """Devices of each class, [class, option]."""
    share: Numbers
    """The share of the devices of its class that each option takes, [option]."""
    times_s: Numbers
    devices: Numbers
    cost: Numbers

    @classmethod
    def of(cls, tables: Sequence[OptionTable], capacity: Sequence[int]) -> JoinedTables:
        """Return some tables joined along the option axis; `capacity` has the number of devices of each class."""
        devices = np.concatenate([table.devices for table in tables])
        classes = np.concatenate([np.full(table.devices.size, table.device_class) for table in tables])
        used = np.array([np.where(classes == number, devices, 0.0) for number in range(len(capacity))])
        share = (used / np.array(capacity, dtype=np.float64)[:, None]).sum(0)
        times_s = np.concatenate([table.times_s for table in tables], axis=1)
        cost = np.concatenate([table.cost for table in tables])
        return cls(tuple(tables), used, share, times_s, devices, cost)

    def at(self, row: int) -> tuple[OptionTable, int]:
        """Return the table that has option number `row` (from 0), and the option's column in that table.

        Raises IndexError if the tables have no more than `row` options.
        """
        for table in self.tables:
            if row < table.devices.size:
                return table, row
            row -= table.devices.size
        raise IndexError(row)


def objective_arrays(problem: AssignmentProblem) -> ObjectiveArrays:
    """Return the objective of a problem as an object with functions of arrays."""
    return ObjectiveArrays(problem.objective, problem.tokens)


def bits(block: Block) -> int:
    """Return a block of roles as an integer with one bit set for each role.

    >>> bits(frozenset({0, 3})), sorted(block_of(9))
    (9, [0, 3])
    """
    return sum(1 << role for role in block)


@cache
def block_of(roles: int) -> Block:
    """Return the block of the roles whose bits are set in `roles`; the inverse of `bits`."""
    return Block(role for role in range(roles.bit_length()) if roles >> role & 1)


@lru_cache(maxsize=8)
def tables_of(problem: AssignmentProblem) -> tuple[OptionTable, ...]:
    """Return the option tables of all blocks that the pins allow: one for each block and class of device.

    Raises ValueError as `tables_of_block` does.
    """
    blocks = range(1, 1 << len(problem.roles))
    return tuple(table for roles in blocks for table in tables_of_block(problem, block_of(roles)))


def tables_of_block(problem: AssignmentProblem, block: Block) -> Iterator[OptionTable]:
    """Yield a table of a block's options for each class of device on which the block can run.

    Options that need more devices than the class has are left out; a block that the pins forbid has no table. Raises
    ValueError if an option does not name as many classes as the problem, or not devices of exactly one class; if
    options have no spans or different numbers of spans; if seconds or cost are negative or infinite; or if more devices
    of a class cost less per second.
    """
    options = problem.options(block) if problem.allows(block) else ()
    if not options:
        return
    devices, spans_s, cost = _checked(problem, options)
    times_s = objective_arrays(problem).times(spans_s, np.array([option.busy_s for option in options]))
    for device_class, available in enumerate(problem.capacity):
        counts = devices[device_class]
        columns = np.flatnonzero((counts > 0) & (counts <= available))
        if columns.size:
            # Equal devices: the shorter comes first, so that the first that is fast enough is a good one.
            sort = np.lexsort((*times_s[::-1, columns], spans_s[:, columns].sum(0), counts[columns]))
            chosen = columns[sort]
            if (np.diff(cost[chosen]) < 0).any():
                raise ValueError("of one class, more devices never cost less per second: the search counts on it")
            seconds = np.ascontiguousarray(times_s[:, chosen])
            yield OptionTable(bits(block), device_class, counts[chosen], seconds, cost[chosen], chosen, options)


def _checked(problem: AssignmentProblem, options: Sequence[Option]) -> tuple[Numbers, Numbers, Numbers]:
    """Return devices [class, option], seconds [span, option] and cost [option]."""
    lengths = {(len(option.devices), len(option.spans_s)) for option in options}
    if len(lengths) > 1 or next(iter(lengths))[0] != len(problem.capacity) or not options[0].spans_s:
        raise ValueError(f"options must all name {len(problem.capacity)} classes of device and the same spans")
    devices = np.array([option.devices for option in options], dtype=np.float64).T
    spans_s = np.array([option.spans_s for option in options], dtype=np.float64).T
    cost = np.array([option.cost for option in options], dtype=np.float64)
    if (devices < 0).any() or ((devices > 0).sum(0) != 1).any():
        raise ValueError("an option takes devices of exactly one class")
    if not (np.isfinite(spans_s).all() and np.isfinite(cost).all() and (spans_s >= 0).all() and (cost >= 0).all()):
        raise ValueError("seconds and cost of an option must be finite and not negative")
    return devices, spans_s, cost
