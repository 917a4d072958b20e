"""The exact solution of one partition of the roles: choose the option of each block by branch and bound.

A box is an interval of seconds for each span that holds the seconds of that span's slowest block. For its upper
corner, a table look-up gives the fewest devices with which each block is fast enough; if the sum exceeds the devices of
the cluster, the box is empty. Its lower corner gives a lower bound for every plan in the box. Not here: the list of
partitions (`partition_bounds`) and the search over them (`exact`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placements.solver.option_table import Bits, Indices, Numbers, ObjectiveArrays, OptionTable

FAR = 1e30  # more than any number of devices, seconds or money, and small enough that sums and products stay finite
CELLS_AT_ONCE = 1 << 15  # boxes looked into together, times options: arrays of this length stay in cache
FIRST_BOXES = 16
FEW_BOXES = 16


@dataclass(frozen=True, eq=False)
class Cover:
    """Options of blocks that together contain every role once, the devices of the cluster, and the objective.

    Arrays have one row for each block. Blocks with fewer options are padded with `FAR` devices, money and seconds,
    which never fit.
    """

    times_s: Numbers
    """Seconds by row of the goal, [span, block, option]."""
    devices: Numbers
    cost: Numbers
    orders: Indices
    """Which option of its block each is, [block, option]."""
    classes: Indices
    """The class of device of each block."""
    capacity: tuple[int, ...]
    goal: ObjectiveArrays

    @classmethod
    def of(cls, tables: Sequence[OptionTable], capacity: tuple[int, ...], goal: ObjectiveArrays) -> Cover:
        """Return the cover of some blocks, with an option table for each; `capacity` counts the devices by class."""
        shape = len(tables), max(option_table.devices.size for option_table in tables)
        times_s = np.full((len(tables[0].times_s), *shape), FAR)
        devices, cost, orders = np.full(shape, FAR), np.full(shape, FAR), np.zeros(shape, dtype=np.int64)
        for at, table in enumerate(tables):
            size = table.devices.size
            times_s[:, at, :size], devices[at, :size] = table.times_s, table.devices
            cost[at, :size], orders[at, :size] = table.cost, table.order
        return cls(
            times_s,
            devices,
            cost,
            orders,
            np.array([option_table.device_class for option_table in tables]),
            capacity,
            goal,
        )

    def only(self, mask: Bits) -> Cover:
        """Return the cover with only the options that `mask` [block, option] selects."""
        first = np.argsort(~mask, axis=1, kind="stable")[:, : int(mask.sum(1).max())]
        gone = ~np.take_along_axis(mask, first, 1)

        def moved(numbers: Numbers) -> Numbers:
            return np.where(gone, FAR, np.take_along_axis(numbers, first, 1))

        times_s = np.where(gone, FAR, np.take_along_axis(self.times_s, first[None], 2))
        orders = np.take_along_axis(self.orders, first, 1)
        return Cover(times_s, moved(self.devices), moved(self.cost), orders, self.classes, self.capacity, self.goal)


@dataclass(frozen=True, eq=False)
class CoverPlans:
    """Plans of one cover: their two keys [plan], and the option of each block in `orders` [block, plan]."""

    first: Numbers
    second: Numbers
    orders: Indices

    def some(self, which: Bits | Indices) -> CoverPlans:
        """Return only the plans that a mask or an array of indices selects."""
        return CoverPlans(self.first[which], self.second[which], self.orders[:, which])

    def sorted(self) -> CoverPlans:
        """Return the plans sorted by their two keys, without duplicates."""
        best = self.some(np.lexsort((*self.orders[::-1], self.second, self.first)))
        new = np.ones(best.first.size, dtype=np.bool_)
        new[1:] = (best.orders[:, 1:] != best.orders[:, :-1]).any(0)
        return best.some(new)


@dataclass(frozen=True, eq=False)
class SpanBoxes:
    """Boxes of span seconds: corners `low_s`, `high_s` [span, box], and lower bounds of their plans' keys [box]."""

    low_s: Numbers
    high_s: Numbers
    first: Numbers
    second: Numbers

    def thin(self) -> Bits:
        """Return a mask [box] of the boxes with equal corners, which cannot be cut further."""
        return np.asarray((self.low_s >= self.high_s).all(0))

    def some(self, which: Bits | Indices) -> SpanBoxes:
        """Return only the boxes that a mask or an array of indices selects."""
        return SpanBoxes(self.low_s[:, which], self.high_s[:, which], self.first[which], self.second[which])


@dataclass(frozen=True, eq=False)
class SolvedCover:
    """The solution of a cover: its plans, best first, and the number of boxes examined.

    `open_first` is the lowest first key that a plan in a box not examined may have; 1e30 if no such box is left.
    """

    plans: CoverPlans | None
    open_first: float
    examined: int


