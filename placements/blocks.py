"""Roles that share a pool: the ways to run them together on so many devices, and what a search is offered of these.

Roles of a pool take turns, so their seconds add up; each holds something while another works, so their bytes do too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import add

from flowgraph.plan import Layout
from placements.choices import Choice, Seat, Ways
from placements.footprint import MemoryConstants, fits
from placements.problem import Option
from placements.seconds import added
from placements.setting import Setting
from placements.steps import host_constants
from placements.topology import sizes
from placements.training import WEIGHT_BYTES
from placements.transitions import reshard_seconds, sync_seconds, wake_seconds

STATES_AT_MOST = 16  # ways to run the first roles of a pool that are carried on to the next one
SYNC_BYTES = int(2 * MemoryConstants().bucket_bytes)  # two buckets: one that is sent, one that is read
OFFERED_AT_MOST = 4  # ways to run a pool that the search weighs


@dataclass(frozen=True)
class Sitting:
    """One way to run some roles on one pool: busy seconds by stage, syncs last, and bytes on each device.

    `over_bytes` is the most that one role holds more while it works, `wakes_bytes` what the two largest bring that
    sleep: one may still be there while the other comes.
    """

    chosen: tuple[Choice, ...]
    stages_s: tuple[float, ...]
    rest_bytes: int = 0
    over_bytes: int = 0
    host_bytes: int = 0
    wakes_bytes: tuple[int, int] = (0, 0)
    engines: frozenset[str] = frozenset()

    @property
    def peak_bytes(self) -> int:
        """Give the most that a device holds while one of the roles works, or wakes before another is put away."""
        return self.rest_bytes + max(self.over_bytes, sum(self.wakes_bytes) + SYNC_BYTES * (len(self.chosen) > 1))

    def room_for(self, choice: Choice, seat: Seat) -> bool:
        """Say whether one role more can fit at all: a quick look, before all is added up."""
        rest_bytes = self.rest_bytes + choice.rest_bytes - choice.context_bytes
        return fits(rest_bytes + max(self.over_bytes, choice.over_bytes), seat.of.memory_bytes)

    def joined(self, choice: Choice, slowed: float) -> Sitting:
        """Give it with one role more, whose seconds are `slowed` times its own."""
        return Sitting(
            chosen=(*self.chosen, choice),
            stages_s=tuple(map(add, self.stages_s, [slowed * each for each in choice.stages_s])),
            rest_bytes=self.rest_bytes + choice.rest_bytes - choice.context_bytes * (choice.engine in self.engines),
            over_bytes=max(self.over_bytes, choice.over_bytes),
            host_bytes=self.host_bytes + choice.host_bytes,
            wakes_bytes=_two_largest(*self.wakes_bytes, choice.wakes_bytes),
            engines=self.engines | {choice.engine},
        )


@dataclass(frozen=True)
class Offered:
    """What an option of the search was made from: where, and how each role runs there."""

    seat: Seat
    sitting: Sitting


@dataclass
class Blocks:
    """The ways to run any block of roles, worked out once each."""

    setting: Setting
    _ways: dict[tuple[int, Seat], Ways] = field(default_factory=dict[tuple[int, Seat], Ways])
    _sittings: dict[tuple[tuple[int, ...], Seat, bool], list[Sitting]] = field(
        default_factory=dict[tuple[tuple[int, ...], Seat, bool], "list[Sitting]"]
    )

    @cached_property
    def seats(self) -> tuple[tuple[tuple[int, ...], Seat], ...]:
        """Give the seats of all classes, each with its devices by class; none where speeds are not known."""
        known = self.setting.classes
        found = (
            (tuple(devices if place == i else 0 for i in range(len(known))), of, devices, of.links(devices))
            for place, of in enumerate(known)
            for devices in sizes(of)
        )
        return tuple((taken, Seat(of, devices, links)) for taken, of, devices, links in found if links is not None)

    def options(self, block: frozenset[int]) -> Sequence[Option]:
        """Give what the search may choose from for a block of roles, by their places among the setting's roles."""
        return tuple(
            Option(devices=taken, stages_s=each.stages_s, cost=_price(seat), key=Offered(seat, each))
            for taken, seat in self.seats
            for each in self.sittings(block, seat)[:OFFERED_AT_MOST]
        )

    def sittings(self, block: frozenset[int], seat: Seat) -> list[Sitting]:
        """Give the ways to run a block there that fit, fastest first; none beats another in every stage."""
        places, shared = tuple(sorted(block)), any(self.setting.roles[place].use == "sample" for place in block)
        fastest = self._fastest(places, seat, shared)
        found = [fastest] if fastest is not None else self._seated(places, seat, shared)
        syncs = self._sync_s(block, seat)
        done = [replace(each, stages_s=(*each.stages_s[:-1], each.stages_s[-1] + syncs)) for each in found]
        return done if fastest is not None else _fastest(done)

    def _fastest(self, places: tuple[int, ...], seat: Seat, shared: bool) -> Sitting | None:
        """Give each role its fastest way, which no other can beat if it fits; None if it does not, or has no such."""
        sitting = self._empty
        for place in places:
            choice = self.ways(place, seat).fastest
            if choice is None:
                return None
            sitting = sitting.joined(choice, self._slowing(place, shared))
        return sitting if self._fits(sitting, seat) else None

    @cached_property
    def _empty(self) -> Sitting:
        return Sitting((), (0.0,) * (self.setting.stages + 1))

    def _seated(self, places: tuple[int, ...], seat: Seat, shared: bool) -> list[Sitting]:
        """Give the ways to run the roles at these places, of a pool that is `shared` with drawing or is not."""
        if not places:
            return [self._empty]
        key = places, seat, shared
        if key not in self._sittings:
            slowed = self._slowing(places[-1], shared)
            before, own = self._seated(places[:-1], seat, shared), self.ways(places[-1], seat).unbeaten
            pairs = ((sitting, choice) for sitting in before for choice in own if sitting.room_for(choice, seat))
            joined = (sitting.joined(choice, slowed) for sitting, choice in pairs)
            self._sittings[key] = _unbeaten([each for each in joined if self._fits(each, seat)])
        return self._sittings[key]

    def ways(self, place: int, seat: Seat) -> Ways:
        """Give the ways to run one role there."""
        key = place, seat
        if key not in self._ways:
            self._ways[key] = Ways(self.setting, self.setting.roles[place], seat)
        return self._ways[key]

    def _slowing(self, place: int, shared: bool) -> float:
        return self._slowed if shared and self.setting.roles[place].use == "train" else 1.0

    @cached_property
    def _slowed(self) -> float:
        return host_constants(self.setting.calibrated.get("host")).slowed_share

    def _fits(self, sitting: Sitting, seat: Seat) -> bool:
        host_room = seat.of.host_memory_bytes // seat.of.node_devices
        return fits(sitting.peak_bytes, seat.of.memory_bytes) and sitting.host_bytes <= host_room

    def _sync_s(self, block: frozenset[int], seat: Seat) -> float:
        """Give a pool's own part of bringing weights from where they are trained to where they draw.

        Both ends of a sync are busy as long as the slower one, which the search's largest over pools makes of these.
        """
        names = {self.setting.roles[place].name for place in block}
        total = 0.0
        for target, source in self.setting.synced.items():
            total += sync_s(self.setting, seat, source in names, target in names, target)
        return total


