"""The bytes on the devices of one pool with all its roles, in each phase of a step and in between.

Not here: the bytes of one role (`footprint`), and the error if they are too many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from placements.memory.footprint import Bytes, Footprint, Part, added, total_bytes

OF_A_PROCESS: tuple[Part, ...] = ("context", "rollout")
"""Parts that roles of one process share."""


@dataclass(frozen=True)
class PoolResident:
    """A role on a pool: its bytes, whether it `sleeps` while others work, and the process that it runs in.

    Roles of one process share its context, heap and responses; "" is a separate process. Roles of one `copy` share the
    weights; "" is a separate copy.
    """

    role: str
    footprint: Footprint
    sleeps: bool = False
    process: str = ""
    copy: str = ""

    @property
    def resting(self) -> Bytes:
        """Return the bytes on a device, by part, while other roles work: `asleep` if `sleeps` is set, or `resident`."""
        return self.footprint.asleep if self.sleeps else self.footprint.resident

    @property
    def without_cache(self) -> Bytes:
        """Return the resident bytes on a device by part, without the cache if the role `sleeps`.

        A role that sleeps has no cache while it wakes or goes to sleep.
        """
        resident = self.footprint.resident
        return _without(resident, "kv_cache") if self.sleeps else resident


@dataclass(frozen=True)
class PhaseTurn:
    """One phase of a step: the role that works, and the trained role from which it gets weights first, if any.

    `sync_bytes` pass through the devices during that sync; None means two buckets.
    """

    phase: str
    role: str
    synced_from: str = ""
    sync_bytes: int | None = None


@dataclass(frozen=True)
class PoolPeak:
    """The bytes on each device at one moment: in a phase, or before it (`entering`), while the previous role leaves.

    `roles` has the bytes of each role by part; `role` is the one that works or wakes.
    """

    phase: str
    role: str
    entering: bool
    roles: Mapping[str, Bytes]

    @property
    def peak_bytes(self) -> int:
        """Return the sum of the bytes of all roles on a device."""
        return sum(total_bytes(parts) for parts in self.roles.values())

    @property
    def parts(self) -> Bytes:
        """Return the bytes on a device by part, summed over all roles."""
        return added(self.roles.values())


def pool_peaks(
    residents: Sequence[PoolResident], turns: Sequence[PhaseTurn], *, bucket_bytes: float = 0.0
) -> tuple[PoolPeak, ...]:
    """Return the memory peak of each phase on a pool's devices, in the order of a step.

    `residents` are all roles of the pool, and `turns` the phases of a step. If the role of a phase has to wake or to
    receive weights, and another role worked in the phase before, the peak of that moment precedes the peak of the
    phase. Steps repeat, so the first role wakes while the last one goes to sleep. A role that trains has gradients and
    the activations of an update only in its update.

    A role wakes before the previous one goes to sleep; a role that sleeps has no cache at that moment. Weights are
    synced then too, through two buffers of `bucket_bytes` bytes, one of them sent while the other is read, or in the
    bytes that the phase states. A sleeping source of weights copies only its weights back; if it is a third role, these
    are on the device first with the leaving role and then with the waking one, and the larger sum counts. Source: Sheng
    et al. 2024 (HybridFlow), arXiv 2409.19256, section 5.2; verl, which moves a trainer's optimizer to the host, loads
    the rollout's weights, moves the trainer's weights away, and then makes the cache.

    >>> f = Footprint(resident={"weights": 4}, working={"logits": 2}, asleep={"context": 1})
    >>> residents = [PoolResident("a", f, sleeps=True), PoolResident("b", f)]
    >>> peaks = pool_peaks(residents, [PhaseTurn("x", "a"), PhaseTurn("y", "b")])
    >>> [(each.phase, each.entering, each.peak_bytes) for each in peaks]
    [('x', True, 8), ('x', False, 10), ('y', False, 7)]
    """
    by_role = {resident.role: resident for resident in residents}
    peaks = list[PoolPeak]()
    for place, turn in enumerate(turns):
        leaving, waking = by_role[turns[place - 1].role], by_role[turn.role]
        if waking is not leaving and (waking.sleeps or turn.synced_from):
            peaks.append(_entering(residents, leaving, waking, turn, bucket_bytes))
        at_work = {turn.role: waking.footprint.at(turn.phase)}
        peaks.append(PoolPeak(turn.phase, turn.role, False, dict(_shared(residents, at_work, turn.role))))
    return tuple(peaks)


def worst(peaks: Iterable[PoolPeak]) -> PoolPeak | None:
    """Return the peak with the most bytes, the first of equal ones; None without peaks."""
    return max(peaks, key=lambda peak: peak.peak_bytes, default=None)


def _entering(
    residents: Sequence[PoolResident], leaving: PoolResident, waking: PoolResident, turn: PhaseTurn, bucket_bytes: float
) -> PoolPeak:
    leaves, wakes = {leaving.role: leaving.without_cache}, {waking.role: waking.without_cache}
    if turn.synced_from:
        passing = int(2 * bucket_bytes) if turn.sync_bytes is None else turn.sync_bytes
        wakes = {waking.role: added((waking.without_cache, {"sync": passing} if passing else {}))}

    def peak(awake: Mapping[str, Bytes]) -> PoolPeak:
        return PoolPeak(turn.phase, turn.role, True, dict(_shared(residents, awake, "")))

    source = next((resident for resident in residents if resident.role == turn.synced_from), None)
    if source is None or not source.sleeps:
        return peak(leaves | wakes)
    resident = source.footprint.resident
    sent: Bytes = {part: size for part, size in resident.items() if part in ("weights", "adapters")}
    weights = {source.role: added((source.footprint.asleep, sent))}
    second = peak(wakes | weights)
    first = second if source is leaving else peak(leaves | weights)
    return max(first, second, key=lambda peak: peak.peak_bytes)


def _shared(residents: Sequence[PoolResident], awake: Mapping[str, Bytes], working: str) -> Iterator[tuple[str, Bytes]]:
    """Yield what each role holds, the `awake` ones as given, the rest at rest.

    What roles of a process or of a copy share is left to the first of them, and a heap to the role that left most. The
    parts of the role that is `working` have its own use of the heap in them.
    """
    seen, copies = dict[tuple[str, Part], int](), set[str]()
    for resident in residents:
        parts: Bytes = awake.get(resident.role, resident.resting)
        for part in OF_A_PROCESS if resident.process else ():
            key = resident.process, part
            added_bytes = parts.get(part, 0) - seen.get(key, 0)
            seen[key] = max(seen.get(key, 0), parts.get(part, 0))
            changed: Bytes = {**parts, part: added_bytes}
            parts = changed if added_bytes > 0 else _without(parts, part)
        if resident.copy and resident.copy in copies:
            parts = _without(parts, "weights")
        copies.add(resident.copy)
        peers = [peer for peer in residents if peer is resident or (peer.process and peer.process == resident.process)]
        heap = 0
        if resident is max(peers, key=lambda peer: peer.footprint.kept_bytes):
            in_use = sum(peer.footprint.kept_bytes for peer in peers if peer.role == working)
            heap = resident.footprint.kept_bytes - in_use
        yield resident.role, added((parts, {"heap": heap})) if heap else parts


def _without(parts: Bytes, part: Part) -> Bytes:
    return {name: size for name, size in parts.items() if name != part}
