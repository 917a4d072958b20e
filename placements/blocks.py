"""Roles that share a pool: the ways to run them together on so many devices, and what a search is offered of these.

Roles of a pool take turns, so their seconds add up; each holds something while another works, so their bytes do too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import fsum, inf
from typing import TYPE_CHECKING

from flowgraph.analysis.roles import USES, Role
from flowgraph.cluster.plan import Layout
from placements.barriers import Barriers, barriers_of
from placements.choices import Ways
from placements.collectives import network_bytes_per_s
from placements.folding import HOST, SYNC_BYTES, Columns
from placements.footprint import room_bytes
from placements.problem import Option
from placements.role_costs import Seat, process_of
from placements.seconds import added
from placements.setting import Setting
from placements.topology import sizes
from placements.training import WEIGHT_BYTES
from placements.transitions import reshard_seconds, sync_seconds, wake_seconds
from placements.ways import Choice

if TYPE_CHECKING:
    from flowgraph.models import ModelShape

ANY_ROLE = Role("", "", "infer", ())


@dataclass(frozen=True)
class Sitting:
    """One way to run some roles on one pool: busy seconds by stage, syncs last, and the most bytes of each device."""

    chosen: tuple[Choice, ...]
    stages_s: tuple[float, ...]
    peak_bytes: int
    host_bytes: int


@dataclass(frozen=True, eq=False)
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
    cut: bool = False
    """Whether of a pool that fits only the fastest ways to run its first roles were combined with those of the next."""

    _alone: dict[tuple[int, Seat, bool, bool], Columns] = field(
        default_factory=dict[tuple[int, Seat, bool, bool], Columns]
    )

    _offered: dict[tuple[frozenset[int], Seat], Sequence[Option]] = field(
        default_factory=dict[tuple[frozenset[int], Seat], Sequence[Option]]
    )
    _least: dict[tuple[int, Seat], float] = field(default_factory=dict[tuple[int, Seat], float])
    _syncs: dict[tuple[Seat, bool, bool, str], float] = field(default_factory=dict[tuple[Seat, bool, bool, str], float])
    _least_syncs: dict[tuple[Seat, str, Layout | None, Layout | None], float] = field(
        default_factory=dict[tuple[Seat, str, Layout | None, Layout | None], float]
    )

    @cached_property
    def seats(self) -> tuple[tuple[tuple[int, ...], Seat], ...]:
        """Return the seats of all classes, each with its devices by class; none where speeds are not known."""
        known = self.setting.classes
        found = (
            (tuple(devices if place == i else 0 for i in range(len(known))), of, devices, of.links(devices))
            for place, of in enumerate(known)
            for devices in sizes(of)
        )
        return tuple((taken, Seat(of, devices, links)) for taken, of, devices, links in found if links is not None)

    def options(self, block: frozenset[int], most_s: float = inf) -> Sequence[Option]:
        """Return what the search may choose from for a block of roles, by their places among the setting's roles.

        Sizes at which the roles take more than `most_s` whatever they do are left out before more is worked out.
        """
        return tuple(
            option
            for taken, seat in self.seats
            if self._least_s(block, seat) <= most_s
            for option in self._options(block, taken, seat)
        )

    def _options(self, block: frozenset[int], taken: tuple[int, ...], seat: Seat) -> Sequence[Option]:
        key = block, seat
        if key not in self._offered:
            first = self._first_alike(block)
            if first == sorted(block):
                sittings = self.sittings(block, seat)
                self._offered[key] = [self._option(taken, seat, first, each) for each in sittings]
            else:
                others = self._options(frozenset(first), taken, seat)
                self._offered[key] = list(_exchanged(others, [sorted(first).index(place) for place in first]))
        return self._offered[key]

    def _first_alike(self, block: frozenset[int]) -> list[int]:
        """Return for each role of a block, in order, one that it can be exchanged with: the first that are left."""
        taken, found = dict[int, int](), list[int]()
        for place in sorted(block):
            others = self._alike[place]
            found.append(others[taken.get(others[0], 0)])
            taken[others[0]] = taken.get(others[0], 0) + 1
        return found

    @cached_property
    def _alike(self) -> list[list[int]]:
        """Return for each role the places of those that can be exchanged: as much work, models of the same sizes."""
        places = dict[object, list[int]]()
        kinds = [self._kind_of(place, role) for place, role in enumerate(self.setting.roles)]
        for place, kind in enumerate(kinds):
            places.setdefault(kind, []).append(place)
        return [places[kind] for kind in kinds]

    def _kind_of(self, place: int, role: Role) -> object:
        """Return what roles that can be exchanged have in common; the place of one that cannot be."""
        setting = self.setting
        if role.use != "infer" or any(place in group for group in setting.together):
            return place
        works = tuple(replace(load, node="", role=ANY_ROLE) for load in setting.loads_of(role))
        factors = tuple(setting.factor_of("forward", role.name, of.model) for of in setting.classes)
        whole = bool(setting.whole_rows.intersection(role.nodes))
        return setting.shape(role), works, factors, whole, self.barriers.beside.get(place)

    @cached_property
    def barriers(self) -> Barriers:
        """Return the spans of a step that no placement changes."""
        return barriers_of(self.setting)

    def _option(self, taken: tuple[int, ...], seat: Seat, places: Sequence[int], sitting: Sitting) -> Option:
        """Return a sitting with the seconds that its pool is busy in each span of a step at least, as it is played.

        The seconds in which roles go to sleep and wake are left out, since they may fall in another span. Those of
        offloading are not slowed by sampling on the same devices, though a sitting counts them so.
        """
        barriers, setting = self.barriers, self.setting
        spans_s, busy_s = [0.0] * barriers.spans, 0.0
        for stage, seconds in enumerate(sitting.stages_s[:-1]):
            spans_s[barriers.of_stage[stage]] += seconds
            busy_s += seconds
        shared = any(setting.roles[place].use == "sample" for place in places)
        for place, choice in zip(places, sitting.chosen, strict=True):
            slowed = setting.host.slowed_share if shared and setting.roles[place].use == "train" else 1.0
            last = choice.last_stage
            over_s = (slowed - 1) * choice.moved_s + choice.woken_s
            spans_s[barriers.of_stage[last]] -= over_s
            busy_s -= over_s
            for stage in barriers.beside.get(place, ()):
                spans_s[barriers.of_stage[stage]] -= slowed * choice.stages_s[stage] - over_s * (stage == last)
        for target, source in setting.synced.items():
            sync_s = barriers.synced * self._least_sync_s(places, seat, sitting, source, target)
            busy_s += sync_s
            spans_s[0] += sync_s if target in barriers.syncs else 0.0
        return Option(
            devices=taken,
            stages_s=tuple(barriers.share * max(own) for own in zip(spans_s, barriers.host_s, strict=True)),
            cost=_price(seat),
            key=Offered(seat, sitting),
            pool_s=busy_s if barriers.tokens > 1 else None,
        )

    def _least_sync_s(self, places: Sequence[int], seat: Seat, sitting: Sitting, source: str, target: str) -> float:
        """Return the seconds that a sync takes at least, by what this pool alone says of it; 0 if it has neither end.

        A pool that both trains and draws says all of it: none where both use one copy of the weights. Syncs between
        pools take no less than either end needs.
        """
        chosen = {self.setting.roles[place].name: own for place, own in zip(places, sitting.chosen, strict=True)}
        trains, draws = chosen.get(source), chosen.get(target)
        own = [(each.engine, each.layout, each.running) for each in (trains, draws) if each]
        if not own or own == own[:1] * 2:
            return 0.0
        key = seat, target, trains.layout if trains else None, draws.layout if draws else None
        if key not in self._least_syncs:
            self._least_syncs[key] = least_sync_s(self.setting, *key)
        return self._least_syncs[key]

    def together_s(self) -> float:
        """Return the seconds of a step of all roles on one pool of all devices; infinite if they do not fit."""
        everyone = frozenset(range(len(self.setting.roles)))
        found = [each for _, seat in self.seats[-1:] for each in self.sittings(everyone, seat)]
        return min((sum(each.stages_s) for each in found), default=inf)

    def _least_s(self, block: frozenset[int], seat: Seat) -> float:
        """Return what no way to run a block there is faster than: each role by itself, with nothing put away."""
        return sum(self._least_of(self._alike[place][0], seat) for place in block)

    def _least_of(self, place: int, seat: Seat) -> float:
        key = place, seat
        if key not in self._least:
            timed = self.ways(place, seat).timed
            self._least[key] = sum(timed[0].stages_s) if timed else inf
        return self._least[key]

    def sittings(self, block: frozenset[int], seat: Seat) -> list[Sitting]:
        """Return the ways to run a block there that fit, fastest first; none beats another in every stage."""
        places, shared = tuple(sorted(block)), any(self.setting.roles[place].use == "sample" for place in block)
        found, ways = self._fastest(places, seat, shared), [self.ways(place, seat).fastest for place in places]
        if not len(found):
            found, ways = self._in_turn(places, seat, shared), [self.ways(place, seat).unbeaten for place in places]
            self.cut = self.cut or found.cut
        return self._sittings(block, seat, found.unbeaten(None, bytes_too=False), ways)

    def every(self, block: frozenset[int]) -> list[Option]:
        """Return all ways to run a block on any seat that fit: each way of a role with each of the others."""
        places, found = tuple(sorted(block)), list[Option]()
        shared = any(self.setting.roles[place].use == "sample" for place in block)
        for taken, seat in self.seats:
            ways = [self.ways(place, seat).unbeaten for place in places]
            columns = _nothing(self.setting.stages + 1, seat)
            for place in places if all(ways) else ():
                columns = columns.with_one_more(self._own(place, seat, shared, fastest=False))
            if all(ways):
                made = self._sittings(block, seat, self._fitting(columns, seat), ways)
                found += [self._option(taken, seat, places, each) for each in made]
        return found

    def _sittings(
        self, block: frozenset[int], seat: Seat, found: Columns, ways: Sequence[Sequence[Choice]]
    ) -> list[Sitting]:
        syncs = self._sync_s(block, seat)
        return [
            Sitting(
                chosen=tuple(own[pick] for own, pick in zip(ways, picks, strict=True)),
                stages_s=(*stages[:-1], stages[-1] + syncs),
                peak_bytes=peak,
                host_bytes=host,
            )
            for picks, stages, peak, host in zip(
                found.picks.T.tolist(),
                found.stages_s.T.tolist(),
                found.peak.tolist(),
                found.held[HOST].tolist(),
                strict=True,
            )
        ]

    def _fastest(self, places: tuple[int, ...], seat: Seat, shared: bool) -> Columns:
        """Return the fastest ways of each role, which none can beat; none if not all fit, or a role has no such."""
        found = self._first(places, seat, shared)
        fitting = self._fitting(found, seat)
        return fitting if len(fitting) == len(found) else self._none

    def _first(self, places: tuple[int, ...], seat: Seat, shared: bool) -> Columns:
        if not places:
            return _nothing(self.setting.stages + 1, seat)
        key = places, seat, shared
        if key not in self._firsts:
            before, own = self._first(places[:-1], seat, shared), self._own(places[-1], seat, shared, fastest=True)
            self._firsts[key] = before.with_one_more(own) if len(before) and len(own) else self._none
        return self._firsts[key]

    @cached_property
    def _none(self) -> Columns:
        return Columns.nothing(self.setting.stages + 1).some([])

    def _in_turn(self, places: tuple[int, ...], seat: Seat, shared: bool) -> Columns:
        """Return ways to run the roles at these places that fit, of a pool that is `shared` with drawing or is not.

        If none of those that are carried on fits, all are looked at, so that a pool is refused only where nothing fits.
        """
        before = self._carried(places[:-1], seat, shared)
        found = self._with_one_more(before, places[-1], seat, shared)
        return found if len(found) or not before.cut else self._exhaustively(places, seat, shared)

    def _carried(self, places: tuple[int, ...], seat: Seat, shared: bool) -> Columns:
        """Return the fastest ways to run the first roles of a pool, with which the next one is combined."""
        if not places:
            return _nothing(self.setting.stages + 1, seat)
        key = places, seat, shared
        if key not in self._folded:
            before = self._carried(places[:-1], seat, shared)
            self._folded[key] = self._with_one_more(before, places[-1], seat, shared).unbeaten()
        return self._folded[key]

    def _with_one_more(self, before: Columns, place: int, seat: Seat, shared: bool) -> Columns:
        own = self._own(place, seat, shared, fastest=False)
        if not len(before) or not len(own):
            return replace(self._none, cut=before.cut)
        return self._fitting(before.with_one_more(own), seat)

    def _exhaustively(self, places: tuple[int, ...], seat: Seat, shared: bool) -> Columns:
        """Return all ways to run these roles that fit and that no other beats, however many there are."""
        found = _nothing(self.setting.stages + 1, seat)
        left = [self._own(place, seat, shared, fastest=False) for place in places]
        while left and all(map(len, left)) and len(found):
            own, *left = left
            found = self._fitting(found.with_one_more(own), seat, left).unbeaten(None)
        return found if not left else self._none

    def _fitting(self, found: Columns, seat: Seat, others: Sequence[Columns] = ()) -> Columns:
        room = room_bytes(seat.of.memory_bytes, seat.of.kind)
        return found.fitting(room, seat.of.host_memory_bytes // seat.of.node_devices, others)

    def _own(self, place: int, seat: Seat, shared: bool, fastest: bool) -> Columns:
        """Return the ways to run one role, of which what trains is slower in a pool that is shared with drawing."""
        role = self.setting.roles[place]
        slowed = shared and role.use == "train"
        key = place, seat, slowed, fastest
        if key not in self._alone:
            ways = self.ways(place, seat)
            share = self.setting.host.slowed_share if slowed else 1.0
            own = ways.fastest if fastest else ways.unbeaten
            self._alone[key] = Columns.of(own, self._process_bit(role), share) if own else self._none
        return self._alone[key]

    def _process_bit(self, role: Role) -> int:
        """Return the bit of the process that hosts a role: one for all in their device's, one for each server."""
        hosts = dict.fromkeys(process_of(self.setting.engines_of(use)[0]) for use in USES)
        return 1 << list(hosts).index(process_of(self.setting.engines_of(role.use)[0]))

    def ways(self, place: int, seat: Seat) -> Ways:
        """Return the ways to run one role there."""
        place = self._alike[place][0]
        key = place, seat
        if key not in self._ways:
            self._ways[key] = Ways(self.setting, self.setting.roles[place], seat)
        return self._ways[key]

    def _sync_s(self, block: frozenset[int], seat: Seat) -> float:
        """Return a pool's own part of bringing weights from where they are trained to where they draw.

        Both ends of a sync are busy as long as the slower one, which the search's largest over pools makes of these.
        """
        names, total = {self.setting.roles[place].name for place in block}, 0.0
        for target, source in self.setting.synced.items():
            key = seat, source in names, target in names, target
            if key not in self._syncs:
                self._syncs[key] = sync_s(self.setting, *key)
            total += self._syncs[key]
        return total


