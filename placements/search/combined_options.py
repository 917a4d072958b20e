"""Roles folded into one pool, one after another: all ways to run the first ones with all ways to run the next.

Columns of numbers, so that thousands of combinations are weighed at once. Not here: what one role can do
(`role_options`), and what a search is offered (`pool_options`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from placements.memory.footprint import MemoryConstants
from placements.search.dominance import RoleOption

SYNC_BYTES = int(2 * MemoryConstants().bucket_bytes)  # two buckets: one that is sent, one that is read
CARRIED_AT_MOST = 256  # ways to run the first roles of a pool that are carried on to the next one

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


# Bytes of each device, by row: those while others work, the most that one role holds more while it works, what the two
# largest bring that sleep, those of its share of the host, of the last role's process, and a bit for each engine whose
# process is there.
REST, OVER, FIRST, SECOND, HOST, CONTEXT, ENGINES = range(7)
HELD = 5  # rows that are bytes to be kept low
MOST_HELD = 2**58  # bytes: more than any device has, and few enough that those of 16 roles are still an integer here


@dataclass(frozen=True)
class CombinedOptions:
    """Ways to run some roles on one pool, one a column: `picks` says which way of each role it takes.

    `stages_s` has a row for each stage, `held` one for each of the numbers named above, `picks` one for each role.
    `sync_bytes` pass through a device when weights are brought to a role of several. `cut` says that more ways were
    unbeaten than were carried on, so that a faster one may be missing.
    """

    stages_s: Floats
    held: Ints
    picks: Ints
    sync_bytes: int = SYNC_BYTES
    cut: bool = False

    @classmethod
    def nothing(cls, stages: int, sync_bytes: int = SYNC_BYTES) -> Self:
        """Return the one way to run no role."""
        return cls(np.zeros((stages, 1)), np.zeros((7, 1), np.int64), np.zeros((0, 1), np.int64), sync_bytes)

    @classmethod
    def of(cls, ways: Sequence[RoleOption], bit: int, slowed: float) -> Self:
        """Return the ways to run one role, whose seconds are `slowed` times its own where it computes."""
        held = [
            (way.rest_bytes, way.over_bytes, way.wakes_bytes, 0, way.host_bytes, way.context_bytes, bit) for way in ways
        ]
        held_at_most = [[min(number, MOST_HELD) for number in way] for way in held]
        stages_s = slowed * np.array([way.stages_s for way in ways], float)
        for at, way in enumerate(ways):
            stages_s[at, -1] += way.ready_s
            stages_s[at, way.last_stage] -= (slowed - 1) * way.moved_s
        return cls(stages_s.T, np.array(held_at_most, np.int64).T, np.arange(len(ways), dtype=np.int64)[None])

    def __len__(self) -> int:
        """Count the ways."""
        return int(self.held.shape[1])

    @property
    def peak(self) -> Ints:
        """Return the most that a device holds while one of the roles works, or wakes before another is put away."""
        syncs = self.sync_bytes if len(self.picks) > 1 else 0
        held = self.held
        peak: Ints = held[REST] + np.maximum(held[OVER], held[FIRST] + held[SECOND] + syncs)
        return peak

    def some(self, which: Any) -> CombinedOptions:
        """Return some of the ways."""
        return CombinedOptions(
            self.stages_s[:, which], self.held[:, which], self.picks[:, which], self.sync_bytes, self.cut
        )

    def with_one_more(self, own: CombinedOptions) -> CombinedOptions:
        """Return every way of these roles with every way of one more; engines share the context of their process."""
        before, after = self, own
        if len(self) != 1 or len(own) != 1:
            here, there = np.divmod(np.arange(len(self) * len(own)), len(own))
            before, after = self.some(here), own.some(there)
        one, other = before.held, after.held
        held = one + other  # rest and host add up
        held[REST] -= other[CONTEXT] * ((one[ENGINES] & other[ENGINES]) != 0)
        held[OVER] = np.maximum(one[OVER], other[OVER])
        held[FIRST] = np.maximum(one[FIRST], other[FIRST])
        held[SECOND] = np.maximum(one[SECOND], np.minimum(one[FIRST], other[FIRST]))
        held[CONTEXT] = one[CONTEXT]
        held[ENGINES] = one[ENGINES] | other[ENGINES]
        picks = np.concatenate([before.picks, after.picks])
        return CombinedOptions(before.stages_s + after.stages_s, held, picks, self.sync_bytes, self.cut)

    def fitting(self, room_bytes: int, host_bytes: int, others: Sequence[CombinedOptions] = ()) -> CombinedOptions:
        """Return the ways that fit in what a plan may fill of a device, and in its share of the host.

        Of ways with which no way of the `others` fits, none comes back: each of them adds at least its least bytes.
        """
        rest_bytes = sum(int((each.held[REST] - each.held[CONTEXT]).min()) for each in others)
        more_host_bytes = sum(int(each.held[HOST].min()) for each in others)
        fits = (self.peak + rest_bytes <= room_bytes) & (self.held[HOST] + more_host_bytes <= host_bytes)
        return self if fits.all() else self.some(fits)

    def unbeaten(self, most: int | None = CARRIED_AT_MOST, *, bytes_too: bool = True) -> CombinedOptions:
        """Return the ways that no other beats in seconds of each stage and, if `bytes_too`, in bytes; fastest first.

        At most so many come back, and all of them for None.
        """
        if len(self) <= 1:
            return self
        order = np.lexsort((self.held[HOST], self.peak, self.stages_s.sum(axis=0)))
        told = np.concatenate([self.stages_s, self.held[:HELD]]) if bytes_too else self.stages_s
        told = told[:, order]
        left, kept = np.arange(len(order)), list[int]()
        while len(left) and (most is None or len(kept) < most):
            best = left[0]
            kept.append(int(best))
            left = left[1:][(told[:, left[1:]] < told[:, best, None]).any(axis=0)]
        return replace(self.some(order[kept]), cut=self.cut or len(left) > 0)
