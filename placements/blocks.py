"""Roles that share a pool: the ways to run them together on so many devices, and what a search is offered of these.

Roles of a pool take turns, so their seconds add up; each holds something while another works, so their bytes do too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from flowgraph.plan import Layout
from placements.choices import Choice, Seat, Ways
from placements.folding import Columns
from placements.problem import Option
from placements.seconds import added
from placements.setting import Setting
from placements.topology import sizes
from placements.training import WEIGHT_BYTES
from placements.transitions import reshard_seconds, sync_seconds, wake_seconds

OFFERED_AT_MOST = 4  # ways to run a pool that the search weighs


@dataclass(frozen=True)
class Sitting:
    """One way to run some roles on one pool: busy seconds by stage, syncs last, and the most bytes of each device."""

    chosen: tuple[Choice, ...]
    stages_s: tuple[float, ...]
    peak_bytes: int
    host_bytes: int


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
    _firsts: dict[tuple[tuple[int, ...], Seat, bool], Columns] = field(
        default_factory=dict[tuple[tuple[int, ...], Seat, bool], Columns]
    )
    _folded: dict[tuple[tuple[int, ...], Seat, bool], Columns] = field(
        default_factory=dict[tuple[tuple[int, ...], Seat, bool], Columns]
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
        found = self._fastest(places, seat, shared)
        if not len(found.rest):
            found = self._all(places, seat, shared).unbeaten(OFFERED_AT_MOST, bytes_too=False)
            ways = [self.ways(place, seat).unbeaten for place in places]
        else:
            ways = [(choice,) for place in places if (choice := self.ways(place, seat).fastest) is not None]
        syncs = self._sync_s(block, seat)
        return [
            Sitting(
                chosen=tuple(own[pick] for own, pick in zip(ways, picks, strict=True)),
                stages_s=(*stages[:-1], stages[-1] + syncs),
                peak_bytes=peak,
                host_bytes=host,
            )
            for picks, stages, peak, host in zip(
                found.picks.tolist(), found.stages_s.tolist(), found.peak.tolist(), found.host.tolist(), strict=True
            )
        ]

    def _fastest(self, places: tuple[int, ...], seat: Seat, shared: bool) -> Columns:
        """Give each role its fastest way, which no other can beat; no row if that does not fit, or one has no such."""
        return self._fitting(self._first(places, seat, shared), seat)

    def _first(self, places: tuple[int, ...], seat: Seat, shared: bool) -> Columns:
        if not places:
            return self._nothing
        key = places, seat, shared
        if key not in self._firsts:
            choice = self.ways(places[-1], seat).fastest
            before = self._first(places[:-1], seat, shared)
            own = () if choice is None else (choice,)
            both = before.with_one_more(self._columns(own, places[-1], shared)) if own else before.rows([])
            self._firsts[key] = both
        return self._firsts[key]

    @cached_property
    def _nothing(self) -> Columns:
        return Columns.nothing(self.setting.stages + 1)

    def _all(self, places: tuple[int, ...], seat: Seat, shared: bool) -> Columns:
        """Give the ways to run the roles at these places, of a pool that is `shared` with drawing or is not."""
        if not places:
            return self._nothing
        key = places, seat, shared
        if key not in self._folded:
            own = self.ways(places[-1], seat).unbeaten
            before = self._all(places[:-1], seat, shared)
            both = before.with_one_more(self._columns(own, places[-1], shared)) if own else before.rows([])
            self._folded[key] = self._fitting(both, seat).unbeaten()
        return self._folded[key]

    def _fitting(self, found: Columns, seat: Seat) -> Columns:
        return found.fitting(seat.of.memory_bytes, seat.of.host_memory_bytes // seat.of.node_devices)

    def _columns(self, ways: Sequence[Choice], place: int, shared: bool) -> Columns:
        role = self.setting.roles[place]
        engines = sorted(set(self.setting.engines.values()))
        slowed = self.setting.host.slowed_share if shared and role.use == "train" else 1.0
        return Columns.of(ways, 1 << engines.index(self.setting.engines[role.use]), slowed)

    def ways(self, place: int, seat: Seat) -> Ways:
        """Give the ways to run one role there."""
        key = place, seat
        if key not in self._ways:
            self._ways[key] = Ways(self.setting, self.setting.roles[place], seat)
        return self._ways[key]

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
