"""Options of one role and of roles combined in a pool, as arrays, and the options that no other dominates.

Combinations are columns of numbers, so that thousands of them are compared at once. Not here: which options a role has
(`role_options`), and which options the search receives (`pool_options`).
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
    """One way to run a role: its busy seconds by stage, and its bytes on each device at rest and at work.

    `wakes_bytes` are copied to the device before a sleeping role works. `context_bytes` are those of the role's
    process, which roles on one engine share. `host_bytes` are in each device's share of host memory.
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
    """The part of its seconds in which offloaded or sleeping state is moved; counted in the stage of its last load."""
    woken_s: float = 0.0
    """The part of `moved_s` in which sleeping state is moved; in the simulated step it may fall in another stage."""
    ready_s: float = 0.0
    """Additional seconds in which a rollout engine wakes and installs new weights; they depend on its layout."""

    @property
    def last_stage(self) -> int:
        """Return the index of the last stage in which the role is busy; 0 if it never is."""
        return max((stage for stage, seconds in enumerate(self.stages_s) if seconds), default=0)

    @property
    def over_bytes(self) -> int:
        """Return the bytes that the role has on a device only while it works."""
        return self.peak_bytes - self.rest_bytes

    def dominates(self, option: RoleOption) -> bool:
        """Return whether this option takes at most the seconds of `option` in each respect, and at most its bytes.

        The seconds are those of each stage and those to be ready after a weight sync. The bytes are those at rest,
        those added at work, those copied to wake, and those on the host.
        """
        return (
            not slower_somewhere(self.stages_s, option.stages_s)
            and self.ready_s <= option.ready_s
            and self.rest_bytes <= option.rest_bytes
            and self.over_bytes <= option.over_bytes
            and self.wakes_bytes <= option.wakes_bytes
            and self.host_bytes <= option.host_bytes
        )


def slower_somewhere(stages_s: Sequence[float], compared_s: Sequence[float]) -> bool:
    """Return whether `stages_s` has more seconds than `compared_s` in any stage; both have the same stages."""
    return any(a > b for a, b in zip(stages_s, compared_s, strict=True))


def undominated(options: Iterable[RoleOption]) -> list[RoleOption]:
    """Return the options that no other dominates, by ascending seconds; of options with equal numbers, only the first.

    Options with equal seconds are in the order of their bytes at rest, then at peak.
    """

    def order(option: RoleOption) -> tuple[object, ...]:
        """Return a key that no option shares with, or has above, one that it dominates, unless both are equal."""
        first = sum(option.stages_s), option.rest_bytes, option.peak_bytes
        return *first, option.ready_s, option.wakes_bytes, option.host_bytes, option.stages_s

    front = list[RoleOption]()
    for option in sorted(options, key=order):
        if not any(better.dominates(option) for better in front):
            front.append(option)
    return front


@dataclass(frozen=True)
class CombinedOptions:
    """Ways to run some roles on one pool, as columns of arrays.

    `stages_s` [stage, way] are seconds, `memory` [kind, way] the kinds of bytes listed above (REST, OVER, ...), and
    `picks` [role, way] the index of each role's option. `sync_bytes` are reserved on a device for copying weights to
    one of several roles. `cut` is True if some undominated ways were dropped, so that a faster way may be missing.
    """

    stages_s: Floats
    memory: Ints
    picks: Ints
    sync_bytes: int = SYNC_BYTES
    cut: bool = False

    @classmethod
    def nothing(cls, stages: int, sync_bytes: int = SYNC_BYTES) -> Self:
        """Return one way that runs no role and takes no seconds and no bytes, as a start to which roles are added.

        `stages` counts the stages, with the last one for weight syncs. `sync_bytes` are reserved as in the class.
        """
        return cls(np.zeros((stages, 1)), np.zeros((7, 1), np.int64), np.zeros((0, 1), np.int64), sync_bytes)

    @classmethod
    def of(cls, options: Sequence[RoleOption], bit: int, slowed: float) -> Self:
        """Return the ways to run one role, one for each of `options`.

        The work of the role, except moving its state, takes `slowed` times its seconds; `ready_s` is added to the last
        stage, that of weight syncs. `bit` is a bit mask that identifies the process of the role's engine.
        """
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
        return int(self.memory.shape[1])

    @property
    def peak(self) -> Ints:
        """Return the peak bytes of a device for each way [way]: while a role works, or wakes before another sleeps."""
        syncs = self.sync_bytes if len(self.picks) > 1 else 0
        memory = self.memory
        peak: Ints = memory[REST] + np.maximum(memory[OVER], memory[FIRST] + memory[SECOND] + syncs)
        return peak

    def columns(self) -> tuple[list[list[int]], list[list[float]], list[int], list[int]]:
        """Return four lists with one entry per way: option indices of its roles, stage seconds, peak and host bytes."""
        return self.picks.T.tolist(), self.stages_s.T.tolist(), self.peak.tolist(), self.memory[HOST].tolist()

    def some(self, which: Any) -> CombinedOptions:
        """Return only the ways that a NumPy index or mask selects."""
        stages_s, memory, picks = self.stages_s[:, which], self.memory[:, which], self.picks[:, which]
        return CombinedOptions(stages_s, memory, picks, self.sync_bytes, self.cut)

    def with_one_more(self, role: CombinedOptions) -> CombinedOptions:
        """Return every combination of these ways with the ways of one more role.

        Roles whose engines share a process count the bytes of its context once.
        """
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
        """Return the ways that fit in `room_bytes` of a device and in `host_bytes` of host memory.

        For each role in `rest`, which is still to be added, the fewest bytes at rest of any of its ways are reserved,
        without the context of its process, and the fewest on the host.
        """
        rest_bytes = sum(int((role.memory[REST] - role.memory[CONTEXT]).min()) for role in rest)
        rest_host_bytes = sum(int(role.memory[HOST].min()) for role in rest)
        fits = (self.peak + rest_bytes <= room_bytes) & (self.memory[HOST] + rest_host_bytes <= host_bytes)
        return self if fits.all() else self.some(fits)

    def undominated(self, maximum: int | None = CARRIED_AT_MOST, *, bytes_too: bool = True) -> CombinedOptions:
        """Return the ways that no other way dominates, fastest first; of equal ways, only the first.

        A way dominates another if it takes no more seconds in any stage and, if `bytes_too`, no more bytes of any kind.
        At most `maximum` of these ways are returned; if there are more, the slowest are dropped and `cut` of the result
        is True. None returns all.
        """
        if len(self) <= 1:
            return self
        numbers = np.concatenate([self.stages_s, self.memory[:MINIMISED]]) if bytes_too else self.stages_s
        # In this order, no way comes after one that it dominates.
        order = np.lexsort((*numbers, self.memory[HOST], self.peak, self.stages_s.sum(axis=0)))
        numbers = numbers[:, order]
        left, front = np.arange(len(order)), list[int]()
        while len(left) and (maximum is None or len(front) < maximum):
            best = left[0]
            front.append(int(best))
            left = left[1:][(numbers[:, left[1:]] < numbers[:, best, None]).any(axis=0)]
        return replace(self.some(order[front]), cut=self.cut or len(left) > 0)
