"""The options to run several roles on one pool, as the search receives them.

Roles of a pool take turns, so their seconds add up; each holds memory while another works, so their bytes add up too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from math import fsum, inf

from flowgraph.analysis.roles import USES, Role
from flowgraph.cluster.plan import Layout
from placements.hardware.topology import sizes
from placements.memory.footprint import room_bytes
from placements.search.dominance import SYNC_BYTES, CombinedOptions, RoleOption
from placements.search.role_options import RoleOptions
from placements.solver.problem import Option
from placements.step.barriers import StepBarriers, barriers_of
from placements.step.role_costs import DeviceGroup, process_of
from placements.time.collectives import network_bytes_per_s
from placements.time.seconds import added
from placements.time.training import WEIGHT_BYTES
from placements.time.transitions import reshard_seconds, sync_seconds, tensors, wake_seconds
from placements.workload.planning_problem import PlanningProblem

ANY_ROLE = Role("", "", "infer", ())


@dataclass(frozen=True, eq=False)
class PoolOption:
    """One way to run some roles on one pool: its busy seconds by stage, with weight syncs last, and its bytes.

    `peak_bytes` are on each device, `host_bytes` in each device's share of host memory. A solver's option has it as
    `key`.
    """

    group: DeviceGroup
    roles: tuple[RoleOption, ...]
    stages_s: tuple[float, ...]
    peak_bytes: int
    host_bytes: int


class PoolOptions:
    """The options of any block of roles, each computed once. A block is a set of indices into the flow's roles."""

    def __init__(self, problem: PlanningProblem) -> None:
        self.problem = problem
        self.cut = False
        """Whether some pool combined only the fastest options of its first roles with those of the next."""
        self._options = cache(self._compute_options)
        self._role_options = cache(lambda place, group: RoleOptions(problem, problem.roles[place], group))
        self._combined_role = cache(self._combine_role)
        self._all_fastest = cache(self._combine_fastest)
        self._carried = cache(self._combine_carried)
        self._sync_s = cache(partial(sync_s, problem))
        self._minimum_sync_s = cache(partial(minimum_sync_s, problem))

    @cached_property
    def groups(self) -> tuple[tuple[tuple[int, ...], DeviceGroup], ...]:
        """Return each pool that a search tries, as (number of devices of each class, device group).

        Its devices are of one class, and their number is one of `topology.sizes`. Pools that need a network of unknown
        speed are left out.
        """
        classes = self.problem.classes
        return tuple(
            (tuple(devices if place == index else 0 for index in range(len(classes))), DeviceGroup(of, devices, links))
            for place, of in enumerate(classes)
            for devices in sizes(of)
            if (links := of.links(devices)) is not None
        )

    @cached_property
    def barriers(self) -> StepBarriers:
        """Return the barriers of a step, which are the same for all placements."""
        return barriers_of(self.problem)

    def options(self, block: frozenset[int], max_s: float = inf) -> Sequence[Option]:
        """Return the solver's options to run a block of roles, for each pool in `groups`; () if none fits.

        Pools on which the roles' fastest options take more than `max_s` seconds in all are skipped.
        """
        options = list[Option]()
        for devices, group in self.groups:
            by_role = [self.role_options(place, group).on_devices for place in block]
            # No way to run a role goes below its fastest by itself, with nothing put away.
            if sum(sum(ways[0].stages_s) if ways else inf for ways in by_role) <= max_s:
                options += self._options(block, devices, group)
        return tuple(options)

    def pool_options(self, block: frozenset[int], group: DeviceGroup) -> list[PoolOption]:
        """Return the ways to run a block of roles on a device group that fit in its memory, fastest first.

        A way is left out if another takes no more seconds in any stage. Sets the attribute `cut` if there were too many
        combinations of the roles' options, so that only the fastest were considered.
        """
        places, shared = tuple(sorted(block)), self._generates(block)
        fastest = self._all_fastest(places, group, shared)
        combined = self._fitting(fastest, group)
        if len(combined) and len(combined) == len(fastest):
            role_options = [self.role_options(place, group).fastest for place in places]
        else:
            combined = self._combine_in_turn(places, group, shared)
            role_options = [self.role_options(place, group).undominated for place in places]
            self.cut = self.cut or combined.cut
        return self._pool_options(block, group, combined.undominated(None, bytes_too=False), role_options)

    def role_options(self, place: int, group: DeviceGroup) -> RoleOptions:
        """Return the options to run the role with index `place` on a device group.

        Roles that can be exchanged (equal work, models of equal sizes) share one object, whose `role` is the first of
        them.
        """
        return self._role_options(self._alike[place][0], group)

    def together_s(self) -> float:
        """Return the fewest busy seconds of a step with all roles on the largest pool; infinity if they do not fit.

        With several classes of devices, this is the largest pool of the last class.
        """
        everyone = frozenset(range(len(self.problem.roles)))
        options = [option for _, group in self.groups[-1:] for option in self.pool_options(everyone, group)]
        return min((sum(option.stages_s) for option in options), default=inf)

    @cached_property
    def _alike(self) -> list[list[int]]:
        """Return for each role the places of those that can be exchanged: as much work, models of the same sizes."""
        problem, kinds = self.problem, list[object]()
        for place, role in enumerate(problem.roles):
            if role.use != "infer" or any(place in group for group in problem.together):
                kinds.append(place)
                continue
            loads = tuple(replace(load, node="", role=ANY_ROLE) for load in problem.loads_of(role))
            factors = tuple(problem.factor_of("forward", role.name, of.model) for of in problem.classes)
            whole_rows = bool(problem.whole_rows.intersection(role.nodes))
            kinds.append((problem.shape(role), loads, factors, whole_rows, self.barriers.outside.get(place)))
        return [[place for place, alike in enumerate(kinds) if alike == kind] for kind in kinds]

    def _compute_options(self, block: frozenset[int], devices: tuple[int, ...], group: DeviceGroup) -> list[Option]:
        """Return the options of a block on one pool: those of the first block of roles that are alike, exchanged."""
        places, used = list[int](), dict[int, int]()
        for place in sorted(block):
            alike = self._alike[place]
            places.append(alike[used.get(alike[0], 0)])
            used[alike[0]] = used.get(alike[0], 0) + 1
        if places == sorted(block):
            return [self._option(devices, places, option) for option in self.pool_options(block, group)]
        order = [sorted(places).index(place) for place in places]
        exchanged = list[Option]()
        for option in self._options(frozenset(places), devices, group):
            key = pool_option_of(option)
            exchanged.append(replace(option, key=replace(key, roles=tuple(key.roles[index] for index in order))))
        return exchanged

    def _option(self, devices: tuple[int, ...], places: Sequence[int], pooled: PoolOption) -> Option:
        """Return the solver's option with the minimum busy seconds in each span; waking may fall in another span."""
        barriers, problem, group = self.barriers, self.problem, pooled.group
        spans_s, busy_s = [0.0] * barriers.spans, 0.0
        for stage, seconds in enumerate(pooled.stages_s[:-1]):
            spans_s[barriers.of_stage[stage]] += seconds
            busy_s += seconds
        shared = self._generates(places)
        for place, option in zip(places, pooled.roles, strict=True):
            slowed, last = self._slowed(place, shared), option.last_stage
            over_s = (slowed - 1) * option.moved_s + option.woken_s
            spans_s[barriers.of_stage[last]] -= over_s
            busy_s -= over_s
            for stage in barriers.outside.get(place, ()):
                spans_s[barriers.of_stage[stage]] -= slowed * option.stages_s[stage] - over_s * (stage == last)
        options = {problem.roles[place].name: option for place, option in zip(places, pooled.roles, strict=True)}
        for target, source in problem.synced.items():
            # A pool with both ends decides all of a sync: nothing where both use one copy of the weights. Syncs between
            # pools take no less than either end needs.
            trains, generates = options.get(source), options.get(target)
            ends = [(end.engine, end.layout, end.running) for end in (trains, generates) if end]
            if ends and ends != ends[:1] * 2:
                layouts = trains.layout if trains else None, generates.layout if generates else None
                sync_s = barriers.synced * self._minimum_sync_s(group, target, *layouts)
                busy_s += sync_s
                spans_s[0] += sync_s if target in barriers.syncs else 0.0
        return Option(
            devices=devices,
            spans_s=tuple(barriers.share * max(span) for span in zip(spans_s, barriers.host_s, strict=True)),
            cost=(group.of.price_per_hour or 0.0) / 3600 * group.devices,
            key=pooled,
            pool_s=busy_s if barriers.tokens > 1 else None,
        )

    def _generates(self, places: Iterable[int]) -> bool:
        return any(self.problem.roles[place].use == "sample" for place in places)

    def _slowed(self, place: int, shared: bool) -> float:
        return self.problem.host.slowed_share if shared and self.problem.roles[place].use == "train" else 1.0

    def _pool_options(
        self,
        block: frozenset[int],
        group: DeviceGroup,
        combined: CombinedOptions,
        role_options: Sequence[Sequence[RoleOption]],
    ) -> list[PoolOption]:
        names, sync_s = {self.problem.roles[place].name for place in block}, 0.0
        # Both ends of a sync are busy as long as the slower one, which the search's maximum over pools makes of these.
        for target, source in self.problem.synced.items():
            sync_s += self._sync_s(group, source in names, target in names, target)
        return [
            PoolOption(
                group=group,
                roles=tuple(options[pick] for options, pick in zip(role_options, picks, strict=True)),
                stages_s=(*stages[:-1], stages[-1] + sync_s),
                peak_bytes=peak,
                host_bytes=host,
            )
            for picks, stages, peak, host in zip(*combined.columns(), strict=True)
        ]

    # ------------------------------------------------------------------------------------ combinations

    def _combine_role(self, place: int, group: DeviceGroup, shared: bool, fastest: bool) -> CombinedOptions:
        options, role = self.role_options(place, group), self.problem.roles[place]
        chosen = options.fastest if fastest else options.undominated
        # One bit for each process that hosts roles: that of their device, and one for each server.
        processes = list(dict.fromkeys(process_of(self.problem.engines_of(use)[0]) for use in USES))
        bit = 1 << processes.index(process_of(self.problem.engines_of(role.use)[0]))
        return CombinedOptions.of(chosen, bit, self._slowed(place, shared)) if chosen else self._none

    def _combine_fastest(self, places: tuple[int, ...], group: DeviceGroup, shared: bool) -> CombinedOptions:
        if not places:
            return self._empty(group)
        combined = self._all_fastest(places[:-1], group, shared)
        options = self._combined_role(places[-1], group, shared, fastest=True)
        return combined.with_one_more(options) if len(combined) and len(options) else self._none

    def _combine_in_turn(self, places: tuple[int, ...], group: DeviceGroup, shared: bool) -> CombinedOptions:
        """Return combinations of the roles that fit: of the carried ones or, if none of these fits, of all."""
        carried = self._carried(places[:-1], group, shared)
        combined = self._with_one_more(carried, places[-1], group, shared)
        if len(combined) or not carried.cut:
            return combined
        combined = self._empty(group)
        rest = [self._combined_role(place, group, shared, fastest=False) for place in places]
        while rest and all(map(len, rest)) and len(combined):
            options, *rest = rest
            combined = self._fitting(combined.with_one_more(options), group, rest).undominated(None)
        return combined if not rest else self._none

    def _combine_carried(self, places: tuple[int, ...], group: DeviceGroup, shared: bool) -> CombinedOptions:
        if not places:
            return self._empty(group)
        carried = self._carried(places[:-1], group, shared)
        return self._with_one_more(carried, places[-1], group, shared).undominated()

    def _with_one_more(
        self, combined: CombinedOptions, place: int, group: DeviceGroup, shared: bool
    ) -> CombinedOptions:
        options = self._combined_role(place, group, shared, fastest=False)
        if not len(combined) or not len(options):
            return replace(self._none, cut=combined.cut)
        return self._fitting(combined.with_one_more(options), group)

    def _fitting(
        self, combined: CombinedOptions, group: DeviceGroup, rest: Sequence[CombinedOptions] = ()
    ) -> CombinedOptions:
        of = group.of
        return combined.fitting(room_bytes(of.memory_bytes, of.kind), of.host_memory_bytes // of.node_devices, rest)

    def _empty(self, group: DeviceGroup) -> CombinedOptions:
        return CombinedOptions.nothing(self.problem.stages + 1, 0 if group.of.kind == "cpu" else SYNC_BYTES)

    @cached_property
    def _none(self) -> CombinedOptions:
        return CombinedOptions.nothing(self.problem.stages + 1).some([])


def pool_option_of(option: Option) -> PoolOption:
    """Return the pool option from which a solver's option was made: the solver option's `key`.

    Raises AssertionError if the key is another object.
    """
    assert isinstance(option.key, PoolOption), "a search of placements chooses from pool options"
    return option.key


def sync_s(problem: PlanningProblem, group: DeviceGroup, trains: bool, generates: bool, target: str) -> float:
    """Return the seconds that a pool is busy with one weight sync to the role named `target`; 0 if it has neither end.

    `trains` tells whether the source of the weights is on the pool, `generates` whether the target is. If both are, the
    weights are assumed to be fully sharded in training and unsharded in rollouts. If only one is, the other is assumed
    to be on a pool of the same size. Unknown seconds count as 0.
    """
    shape, links = problem.shape(problem.role(target)), group.links
    size_bytes, factor = WEIGHT_BYTES * shape.trained, problem.sync_factor
    if trains and generates:
        layouts = Layout(data=group.devices, sharding="full"), Layout(data=group.devices)
        moved = reshard_seconds(size_bytes, tensors(shape), *layouts, links).times(factor)
        return added([moved, wake_seconds(size_bytes, links.device)]).total_s or 0.0
    if trains or generates:
        sent = sync_seconds(size_bytes, tensors(shape), links, group.devices, links, group.devices)
        return factor * (sent.total_s or 0.0)
    return 0.0


def minimum_sync_s(
    problem: PlanningProblem, group: DeviceGroup, target: str, trains: Layout | None, generates: Layout | None
) -> float:
    """Return a lower bound of the seconds that a pool is busy with one weight sync to the role named `target`.

    `trains` is the layout of the source and `generates` that of the target; one may be None, for an end on another
    pool. Unknown seconds count as 0.
    """
    shape, links = problem.shape(problem.role(target)), group.links
    size_bytes, count, factor = WEIGHT_BYTES * shape.trained, tensors(shape), problem.sync_factor
    if trains is not None and generates is not None:
        return factor * (reshard_seconds(size_bytes, count, trains, generates, links).total_s or 0.0)
    # As to another pool like this one, whose own part is left out: a slower one only takes longer.
    replicas = generates.data if generates is not None else 1
    parts = sync_seconds(size_bytes, count, links, group.devices, links, group.devices, replicas).parts
    names = ("pause", "install", "transfer") if generates is not None else ("pause", "gather")
    sent_s = 0.0 if generates is not None else size_bytes / network_bytes_per_s(links)
    return factor * (fsum(parts.get(name) or 0.0 for name in names) + sent_s)