def _exchanged(options: Sequence[Option], order: Sequence[int]) -> Iterator[Option]:
    """Return options of a block for one of roles that its roles can be exchanged with, in this order."""
    for each in options:
        assert isinstance(each.key, Offered), "an option of a block says what it was made from"
        sitting = each.key.sitting
        chosen = tuple(sitting.chosen[at] for at in order)
        yield replace(each, key=Offered(each.key.seat, replace(sitting, chosen=chosen)))


def _nothing(stages: int, seat: Seat) -> Columns:
    """Return the one way to run no role there; between processes of ours on CPUs no buckets pass."""
    return Columns.nothing(stages, 0 if seat.of.kind == "cpu" else SYNC_BYTES)


def _price(seat: Seat) -> float:
    """Return what a seat costs for a second."""
    return (seat.of.price_per_hour or 0.0) / 3600 * seat.devices


def sync_s(setting: Setting, seat: Seat, trains: bool, draws: bool, target: str) -> float:
    """Return the seconds that a pool spends on one sync, as the one that trains, that draws, or both; 0 if neither."""
    role = next(each for each in setting.roles if each.name == target)
    shape, links = setting.shape(role), seat.links
    size_bytes, factor = WEIGHT_BYTES * shape.trained, setting.sync_factor
    if trains and draws:
        layouts = Layout(data=seat.devices, sharding="full"), Layout(data=seat.devices)
        moved = reshard_seconds(size_bytes, tensors(shape), *layouts, links).times(factor)
        return added([moved, wake_seconds(size_bytes, links.device)]).total_s or 0.0
    if trains or draws:
        sent = sync_seconds(size_bytes, tensors(shape), links, seat.devices, links, seat.devices)
        return factor * (sent.total_s or 0.0)
    return 0.0