class Incumbents:
    """The best keys found so far, and all plans found whose first key is at most `limit`."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.first, self.second = limit, FAR
        self.examined = 0
        self._plans: list[CoverPlans] = []

    def note(self, plans: CoverPlans, examined: int) -> None:
        """Keep the plans whose first key is at most `limit`, update the best keys, and count `examined` more boxes."""
        self.examined += examined
        good = plans.some(plans.first <= self.limit)
        if good.first.size:
            self._plans.append(good)
            best = np.lexsort((good.second, good.first))[0]
            keys = float(good.first[best]), float(good.second[best])
            self.first, self.second = min((self.first, self.second), keys)

    def may_be_better(self, boxes: SpanBoxes) -> SpanBoxes:
        """Return the boxes whose bounds are below the best keys found so far; other boxes cannot have a better plan."""
        equal = (boxes.first == self.first) & (boxes.second < self.second)
        return boxes.some((boxes.first < self.first) | equal)

    def plans(self) -> CoverPlans | None:
        """Return all plans found within the limit, best first and without duplicates; None if there are none."""
        if not self._plans:
            return None
        orders = np.concatenate([plan.orders for plan in self._plans], axis=1)
        firsts, seconds = [plan.first for plan in self._plans], [plan.second for plan in self._plans]
        return CoverPlans(np.concatenate(firsts), np.concatenate(seconds), orders).sorted()


def solve_cover(cover: Cover, limit: float, *, examined_at_most: int) -> SolvedCover:
    """Search for the best plan of a cover whose first key is at most `limit`, and return all such plans that it found.

    The first key is the value of the objective; `plans` of the result, best first, is None if no plan is within the
    limit. The first plan is proven the best unless `examined_at_most` boxes were not enough.

    Source: Land and Doig (1960), Econometrica 28:497-520, branch and bound; Klein and Scholl (1999), Eur. J. Oper. Res.
    112:322-346, refuting boxes that cannot be as good as the best so far.
    """
    met = Incumbents(limit)
    cover, boxes = opened(cover, met)
    if boxes is None:
        return SolvedCover(met.plans(), FAR, met.examined)
    spans = range(len(boxes.low_s))
    grid = [np.unique(cover.times_s[span][cover.devices < FAR]) for span in spans]
    batch = max(FEW_BOXES, CELLS_AT_ONCE // cover.devices.size)
    boxes = met.may_be_better(boxes)
    while boxes.first.size and met.examined < examined_at_most:
        sort = np.lexsort((boxes.second, boxes.first))
        parts = halved(boxes.some(sort[:batch]), grid, cover.goal)
        while parts.first.size <= FEW_BOXES // 2 and not parts.thin().all():
            parts = halved(parts, grid, cover.goal)  # a look at few takes as long as one at some more
        looked, plans, _ = look(cover, parts, met)
        met.note(plans, parts.first.size)
        boxes = met.may_be_better(joined(boxes.some(sort[batch:]), looked))
    return SolvedCover(met.plans(), float(boxes.first.min(initial=FAR)), met.examined)


def opened(cover: Cover, met: Incumbents) -> tuple[Cover, SpanBoxes | None]:
    """Return a cover with only the options that a best plan may have, and the box of seconds left to search.

    An option is dropped if a lower bound shows that no plan with it is as good as the best keys in `met`. The box
    contains the span seconds of all plans that may still be better. It is None if nothing is left to search: no plan is
    that good, or the best one is in `met` already. Plans from smaller boxes are added to `met` first, so that more
    options can be dropped.
    """
    cover, box = narrowed(cover, met)
    if box is None:
        return cover, None
    share = np.linspace(0.0, 1.0, FIRST_BOXES, endpoint=False)
    high_s = box.low_s + share * (box.high_s - box.low_s)
    none = np.zeros(FIRST_BOXES)
    diagonal = SpanBoxes(np.repeat(box.low_s, FIRST_BOXES, axis=1), high_s, none, none)
    met.note(look(cover, diagonal, met)[1], FIRST_BOXES)
    return narrowed(cover, met)


def narrowed(cover: Cover, met: Incumbents) -> tuple[Cover, SpanBoxes | None]:
    """Return a cover with only the options that a best plan may have, and the box of seconds left to search.

    An option is dropped if a lower bound shows that no plan with it is as good as the best keys in `met`; this is
    repeated until no option can be dropped. The box contains the span seconds of all plans that may still be better. It
    is None if nothing is left to search: no plan is that good, or the best one is in `met` already. Plans that are
    found are added to `met`.
    """
    none = np.zeros(1)
    low_s = cover.times_s.min(2).max(1)[:, None]
    high_s = np.where(cover.devices < FAR, cover.times_s, 0.0).max((1, 2))[:, None]
    box = SpanBoxes(low_s, high_s, none, none)
    while True:
        box, plans, fits = look(cover, box, met)
        met.note(plans, 1)
        if not box.first.size:
            return cover, None
        mask = fits[:, 0]
        if mask.sum() == (cover.devices < FAR).sum():
            return cover, box
        cover = cover.only(mask)


def look(cover: Cover, boxes: SpanBoxes, met: Incumbents) -> tuple[SpanBoxes, CoverPlans, Bits]:
    """Return the boxes that stay open, with tighter corners, a plan of each box, and a mask of the options that fit.

    The plan of a box is the one with the fewest devices; boxes that need too many devices have none. The mask is
    [block, box, option], False for options that no plan as good as the best in `met` can have. If all plans of a box
    have the same step, its plan with the fewest devices is the best of them and the box is closed, unless that plan has
    an option that was just excluded.
    """
    goal, blocks = cover.goal, np.arange(len(cover.devices))[:, None]
    times_s, devices, cost = cover.times_s[:, :, None], cover.devices[:, None], cover.cost[:, None]
    # The options of each block that fit into each box, whatever the other blocks take, and those of the fewest devices.
    steps_s = goal.step_s(np.maximum(times_s, boxes.low_s[:, None, :, None]))
    within = (times_s <= boxes.high_s[:, None, :, None]).all(0)
    within &= goal.keys(steps_s, devices, cost)[0] <= met.first
    columns, some = within.argmax(2), within.any(2)
    spent = np.where(within, steps_s * cost, FAR).min(2) if goal.objective == "cost" else np.zeros(columns.shape)
    fewest = np.where(some, cover.devices[blocks, columns], FAR)
    fewest_cost = np.where(some, cover.cost[blocks, columns], FAR)
    used = np.array([fewest[cover.classes == device_class].sum(0) for device_class in range(len(cover.capacity))])
    spare = np.array(cover.capacity, dtype=np.float64)[:, None] - used
    # With the rest at their fewest: what they leave for each block, and what a plan with an option is worth.
    room = devices <= (spare[cover.classes] + fewest)[:, :, None]
    first, second = goal.keys(steps_s, _rest(fewest) + devices, _rest(fewest_cost) + cost)
    if goal.objective == "cost":
        first = np.maximum(first, _rest(spent) + steps_s * cost)
    fits = within & room & ((first < met.first) | ((first == met.first) & (second <= met.second)))
    intact = np.take_along_axis(fits, columns[:, :, None], 2).all((0, 2))
    low_s = np.maximum(boxes.low_s, np.where(fits, times_s, FAR).min(3).max(1))
    high_s = np.minimum(boxes.high_s, np.where(fits, times_s, 0.0).max((1, 3)))
    alive = np.asarray((spare >= 0).all(0) & (low_s < FAR).all(0))
    least_s, devices, cost = goal.step_s(low_s), fewest.sum(0), fewest_cost.sum(0)
    first, second = goal.keys(least_s, devices, cost)
    looked = SpanBoxes(low_s, high_s, np.maximum(first, spent.sum(0)), second)
    settled = boxes.thin() | (intact & (least_s >= goal.step_s(high_s)))
    still_open = looked.some(alive & (low_s <= high_s).all(0) & ~settled)
    columns = columns[:, alive]
    longest_s = cover.times_s[:, blocks, columns].max(1)
    first, second = goal.keys(goal.step_s(longest_s), devices[alive], cost[alive])
    return still_open, CoverPlans(first, second, cover.orders[blocks, columns]), fits


def _rest(numbers: Numbers) -> Numbers:
    return np.asarray((numbers.sum(0) - numbers)[:, :, None])


def halved(boxes: SpanBoxes, grid: Sequence[Numbers], goal: ObjectiveArrays) -> SpanBoxes:
    """Return the boxes, each cut in two along the span that contributes most to the distance between its corners.

    Boxes with equal corners stay as they are. `grid` has, for each span, the seconds of all options in ascending order;
    corners are always such seconds, so repeated halving ends.
    """
    thin, boxes = boxes.some(boxes.thin()), boxes.some(~boxes.thin())
    widest = goal.widest(boxes.low_s, boxes.high_s)
    below, above = boxes.high_s.copy(), boxes.low_s.copy()
    for span in set(widest.tolist()):
        chosen, seconds = np.flatnonzero(widest == span), grid[span]
        low_s, high_s = boxes.low_s[span, chosen], boxes.high_s[span, chosen]
        place = np.searchsorted(seconds, low_s + (high_s - low_s) / 2, side="right")
        place = np.minimum(place, np.searchsorted(seconds, high_s))  # halves of neighbours may round up
        below[span, chosen], above[span, chosen] = seconds[place - 1], seconds[place]
    lower = SpanBoxes(boxes.low_s, below, boxes.first, boxes.second)
    return joined(thin, joined(lower, SpanBoxes(above, boxes.high_s, boxes.first, boxes.second)))


def joined(left: SpanBoxes, right: SpanBoxes) -> SpanBoxes:
    """Return the boxes of both arguments as one object, those of `left` first."""
    low_s = np.concatenate([left.low_s, right.low_s], axis=1)
    high_s = np.concatenate([left.high_s, right.high_s], axis=1)
    first, second = np.concatenate([left.first, right.first]), np.concatenate([left.second, right.second])
    return SpanBoxes(low_s, high_s, first, second)
