"""From blocks of roles to a plan: which devices each pool has, what each role holds there, and the step's forecast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.cluster.plan import PlacedRole, Plan, PlanAssumptions, Pool
from flowgraph.errors import ResourceError
from placements.hardware.topology import PoolRequest, realise
from placements.memory.footprint import Footprint, room_bytes, total_bytes
from placements.search.block_placements import Block, homes_of
from placements.step.memory_forecast import footprint_of, forecast_pool, forecasts_of, peaks_of
from placements.step.role_placements import RolePlacement, homes_by, in_order
from placements.step.step_forecast import step_of
from placements.workload.planning_problem import PlanningProblem


def plan_of(
    setting: PlanningProblem,
    blocks: Sequence[Block],
    assumed: PlanAssumptions | None = None,
    pins: Mapping[str, str] | None = None,
) -> Plan:
    """Return the plan of these blocks, pools named as their roles are pinned, else `pool0`, `pool1` and so on.

    Raises ResourceError if the cluster has no such pools of whole domains.
    """
    return plan_from(setting, homes_of(setting, blocks, pins), assumed)


def plan_from(setting: PlanningProblem, homes: Sequence[RolePlacement], assumed: PlanAssumptions | None = None) -> Plan:
    """Return the plan of placed roles. Raises ResourceError if the cluster has no such pools."""
    step = step_of(setting, homes)
    pools = _pools(setting, homes)
    held = {home.role.name: footprint_of(setting, home) for home in homes}
    placed = [
        PlacedRole(
            role=home.role.name,
            pool=home.pool,
            engine=home.engine,
            layout=home.layout,
            lag=home.lag,
            running=home.running,
        )
        for home in in_order(setting, homes)
    ]
    return Plan(
        flow=setting.graph.name,
        structure_hash=structure_hash(setting.graph),
        cluster=setting.cluster,
        pools=pools,
        placed=_with_peak_parts(setting, placed, homes, held),
        forecast=forecasts_of(setting, homes, held),
        step=step,
        assumed=assumed,
    )


def forecast_again(setting: PlanningProblem, plan: Plan, assumed: PlanAssumptions | None = None) -> Plan:
    """Return a plan with its bytes and seconds forecast anew, and what that `assumed`; all else stays.

    Raises ResourceError where the speed of its devices is not known.
    """
    homes = homes_by(setting, plan)
    held = {home.role.name: footprint_of(setting, home) for home in homes}
    return plan.model_copy(
        update={
            "placed": _with_peak_parts(setting, plan.placed, homes, held),
            "forecast": tuple(forecast_pool(setting, pool.name, homes, held) for pool in plan.pools),
            "step": step_of(setting, homes),
            "assumed": assumed or plan.assumed,
        }
    )


def _pools(setting: PlanningProblem, homes: Sequence[RolePlacement]) -> tuple[Pool, ...]:
    pool_of = {home.role.name: home.pool for home in homes}
    requests = list[PoolRequest]()
    for pool in dict.fromkeys(home.pool for home in homes):
        roles = [home for home in homes if home.pool == pool]
        names, group = {home.role.name for home in roles}, roles[0].seat
        synced = (
            pool_of[source if target in names else target]
            for target, source in setting.synced.items()
            if (target in names) != (source in names)
        )
        requests.append(
            PoolRequest(
                name=pool,
                devices=group.devices,
                model=group.of.model,
                tensor=min(group.of.reach, max(home.layout.tensor for home in roles)),
                of=group.of,
                synced_with=tuple(synced),
            )
        )
    return realise(setting.cluster, requests)


def has_room(setting: PlanningProblem, blocks: Sequence[Block]) -> bool:
    """Return whether the cluster has pools of whole domains as these blocks need them, and the memory of the forecast.

    Pools of whole machines have room wherever no domain spans several. On CPU devices a role leaves a heap to others of
    its process, which a search of pools does not count.
    """
    homes = homes_of(setting, blocks)
    if setting.kind == "cpu":
        rooms = {home.pool: room_bytes(home.seat.of.memory_bytes, home.seat.of.kind) for home in homes}
        for forecast in forecasts_of(setting, homes):
            if forecast.worst is not None and forecast.worst.memory_bytes > rooms[forecast.pool]:
                return False
    groups = [home.seat for home in homes]
    if all(group.of.domain <= group.of.node_devices and group.devices % group.of.node_devices == 0 for group in groups):
        return True
    try:
        _pools(setting, homes)
    except ResourceError:
        return False
    return True


def _with_peak_parts(
    setting: PlanningProblem,
    placed: Iterable[PlacedRole],
    homes: Sequence[RolePlacement],
    held: Mapping[str, Footprint],
) -> tuple[PlacedRole, ...]:
    """Return roles with the parts of their largest memory, taken from the peaks of their pool so that both agree."""
    largest = dict[str, dict[str, int]]()
    for pool in dict.fromkeys(home.pool for home in homes):
        for peak in peaks_of(setting, pool, homes, held)[1]:
            for role, parts in peak.roles.items():
                if total_bytes(parts) > sum(largest.get(role, {}).values()):
                    largest[role] = {str(part): size for part, size in parts.items() if size}
    return tuple(role.model_copy(update={"memory": largest.get(role.role, {})}) for role in placed)
