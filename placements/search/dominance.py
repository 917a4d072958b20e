"""Options as data, of one role and of roles combined in a pool, and those that no other dominates.

Combinations are columns of numbers, so that thousands of them are weighed at once. Not here: which options a role has
(`role_options`), and what a search is offered (`pool_options`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flowgraph.cluster.plan import Layout, RoleSettings
from placements.memory.footprint import MemoryConstants

SYNC_BYTES = int(2 * MemoryConstants().bucket_bytes)  # two buckets: one that is sent, one that is read
CARRIED_AT_MOST = 256  # combinations of the first roles of a pool that are carried on to the next one

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Rows of bytes on each device: those while others work, the most that one role adds while it works, what the two
# largest sleeping roles bring, those of its share of the host, of the last role's process, and a bit for each engine
# whose process is there.
REST, OVER, FIRST, SECOND, HOST, CONTEXT, ENGINES = range(7)
MINIMISED = 5  # rows in which fewer bytes are better
MAX_BYTES = 2**58  # more than any device has, and few enough that those of 16 roles are still an integer here


@dataclass(frozen=True)
class RoleOption:
    """One way to run a role: busy seconds by stage, and bytes on each device while others work and while it works.

    `wakes_bytes` come to the device before a sleeping role works. `context_bytes` are those of its process, which roles
    of one engine share. `host_bytes` are of each device's share of host memory.
    """

    engine: str
    layout: Layout
    running: RoleSettings
    stages_s: tuple[float, ...]
    rest_bytes: int
    peak_bytes: int
    host_bytes: int
    wakes_bytes: int = 0
    context_bytes: int = 0
    moved_s: float = 0.0
    """The part of its seconds in which offloaded or sleeping state comes and goes: in the stage of its last load."""
    woken_s: float = 0.0
    """The part of `moved_s` in which sleeping state comes and goes: as it is played, not always in that stage."""
    ready_s: float = 0.0
    """Seconds besides, in which a rollout engine wakes and installs new weights; its layout decides them."""

    @property
    def last_stage(self) -> int:
        """Return the stage of its last load."""
        return max((stage for stage, seconds in enumerate(self.stages_s) if seconds), default=0)

    @property
    def over_bytes(self) -> int:
        """Return the bytes that it holds only while it works."""
        return self.peak_bytes - self.rest_bytes

    def dominates(self, option: RoleOption) -> bool:
        """Return whether this option is as good in every number, so that the other need not be considered."""
        return (
            not slower_somewhere(self.stages_s, option.stages_s)
            and self.ready_s <= option.ready_s
            and self.rest_bytes <= option.rest_bytes
            and self.over_bytes <= option.over_bytes
            and self.wakes_bytes <= option.wakes_bytes
            and self.host_bytes <= option.host_bytes
        )


@dataclass(frozen=True, eq=False)
class TimedLayout:
    """One layout of a role on an engine with all its state on its devices, and the seconds of each stage."""

    engine: str
    layout: Layout
    running: RoleSettings
    stages_s: tuple[float, ...]


def slower_somewhere(stages_s: Sequence[float], compared_s: Sequence[float]) -> bool:
    """Return whether the first takes longer in any stage."""
    return any(a > b for a, b in zip(stages_s, compared_s, strict=True))


def undominated(options: Iterable[RoleOption]) -> list[RoleOption]:
    """Return the options that no other dominates, the fastest first; of equals the first."""
    front = list[RoleOption]()
    for option in sorted(options, key=lambda option: (sum(option.stages_s), option.rest_bytes, option.peak_bytes)):
        if not any(better.dominates(option) for better in front):
            front.append(option)
    return front


@dataclass(frozen=True)
class CombinedOptions:
    """Ways to run some roles on one pool, one a column: `picks` says which option of each role it takes.

    `stages_s` has a row for each stage, `memory` one for each kind of bytes named above, `picks` one for each role.
    `sync_bytes` pass through a device when weights are brought to one of several roles. `cut` says that more ways were
    undominated than were carried on, so that a faster one may be missing.
    """

    stages_s: Floats
    memory: Ints
    picks: Ints
    sync_bytes: int = SYNC_BYTES
    cut: bool = False

    @classmethod
    def nothing(cls, stages: int, sync_bytes: int = SYNC_BYTES) -> Self:
        """Return the one way to run no role."""
        return cls(np.zeros((stages, 1)), np.zeros((7, 1), np.int64), np.zeros((0, 1), np.int64), sync_bytes)

    @classmethod
    def of(cls, options: Sequence[RoleOption], bit: int, slowed: float) -> Self:
        """Return the ways to run one role, whose work takes `slowed` times its seconds."""
        rows = [
            (option.rest_bytes, option.over_bytes, option.wakes_bytes, 0, option.host_bytes, option.context_bytes, bit)
            for option in options
        ]
        memory = [[min(number, MAX_BYTES) for number in row] for row in rows]
        stages_s = slowed * np.array([option.stages_s for option in options], float)
        for index, option in enumerate(options):
            stages_s[index, -1] += option.ready_s
            stages_s[index, option.last_stage] -= (slowed - 1) * option.moved_s
        return cls(stages_s.T, np.array(memory, np.int64).T, np.arange(len(options), dtype=np.int64)[None])

    def __len__(self) -> int:
        """Count the ways."""
        return int(self.memory.shape[1])

    @property
    def peak(self) -> Ints:
        """Return the most that a device holds while a role works, or wakes before another is put away."""
        syncs = self.sync_bytes if len(self.picks) > 1 else 0
        memory = self.memory
        peak: Ints = memory[REST] + np.maximum(memory[OVER], memory[FIRST] + memory[SECOND] + syncs)
        return peak

    def columns(self) -> tuple[list[list[int]], list[list[float]], list[int], list[int]]:
        """Return of each way the options of its roles, the seconds of its stages, and its bytes: peak, then host."""
        return self.picks.T.tolist(), self.stages_s.T.tolist(), self.peak.tolist(), self.memory[HOST].tolist()

    def some(self, which: Any) -> CombinedOptions:
        """Return the ways that an index or a mask of numpy selects."""
        stages_s, memory, picks = self.stages_s[:, which], self.memory[:, which], self.picks[:, which]
        return CombinedOptions(stages_s, memory, picks, self.sync_bytes, self.cut)

    def with_one_more(self, role: CombinedOptions) -> CombinedOptions:
        """Return every way of these roles with every way of one more; engines share the context of their process."""
        before, after = self, role
        if len(self) != 1 or len(role) != 1:
            first, second = np.divmod(np.arange(len(self) * len(role)), len(role))
            before, after = self.some(first), role.some(second)
        a, b = before.memory, after.memory
        memory = a + b  # rest and host add up
        memory[REST] -= b[CONTEXT] * ((a[ENGINES] & b[ENGINES]) != 0)
        memory[OVER] = np.maximum(a[OVER], b[OVER])
        memory[FIRST] = np.maximum(a[FIRST], b[FIRST])
        memory[SECOND] = np.maximum(a[SECOND], np.minimum(a[FIRST], b[FIRST]))
        memory[CONTEXT] = a[CONTEXT]
        memory[ENGINES] = a[ENGINES] | b[ENGINES]
        picks = np.concatenate([before.picks, after.picks])
        return CombinedOptions(before.stages_s + after.stages_s, memory, picks, self.sync_bytes, self.cut)

    def fitting(self, room_bytes: int, host_bytes: int, rest: Sequence[CombinedOptions] = ()) -> CombinedOptions:
        """Return the ways that fit in what a plan may fill of a device, and in its share of the host.

        Ways that leave no room for the roles of `rest` are left out: each of those adds at least its minimum.
        """
        rest_bytes = sum(int((role.memory[REST] - role.memory[CONTEXT]).min()) for role in rest)
        rest_host_bytes = sum(int(role.memory[HOST].min()) for role in rest)
        fits = (self.peak + rest_bytes <= room_bytes) & (self.memory[HOST] + rest_host_bytes <= host_bytes)
        return self if fits.all() else self.some(fits)

    def undominated(self, maximum: int | None = CARRIED_AT_MOST, *, bytes_too: bool = True) -> CombinedOptions:
        """Return the ways that no other beats in seconds of each stage and, if `bytes_too`, in bytes; fastest first.

        At most `maximum` come back; None is all of them.
        """
        if len(self) <= 1:
            return self
        order = np.lexsort((self.memory[HOST], self.peak, self.stages_s.sum(axis=0)))
        numbers = np.concatenate([self.stages_s, self.memory[:MINIMISED]]) if bytes_too else self.stages_s
        numbers = numbers[:, order]
        left, front = np.arange(len(order)), list[int]()
        while len(left) and (maximum is None or len(front) < maximum):
            best = left[0]
            front.append(int(best))
            left = left[1:][(numbers[:, left[1:]] < numbers[:, best, None]).any(axis=0)]
        return replace(self.some(order[front]), cut=self.cut or len(left) > 0)
