"""What the devices of one pool hold with all its roles, phase by phase, and in between: who works, waits or sleeps.

Structure only. Not here: what one role holds (`footprint`), and what is said when it is too much.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flowgraph.cluster.cluster import DeviceKind
from placements.footprint import Bytes, Footprint, Part, added, room_bytes, total_bytes


@dataclass(frozen=True)
class Held:
    """A role on a pool: what it holds, whether it `sleeps` while others work, and the process that it runs in.

    Roles of one process have one context, one heap, and the same responses; no name is a process of its own. Roles of
    one `copy` have one copy of the weights; no name is a copy of its own.
    """

    role: str
    footprint: Footprint
    sleeps: bool = False
    process: str = ""
    copy: str = ""


@dataclass(frozen=True)
class Turn:
    """One phase of a step: the role that works then, and the trained role whose weights it is given first, if any.

    `sync_bytes` pass through the devices then; None: two buckets.
    """

    phase: str
    role: str
    synced_from: str = ""
    sync_bytes: int | None = None


@dataclass(frozen=True)
class PoolPeak:
    """What is held at once on each device: in a phase, or on the way to it (`entering`) while another role leaves.

    `roles` has the bytes of each role by part, and `role` is the one that works or wakes.
    """

    phase: str
    role: str
    entering: bool
    roles: Mapping[str, Bytes]

    @property
    def peak_bytes(self) -> int:
        """Return the sum of all roles."""
        return sum(total_bytes(parts) for parts in self.roles.values())

    @property
    def parts(self) -> Bytes:
        """Return the bytes of all roles together, part by part."""
        return added(self.roles.values())


@dataclass(frozen=True)
class Overflow:
    """A peak that does not count as fitting, and by how many bytes on each device."""

    peak: PoolPeak
    over_bytes: int


def pool_peaks(held: Sequence[Held], turns: Sequence[Turn], *, bucket_bytes: float = 0.0) -> tuple[PoolPeak, ...]:
    """Return the peak of each phase, and before it that of waking the role that works in it, in the order of a step.

    A role that trains holds what an update takes in its update only; reading rows, it keeps nothing for gradients.
    A step follows a step, so the first role wakes while the last falls asleep. A role wakes before the other is put
    away; caches are gone then, or not yet there. Weights are synced then too, through two buckets of so many bytes, one
    that is sent and one that is read. A source that sleeps has its weights alone there, and where that is a third role
    it takes the place of the one that leaves before the one that draws wakes.
    Source: Sheng et al. 2024 (HybridFlow), arXiv 2409.19256, section 5.2; verl: a trainer's optimizer is put away, the
    rollout's weights are resumed and filled, the trainer's are put away, the cache is resumed.

    >>> f = Footprint(resident={"weights": 4}, working={"logits": 2}, asleep={"context": 1})
    >>> peaks = pool_peaks([Held("a", f, sleeps=True), Held("b", f)], [Turn("x", "a"), Turn("y", "b")])
    >>> [(each.phase, each.entering, each.peak_bytes) for each in peaks]
    [('x', True, 8), ('x', False, 10), ('y', False, 7)]
    """
    found = list[PoolPeak]()
    for place, turn in enumerate(turns):
        entering = _entering(held, turns[place - 1].role, turn, bucket_bytes)
        found += [each for each in (entering, _working(held, turn)) if each is not None]
    return tuple(found)


def worst(peaks: Iterable[PoolPeak]) -> PoolPeak | None:
    """Return the largest peak, the first of equals; None if there is none."""
    return max(peaks, key=lambda each: each.peak_bytes, default=None)


def overflows(peaks: Iterable[PoolPeak], usable_bytes: int, kind: DeviceKind = "gpu") -> tuple[Overflow, ...]:
    """Return the peaks that are too much for a device, and what each has beyond what counts as fitting."""
    most = room_bytes(usable_bytes, kind)
    return tuple(Overflow(each, each.peak_bytes - most) for each in peaks if each.peak_bytes > most)


def _working(held: Sequence[Held], turn: Turn) -> PoolPeak:
    return _peak(held, turn, False, {turn.role: _of(held, turn.role).footprint.at(turn.phase)})


def _entering(held: Sequence[Held], leaving: str, turn: Turn, bucket_bytes: float) -> PoolPeak | None:
    """Return the peak of waking a role while the one before it is still there; None if none wakes and nothing moves."""
    wakes, goes = _of(held, turn.role), _of(held, leaving)
    if wakes is goes or not (wakes.sleeps or turn.synced_from):
        return None
    source = next((each for each in held if each.role == turn.synced_from), None)
    there = {leaving: _without_cache(goes), turn.role: _without_cache(wakes)}
    if turn.synced_from:
        passing = int(2 * bucket_bytes) if turn.sync_bytes is None else turn.sync_bytes
        there[turn.role] = added((there[turn.role], {"sync": passing} if passing else {}))
    if source is None or not source.sleeps:
        return _peak(held, turn, True, there)
    weights = {source.role: added((source.footprint.asleep, _weights(source.footprint)))}
    second = _peak(held, turn, True, {turn.role: there[turn.role]} | weights)
    first = second if source is goes else _peak(held, turn, True, {leaving: there[leaving]} | weights)
    return max(first, second, key=lambda each: each.peak_bytes)


def _without_cache(held: Held) -> Bytes:
    return _less(held.footprint.resident, "kv_cache") if held.sleeps else held.footprint.resident


def _weights(footprint: Footprint) -> Bytes:
    return {part: count for part, count in footprint.resident.items() if part in ("weights", "adapters")}


def _peak(held: Sequence[Held], turn: Turn, entering: bool, told: Mapping[str, Bytes]) -> PoolPeak:
    """Return a peak: what roles are `told` to hold, and of each other what is there while it rests."""
    resting = {each.role: each.footprint.asleep if each.sleeps else each.footprint.resident for each in held}
    working = "" if entering else turn.role
    return PoolPeak(turn.phase, turn.role, entering, dict(_shared(held, resting | dict(told), working)))


def _shared(held: Sequence[Held], roles: Mapping[str, Bytes], working: str) -> Iterator[tuple[str, Bytes]]:
    """Leave what roles of a process or of a copy share to the first of them, and a heap to the role that left most.

    The parts of the role that is `working` have its own use of the heap in them.
    """
    seen, copies = dict[tuple[str, Part], int](), set[str]()
    for each in held:
        parts: Bytes = roles[each.role]
        for part in _OF_A_PROCESS if each.process else ():
            more = parts.get(part, 0) - seen.get((each.process, part), 0)
            seen[each.process, part] = max(seen.get((each.process, part), 0), parts.get(part, 0))
            changed: Bytes = {**parts, part: more}
            parts = changed if more > 0 else _less(parts, part)
        if each.copy and each.copy in copies:
            parts = _less(parts, "weights")
        copies.add(each.copy)
        heap = _left_in_heap(held, each, working)
        left: Bytes = {"heap": heap}
        yield each.role, added((parts, left)) if heap else parts


_OF_A_PROCESS: tuple[Part, ...] = ("context", "rollout")


def _left_in_heap(held: Sequence[Held], one: Held, working: str) -> int:
    """Return what a process keeps of the role that left most in its heap, beyond what the role at work has of it."""
    peers = [each for each in held if each is one or (one.process and each.process == one.process)]
    if one is not max(peers, key=lambda each: each.footprint.kept):
        return 0
    return one.footprint.kept - sum(each.footprint.kept for each in peers if each.role == working)


def _less(parts: Bytes, gone: Part) -> Bytes:
    return {part: count for part, count in parts.items() if part != gone}


def _of(held: Sequence[Held], role: str) -> Held:
    return next(each for each in held if each.role == role)
