"""Roles folded into one pool, one after another: all ways to run the first ones with all ways to run the next.

Columns of numbers, so that thousands of combinations are weighed at once. Not here: what one role can do (`choices`),
and what a search is offered (`blocks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from placements.choices import Choice
from placements.footprint import FITS_SHARE, MemoryConstants

SYNC_BYTES = int(2 * MemoryConstants().bucket_bytes)  # two buckets: one that is sent, one that is read
CARRIED_AT_MOST = 12  # ways to run the first roles of a pool that are carried on to the next one

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """Ways to run some roles on one pool, one a row: `picks` says which way of each role it takes.

    Bytes are of each device: `rest` while others work, `over` the most that one role holds more while it works, `first`
    and `second` what the two largest bring that sleep. `engines` has a bit for each engine whose context is there.
    """

    stages_s: Floats
    rest: Ints
    over: Ints
    first: Ints
    second: Ints
    host: Ints
    context: Ints
    engines: Ints
    picks: Ints

    @classmethod
    def nothing(cls, stages: int) -> Self:
        """Give the one way to run no role."""
        none = np.zeros(1, np.int64)
        return cls(np.zeros((1, stages)), none, none, none, none, none, none, none, np.zeros((1, 0), np.int64))

    @classmethod
    def of(cls, ways: Sequence[Choice], bit: int, slowed: float) -> Self:
        """Give the ways to run one role, whose seconds are `slowed` times its own."""

        def column(name: str) -> Ints:
            return np.array([getattr(way, name) for way in ways], np.int64)

        nothing = np.zeros(len(ways), np.int64)
        return cls(
            stages_s=slowed * np.array([way.stages_s for way in ways], float),
            rest=column("rest_bytes"),
            over=column("over_bytes"),
            first=column("wakes_bytes"),
            second=nothing,
            host=column("host_bytes"),
            context=column("context_bytes"),
            engines=nothing + bit,
            picks=np.arange(len(ways), dtype=np.int64)[:, None],
        )

    @property
    def peak(self) -> Ints:
        """Give the most that a device holds while one of the roles works, or wakes before another is put away."""
        syncs = SYNC_BYTES if self.picks.shape[1] > 1 else 0
        peak: Ints = self.rest + np.maximum(self.over, self.first + self.second + syncs)
        return peak

    def rows(self, which: Any) -> Columns:
        """Give some of the rows."""
        return Columns(**{field.name: getattr(self, field.name)[which] for field in fields(self)})

    def with_one_more(self, own: Columns) -> Columns:
        """Give every way of these roles with every way of one role more; engines share the context of their process."""
        here, there = np.divmod(np.arange(len(self.rest) * len(own.rest)), len(own.rest))
        before, after = self.rows(here), own.rows(there)
        shared = (before.engines & after.engines) != 0
        return Columns(
            stages_s=before.stages_s + after.stages_s,
            rest=before.rest + after.rest - after.context * shared,
            over=np.maximum(before.over, after.over),
            first=np.maximum(before.first, after.first),
            second=np.maximum(before.second, np.minimum(before.first, after.first)),
            host=before.host + after.host,
            context=before.context,
            engines=before.engines | after.engines,
            picks=np.concatenate([before.picks, after.picks], axis=1),
        )

    def fitting(self, memory_bytes: int, host_bytes: int) -> Columns:
        """Give the rows that fit a device, and its share of the host."""
        return self.rows((self.peak <= int(FITS_SHARE * memory_bytes)) & (self.host <= host_bytes))

    def unbeaten(self, most: int = CARRIED_AT_MOST, *, bytes_too: bool = True) -> Columns:
        """Give the rows that no other beats in seconds of every stage and, if `bytes_too`, in bytes; fastest first."""
        order = np.lexsort((self.host, self.peak, self.stages_s.sum(axis=1)))
        held = [self.rest, self.over, self.first, self.second, self.host] if bytes_too else []
        told = np.column_stack([self.stages_s, *held])[order]
        left, kept = np.arange(len(order)), list[int]()
        while len(left) and len(kept) < most:
            best, left = left[0], left[1:]
            kept.append(int(best))
            left = left[(told[left] < told[best]).any(axis=1)]
        return self.rows(order[kept])
