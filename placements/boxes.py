"""One partition of the roles solved exactly: which option each block takes, by boxes of stage seconds.

A box says between which seconds the slowest block of each stage lies. Within its upper corner a block takes its fewest
devices, which is a table look-up: if these are together more than there are, the box is empty. Its lower corner bounds
what is in it. Not here: which partitions there are (`bounds`), and the search over them (`exact`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placements.tables import Bits, Goal, Indices, Numbers, Table

FAR = 1e30  # more than any number of devices, seconds or money, and small enough that sums and products stay finite
CELLS_AT_ONCE = 1 << 15  # boxes looked into together, times options: arrays of this length stay in cache
FIRST_BOXES = 16
FEW_BOXES = 16


@dataclass(frozen=True, eq=False)
class Cover:
    """Tables of blocks that together hold every role once, the devices that there are, and what is to be least."""

    tables: tuple[Table, ...]
    capacity: tuple[int, ...]
    goal: Goal

    def only(self, columns: Sequence[Bits]) -> Cover:
        """Give it with some columns of each table."""
        kept = zip(self.tables, columns, strict=True)
        return Cover(tuple(each.only(some) for each, some in kept), self.capacity, self.goal)


@dataclass(frozen=True, eq=False)
class Plans:
    """Plans of one cover: their keys, and in `orders` which option each block takes, [block, plan]."""

    first: Numbers
    second: Numbers
    orders: Indices

    def some(self, which: Bits | Indices) -> Plans:
        """Give some of them."""
        return Plans(self.first[which], self.second[which], self.orders[:, which])

    def sorted(self) -> Plans:
        """Give them best first, each once."""
        best = self.some(np.lexsort((*self.orders[::-1], self.second, self.first)))
        new = np.ones(best.first.size, dtype=np.bool_)
        new[1:] = (best.orders[:, 1:] != best.orders[:, :-1]).any(0)
        return best.some(new)


@dataclass(frozen=True, eq=False)
class Boxes:
    """Boxes of seconds by stage, [stage, box], and the least keys that a plan in each may have."""

    low_s: Numbers
    high_s: Numbers
    first: Numbers
    second: Numbers

    def thin(self) -> Bits:
        """Say which have one corner only."""
        return np.asarray((self.low_s >= self.high_s).all(0))

    def some(self, which: Bits | Indices) -> Boxes:
        """Give some of them."""
        return Boxes(self.low_s[:, which], self.high_s[:, which], self.first[which], self.second[which])


@dataclass(frozen=True, eq=False)
class Solved:
    """What a cover holds up to a value: plans best first, the least first key of what is left open, and boxes seen."""

    plans: Plans | None
    open_first: float
    examined: int


@dataclass(frozen=True, eq=False)
class Fitting:
    """Which options of each block fit into each box, [box, option], and what the fewest devices of each block take."""

    fits: tuple[Bits, ...]
    steps_s: tuple[Numbers, ...]
    """The least seconds of a step with each option, [box, option]."""
    columns: Indices
    """The first option of each block that fits, which takes the fewest devices, [block, box]."""
    devices: Numbers
    cost: Numbers
    spent: Numbers
    """The least money that a block takes for a step, [block, box]; nothing where money is not the objective."""
    spare: Numbers
    """Devices of each class that the fewest leave, [class, box]; less than none where a box is empty."""

    def keys(self, goal: Goal, at: int, table: Table) -> tuple[Numbers, Numbers]:
        """Give the least keys of a plan with each option of one block, [box, option]."""
        step_s = self.steps_s[at]
        devices = (self.devices.sum(0) - self.devices[at])[:, None] + table.devices
        first, second = goal.keys(step_s, devices, (self.cost.sum(0) - self.cost[at])[:, None] + table.cost)
        if goal.objective == "cost":
            first = np.maximum(first, (self.spent.sum(0) - self.spent[at])[:, None] + step_s * table.cost)
        return first, second


class Met:
    """The best keys that were met, and every plan that is as good as asked for."""

    def __init__(self, most: float) -> None:
        """Begin with the greatest first key that is asked for."""
        self.most = most
        self.first, self.second = most, FAR
        self.examined = 0
        self._plans: list[Plans] = []

    def note(self, plans: Plans, examined: int) -> None:
        """Take note of plans."""
        self.examined += examined
        good = plans.some(plans.first <= self.most)
        if good.first.size:
            self._plans.append(good)
            best = np.lexsort((good.second, good.first))[0]
            keys = float(good.first[best]), float(good.second[best])
            self.first, self.second = min((self.first, self.second), keys)

    def may_be_better(self, boxes: Boxes) -> Boxes:
        """Give the boxes whose bounds are better than the best keys."""
        equal = (boxes.first == self.first) & (boxes.second < self.second)
        return boxes.some((boxes.first < self.first) | equal)

    def plans(self) -> Plans | None:
        """Give what was met, best first."""
        if not self._plans:
            return None
        orders = np.concatenate([each.orders for each in self._plans], axis=1)
        firsts, seconds = [each.first for each in self._plans], [each.second for each in self._plans]
        return Plans(np.concatenate(firsts), np.concatenate(seconds), orders).sorted()


def solve_cover(cover: Cover, most: float, *, examined_at_most: int) -> Solved:
    """Find the best plan of a cover whose first key is at most `most`; plans met on the way come after it.

    It is proven unless more had to be examined than allowed. Source: Land and Doig (1960), Econometrica 28:497-520, of
    branch and bound; refuting what cannot be as good as the best so far as Klein and Scholl (1999), Eur. J. Oper. Res.
    112:322-346, bound schedules.
    """
    met = Met(most)
    cover, boxes = opened(cover, met)
    if boxes is None:
        return Solved(met.plans(), FAR, met.examined)
    stages = range(len(boxes.low_s))
    grid = [np.unique(np.concatenate([each.times_s[stage] for each in cover.tables])) for stage in stages]
    batch = max(8, CELLS_AT_ONCE // max(each.devices.size for each in cover.tables))
    boxes = met.may_be_better(boxes)
    while boxes.first.size and met.examined < examined_at_most:
        sort = np.lexsort((boxes.second, boxes.first))
        parts = halved(boxes.some(sort[:batch]), grid, cover.goal)
        while parts.first.size <= FEW_BOXES // 2 and not parts.thin().all():
            parts = halved(parts, grid, cover.goal)  # a look at few takes as long as one at some more
        looked, plans, _ = look(cover, parts, met)
        met.note(plans, parts.first.size)
        boxes = met.may_be_better(joined(boxes.some(sort[batch:]), looked))
    return Solved(met.plans(), float(boxes.first.min(initial=FAR)), met.examined)


def opened(cover: Cover, met: Met) -> tuple[Cover, Boxes | None]:
    """Give a cover without the options that no plan wanted can hold, and the box of what remains, None if nothing does.

    Smaller boxes along its diagonal give first plans, against which more can be dropped.
    """
    cover, box = narrowed(cover, met)
    if box is None:
        return cover, None
    share = np.linspace(0.0, 1.0, FIRST_BOXES, endpoint=False)
    high_s = box.low_s + share * (box.high_s - box.low_s)
    none = np.zeros(FIRST_BOXES)
    diagonal = Boxes(np.repeat(box.low_s, FIRST_BOXES, axis=1), high_s, none, none)
    met.note(look(cover, diagonal, met)[1], FIRST_BOXES)
    return narrowed(cover, met)


def narrowed(cover: Cover, met: Met) -> tuple[Cover, Boxes | None]:
    """Drop options that no plan as good as the best met can hold, until nothing more goes."""
    none = np.zeros(1)
    low_s = np.max([each.times_s.min(1) for each in cover.tables], axis=0)[:, None]
    high_s = np.max([each.times_s.max(1) for each in cover.tables], axis=0)[:, None]
    box = Boxes(low_s, high_s, none, none)
    while True:
        box, plans, fits = look(cover, box, met)
        met.note(plans, 1)
        if not box.first.size:
            return cover, None
        if all(each.all() for each in fits):
            return cover, box
        cover = cover.only([each[0] for each in fits])


def look(cover: Cover, boxes: Boxes, met: Met) -> tuple[Boxes, Plans, list[Bits]]:
    """Look into boxes: give what is to be halved, tightened; the plan of each with fewest devices; and what fits.

    Options that no plan as good as the best met can hold do not fit. Where all plans of a box take the same step, the
    one of fewest devices is the best of them, and the box is settled; unless it takes an option that just proved unfit.
    """
    goal, found = cover.goal, fitting(cover, boxes, met.first)
    low_s, high_s = boxes.low_s.copy(), np.zeros_like(boxes.high_s)
    intact = np.ones(boxes.first.size, dtype=np.bool_)
    fits = list[Bits]()
    for at, (table, alone) in enumerate(zip(cover.tables, found.fits, strict=True)):
        # Beside the others at their best: what they leave for this block, and what a plan with an option is worth.
        room = table.devices <= (found.spare[table.device_class] + found.devices[at])[:, None]
        first, second = found.keys(goal, at, table)
        fit = alone & room & ((first < met.first) | ((first == met.first) & (second <= met.second)))
        fits.append(fit)
        intact &= fit[np.arange(intact.size), found.columns[at]]
        for stage, times_s in enumerate(table.times_s):
            np.maximum(low_s[stage], np.where(fit, times_s, FAR).min(1), out=low_s[stage])
            np.maximum(high_s[stage], np.where(fit, times_s, 0.0).max(1), out=high_s[stage])
    alive = np.asarray((found.spare >= 0).all(0) & (low_s < FAR).all(0))
    high_s = np.minimum(high_s, boxes.high_s)
    least_s = goal.step_s(low_s)
    first, second = goal.keys(least_s, found.devices.sum(0), found.cost.sum(0))
    looked = Boxes(low_s, high_s, np.maximum(first, found.spent.sum(0)), second)
    settled = boxes.thin() | (intact & (least_s >= goal.step_s(high_s)))
    still_open = looked.some(alive & (low_s <= high_s).all(0) & ~settled)
    return still_open, _plans(cover, found, alive), fits


def fitting(cover: Cover, boxes: Boxes, most: float) -> Fitting:
    """Find the options of each block that fit into each box, whatever the other blocks take."""
    goal, fits, steps_s = cover.goal, list[Bits](), list[Numbers]()
    spent = np.zeros((len(cover.tables), boxes.first.size))
    for at, table in enumerate(cover.tables):
        step_s = goal.step_s(np.maximum(table.times_s[:, None, :], boxes.low_s[:, :, None]))
        fit = np.broadcast_to(goal.keys(step_s, table.devices, table.cost)[0] <= most, step_s.shape).copy()
        for times_s, high_s in zip(table.times_s, boxes.high_s, strict=True):
            fit &= times_s <= high_s[:, None]
        if goal.objective == "cost":
            spent[at] = np.where(fit, step_s * table.cost, FAR).min(1)
        fits.append(fit)
        steps_s.append(step_s)
    columns = np.array([fit.argmax(1) for fit in fits])
    some = np.array([fit.any(1) for fit in fits])
    devices = np.where(some, [each.devices[at] for each, at in zip(cover.tables, columns, strict=True)], FAR)
    cost = np.where(some, [each.cost[at] for each, at in zip(cover.tables, columns, strict=True)], FAR)
    spare = np.repeat(np.array(cover.capacity, dtype=np.float64)[:, None], boxes.first.size, axis=1)
    for table, need in zip(cover.tables, devices, strict=True):
        spare[table.device_class] -= need
    return Fitting(tuple(fits), tuple(steps_s), columns, devices, cost, spent, spare)


def _plans(cover: Cover, found: Fitting, alive: Bits) -> Plans:
    columns = found.columns[:, alive]
    chosen = list(zip(cover.tables, columns, strict=True))
    longest_s = np.max([table.times_s[:, at] for table, at in chosen], axis=0)
    devices, cost = found.devices[:, alive].sum(0), found.cost[:, alive].sum(0)
    first, second = cover.goal.keys(cover.goal.step_s(longest_s), devices, cost)
    return Plans(first, second, np.array([table.order[at] for table, at in chosen]))


def halved(boxes: Boxes, grid: Sequence[Numbers], goal: Goal) -> Boxes:
    """Cut each box in two where it counts most; corners are seconds of some option, so this comes to an end."""
    thin, boxes = boxes.some(boxes.thin()), boxes.some(~boxes.thin())
    widest = goal.widest(boxes.low_s, boxes.high_s)
    below, above = boxes.high_s.copy(), boxes.low_s.copy()
    for stage, seconds in enumerate(grid):
        here = np.flatnonzero(widest == stage)
        low_s, high_s = boxes.low_s[stage, here], boxes.high_s[stage, here]
        place = np.searchsorted(seconds, low_s + (high_s - low_s) / 2, side="right")
        place = np.minimum(place, np.searchsorted(seconds, high_s))  # halves of neighbours may round up
        below[stage, here], above[stage, here] = seconds[place - 1], seconds[place]
    lower = Boxes(boxes.low_s, below, boxes.first, boxes.second)
    return joined(thin, joined(lower, Boxes(above, boxes.high_s, boxes.first, boxes.second)))


def joined(one: Boxes, other: Boxes) -> Boxes:
    """Put boxes side by side."""
    low_s = np.concatenate([one.low_s, other.low_s], axis=1)
    high_s = np.concatenate([one.high_s, other.high_s], axis=1)
    first, second = np.concatenate([one.first, other.first]), np.concatenate([one.second, other.second])
    return Boxes(low_s, high_s, first, second)
