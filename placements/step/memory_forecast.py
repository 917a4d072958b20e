"""The bytes of each pool of a plan, in each phase and in transitions to it, and whether they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowgraph.cluster.cluster import DeviceKind
from flowgraph.cluster.plan import PhasePeak, Plan, PoolForecast
from flowgraph.engines.table import shares_process
from placements.memory.footprint import SHIPPED, Footprint, room_bytes, total_bytes, with_parts
from placements.memory.pool_peaks import PhaseTurn, PoolPeak, PoolResident, pool_peaks
from placements.step.role_costs import footprint, process_of
from placements.step.role_placements import RolePlacement, homes_of_plan
from placements.step.window import window_of
from placements.workload.node_workload import NodeWorkload
from placements.workload.planning_problem import PlanningProblem


def footprint_of(problem: PlanningProblem, home: RolePlacement) -> Footprint:
    """Return the bytes of a placed role, by part, on each device of its pool and in the device's share of the host."""
    return footprint(problem, home.role, home.group, home.engine, home.layout, home.running)


def forecasts_of(
    problem: PlanningProblem, homes: Sequence[RolePlacement], footprints: Mapping[str, Footprint] | None = None
) -> tuple[PoolForecast, ...]:
    """Return the memory forecast of each pool, in the order in which `homes` first name the pools.

    `footprints` has the bytes of each role by name; they are computed if it is None.
    """
    footprints = footprints or {home.role.name: footprint_of(problem, home) for home in homes}
    pools = dict.fromkeys(home.pool for home in homes)
    return tuple(forecast_pool(problem, pool, homes, footprints) for pool in pools)


@dataclass(frozen=True)
class PoolMemory:
    """The peak bytes on the devices of a pool, each peak with the bytes of its roles.

    `memory_bytes` are those of the smallest device; a plan may fill `room_bytes` of it. `even` is True if all devices
    have the same memory.
    """

    pool: str
    devices: int
    memory_bytes: int
    room_bytes: int
    even: bool
    peaks: tuple[PoolPeak, ...]


def residents(problem: PlanningProblem, plan: Plan) -> tuple[PoolMemory, ...]:
    """Return the peak memory of each pool of a plan, computed again; the plan's own forecast is ignored.

    A pool of devices that the problem's cluster lacks has 0 `memory_bytes` and 0 `room_bytes`. Raises ResourceError if
    no class of the cluster's devices has enough for a pool, with links of known speed, and KeyError for a role that the
    problem does not have.
    """
    homes = homes_of_plan(problem, plan)
    footprints = {home.role.name: footprint_of(problem, home) for home in homes}
    pools = list[PoolMemory]()
    for pool in plan.pools:
        devices = [device for place in pool.devices if (device := problem.cluster.device(*place)) is not None]
        sizes = [device.memory_bytes for device in devices]
        kind: DeviceKind = devices[0].kind if devices else "gpu"
        smallest = min(sizes, default=0)
        peaks = peaks_of(problem, pool.name, homes, footprints)[1]
        room = room_bytes(smallest, kind)
        pools.append(PoolMemory(pool.name, len(pool.devices), smallest, room, len({*sizes}) <= 1, peaks))
    return tuple(pools)


def forecast_pool(
    problem: PlanningProblem, pool: str, homes: Sequence[RolePlacement], footprints: Mapping[str, Footprint]
) -> PoolForecast:
    """Return the memory forecast of a pool: the peak of each phase, and of each transition, named `to PHASE`.

    `pool` is the pool's name, and `footprints` has the bytes of each role by name.
    """
    roles, peaks = peaks_of(problem, pool, homes, footprints)
    contexts = dict[str, int]()
    for role in roles:
        context = role.footprint.resident.get("context", 0)
        contexts[role.process] = max(contexts.get(role.process, 0), context)
    phase_peaks = dict[PhasePeak, None]()
    for peak in peaks:
        context = sum(parts.get("context", 0) for parts in peak.roles.values())
        by_role = {role: total_bytes(parts) - parts.get("context", 0) for role, parts in peak.roles.items()}
        sizes = {name: size for name, size in {"process": context, **by_role}.items() if size}
        phase = f"to {peak.phase}" if peak.entering else peak.phase
        phase_peaks[PhasePeak(phase=phase, role=peak.role, memory_bytes=peak.peak_bytes, held=sizes)] = None
    return PoolForecast(pool=pool, process_bytes=sum(contexts.values()), peaks=tuple(phase_peaks))