def _price(seat: Seat) -> float:
    """Give what a seat costs for a second."""
    return (seat.of.price_per_hour or 0.0) / 3600 * seat.devices


def _two_largest(*values: int) -> tuple[int, int]:
    first, second, *_ = sorted(values, reverse=True)
    return first, second


def sync_s(setting: Setting, seat: Seat, trains: bool, draws: bool, target: str) -> float:
    """Give the seconds that a pool spends on one sync, as the one that trains, that draws, or both; 0 if neither."""
    role = next(each for each in setting.roles if each.name == target)
    shape, links = setting.shape(role), seat.links
    size_bytes = WEIGHT_BYTES * shape.trained
    if trains and draws:
        layouts = Layout(data=seat.devices, sharding="full"), Layout(data=seat.devices)
        moved = reshard_seconds(size_bytes, tensors(shape.layers), *layouts, links)
        return added([moved, wake_seconds(size_bytes, links.device)]).total_s or 0.0
    if trains or draws:
        sent = sync_seconds(size_bytes, tensors(shape.layers), links, seat.devices, links, seat.devices)
        return sent.total_s or 0.0
    return 0.0


def tensors(layers: int) -> int:
    """Give about how many tensors the weights of a decoder are: nine a layer, and three besides."""
    return 9 * layers + 3


def _unbeaten(found: Sequence[Sitting]) -> list[Sitting]:
    """Keep what no other beats in seconds of every stage and in bytes, the fastest of these."""
    kept = list[Sitting]()
    for each in sorted(found, key=_order):
        if not any(_beats(other, each) for other in kept):
            kept.append(each)
            if len(kept) == STATES_AT_MOST:
                break
    return kept


def _order(sitting: Sitting) -> tuple[float, int, int]:
    return sum(sitting.stages_s), sitting.peak_bytes, sitting.host_bytes


def _beats(one: Sitting, other: Sitting) -> bool:
    return (
        one.rest_bytes <= other.rest_bytes
        and one.over_bytes <= other.over_bytes
        and one.wakes_bytes <= other.wakes_bytes
        and one.host_bytes <= other.host_bytes
        and all(a <= b for a, b in zip(one.stages_s, other.stages_s, strict=True))
    )


def _fastest(found: Sequence[Sitting]) -> list[Sitting]:
    """Keep what no other beats in the seconds of every stage."""
    kept = list[Sitting]()
    for each in sorted(found, key=_order):
        if not any(all(a <= b for a, b in zip(o.stages_s, each.stages_s, strict=True)) for o in kept):
            kept.append(each)
    return kept