def least_sync_s(setting: Setting, seat: Seat, target: str, trains: Layout | None, draws: Layout | None) -> float:
    """Return the seconds that a sync takes at least, by the layouts of those of its ends that are on a seat."""
    role = next(each for each in setting.roles if each.name == target)
    shape, links = setting.shape(role), seat.links
    size_bytes, count, factor = WEIGHT_BYTES * shape.trained, tensors(shape), setting.sync_factor
    if trains is not None and draws is not None:
        return factor * (reshard_seconds(size_bytes, count, trains, draws, links).total_s or 0.0)
    # As to another pool like this one, whose own part is left out: a slower one only takes longer.
    replicas = draws.data if draws is not None else 1
    parts = sync_seconds(size_bytes, count, links, seat.devices, links, seat.devices, replicas).parts
    own = ("pause", "install", "transfer") if draws is not None else ("pause", "gather")
    sent_s = 0.0 if draws is not None else size_bytes / network_bytes_per_s(links)
    return factor * (fsum(parts.get(name) or 0.0 for name in own) + sent_s)


def tensors(shape: ModelShape) -> int:
    """Return about how many tensors a sync sends of a decoder: nine a layer, three of each expert, three besides.

    Adapters are on layers outside the experts, with two tensors on each of seven matrices of a layer.
    """
    if shape.adapters:
        return 14 * shape.layers
    return 9 * shape.layers + 3 * shape.experts * shape.expert_layers + 3