def peaks_of(
    problem: PlanningProblem, pool: str, homes: Sequence[RolePlacement], footprints: Mapping[str, Footprint]
) -> tuple[list[PoolResident], tuple[PoolPeak, ...]]:
    """Return the roles of a pool with their bytes, and the peaks of its devices in the order of a step.

    `homes` are the placements of all roles, and `footprints` has their bytes by name.
    """
    by_role = {home.role.name: home for home in homes}
    roles = [
        PoolResident(
            home.role.name,
            _with_window(
                problem, home, homes, _with_mapped_weights(problem, home, by_role, footprints[home.role.name])
            ),
            home.running.sleeps,
            process_of(home.engine),
            _weights_copy(problem, home, homes),
        )
        for home in homes
        if home.pool == pool
    ]
    names = {role.role for role in roles}
    heap_bytes = max((role.footprint.kept_bytes for role in roles if role.process == "device"), default=0)
    turns = [_turn(problem, load, by_role, heap_bytes) for load in problem.loads if load.role.name in names]
    return roles, pool_peaks(roles, turns, bucket_bytes=SHIPPED.bucket_bytes)


def _turn(
    problem: PlanningProblem, load: NodeWorkload, homes: Mapping[str, RolePlacement], heap_bytes: int
) -> PhaseTurn:
    """Return the turn of a load, with the role that sends it weights first and the bytes of that transfer."""
    name = load.role.name
    home, source = homes[name], homes.get(problem.synced.get(name, ""))
    if load.phase != "generate" or source is None:
        return PhaseTurn(load.phase, name)
    is_cpu = home.group.of.kind == "cpu"
    if is_cpu and source.role.param == home.role.param and _location(source) == _location(home):
        return PhaseTurn(load.phase, name)
    if not is_cpu:
        return PhaseTurn(load.phase, name, source.role.name)
    shape = problem.shape(load.role)
    weights = 4 * shape.trained
    if not shares_process(home.engine):
        return PhaseTurn(load.phase, name, source.role.name, min(int(SHIPPED.bucket_bytes), weights))
    table = 4 * shape.vocabulary * shape.hidden
    large = table * shape.tables if table > SHIPPED.kept_block_bytes and not shape.adapters else 0
    return PhaseTurn(load.phase, name, source.role.name, large + max(0, weights - large - heap_bytes))


def _location(home: RolePlacement) -> tuple[object, ...]:
    return home.pool, home.engine, home.layout


def _with_mapped_weights(
    problem: PlanningProblem, home: RolePlacement, homes: Mapping[str, RolePlacement], bytes_of: Footprint
) -> Footprint:
    if home.group.of.kind != "cpu" or not shares_process(home.engine):
        return bytes_of
    pairs = [(homes[to], homes[source]) for to, source in problem.synced.items() if {to, source} <= {*homes}]
    mapped = any(home in pair and pair[0].pool != pair[1].pool and shares_process(pair[0].engine) for pair in pairs)
    return with_parts(bytes_of, {"sync": 4 * problem.shape(home.role).trained}) if mapped else bytes_of


def _with_window(
    problem: PlanningProblem, home: RolePlacement, homes: Sequence[RolePlacement], bytes_of: Footprint
) -> Footprint:
    """Add, on CPUs, the rows of the steps ahead, and the weights on their way besides those of a single step's sync."""
    window = window_of(problem, homes)
    if home.group.of.kind != "cpu" or window.batches == 1:
        return bytes_of
    copy_bytes = window.weights_bytes // max(1, window.copies)
    rows_bytes = (window.batches - 1) * bytes_of.resident.get("rollout", 0)
    sampler = home.role.name in problem.synced and home.ahead > 0
    return with_parts(bytes_of, {"rollout": rows_bytes, "sync": sampler * (window.weights_bytes - copy_bytes)})


def _weights_copy(problem: PlanningProblem, home: RolePlacement, homes: Sequence[RolePlacement]) -> str:
    if home.group.of.kind != "cpu":
        return ""
    shape, param = problem.shape(home.role), home.role.param
    for trained in homes:
        base = problem.shape(trained.role)
        if trained.role.use != "train" or not base.adapters or shape.adapters:
            continue
        if (base.base, base.head) == (shape.base, shape.head) and _location(trained) == _location(home):
            param = trained.role.param
            break
    return f"{param} {home.engine} {home.layout}"
