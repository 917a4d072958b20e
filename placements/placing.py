"""From blocks of roles to a plan: which devices each pool has, what each role holds there, and the step's forecast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.cluster.plan import PlacedRole, Plan, PlanAssumptions, Pool
from flowgraph.errors import ResourceError
from placements.footprint import Footprint, room_bytes, total_bytes
from placements.homes import Block, Home, homes_by, homes_of, in_order
from placements.memory_forecast import footprint_of, forecast_pool, forecasts_of, peaks_of
from placements.setting import Setting
from placements.step_forecast import step_of
from placements.topology import Wanted, realise


def plan_of(
    setting: Setting,
    blocks: Sequence[Block],
    assumed: PlanAssumptions | None = None,
    pins: Mapping[str, str] | None = None,
) -> Plan:
    """Return the plan of these blocks, pools named as their roles are pinned, else `pool0`, `pool1` and so on.

    Raises ResourceError if the cluster has no such pools of whole domains.
    """
    return plan_from(setting, homes_of(setting, blocks, pins), assumed)


def plan_from(setting: Setting, homes: Sequence[Home], assumed: PlanAssumptions | None = None) -> Plan:
    """Return the plan of roles that live so. Raises ResourceError if the cluster has no such pools."""
    step = step_of(setting, homes)
    pools = _pools(setting, homes)
    held = {home.role.name: footprint_of(setting, home) for home in homes}
    return Plan(
        flow=setting.graph.name,
        structure_hash=structure_hash(setting.graph),
        cluster=setting.cluster,
        pools=pools,
        placed=_with_parts(setting, [_placed(setting, home) for home in in_order(setting, homes)], homes, held),
        forecast=forecasts_of(setting, homes, held),
        step=step,
        assumed=assumed,
    )


def forecast_again(setting: Setting, plan: Plan, assumed: PlanAssumptions | None = None) -> Plan:
    """Return a plan with its bytes and seconds as they are forecast now, for what `assumed` says; all else stays.

    Raises ResourceError where it is not known how fast its devices are.
    """
    homes = homes_by(setting, plan)
    held = {home.role.name: footprint_of(setting, home) for home in homes}
    return plan.model_copy(
        update={
            "placed": _with_parts(setting, plan.placed, homes, held),
            "forecast": tuple(forecast_pool(setting, pool.name, homes, held) for pool in plan.pools),
            "step": step_of(setting, homes),
            "assumed": assumed or plan.assumed,
        }
    )


def _pools(setting: Setting, homes: Sequence[Home]) -> tuple[Pool, ...]:
    by_pool = dict[str, list[Home]]()
    for home in homes:
        by_pool.setdefault(home.pool, []).append(home)
    pool_of = {home.role.name: home.pool for home in homes}
    wanted = [
        Wanted(
            name=name,
            devices=own[0].seat.devices,
            model=own[0].seat.of.model,
            tensor=min(own[0].seat.of.reach, max(home.layout.tensor for home in own)),
            of=own[0].seat.of,
            synced_with=tuple(_synced(setting, own, pool_of)),
        )
        for name, own in by_pool.items()
    ]
    return realise(setting.cluster, wanted)


def has_room(setting: Setting, blocks: Sequence[Block]) -> bool:
    """Return whether the cluster has pools of whole domains as these blocks need them, and memory as it is forecast.

    Pools of whole machines have room wherever no domain spans several. On CPU devices a role leaves a heap to others of
    its process, which a search of pools does not count.
    """
    homes = homes_of(setting, blocks)
    seats = [home.seat for home in homes]
    if setting.kind == "cpu" and not _fits(setting, homes):
        return False
    if all(seat.of.domain <= seat.of.node_devices and seat.devices % seat.of.node_devices == 0 for seat in seats):
        return True
    try:
        _pools(setting, homes)
    except ResourceError:
        return False
    return True


def _fits(setting: Setting, homes: Sequence[Home]) -> bool:
    rooms = {home.pool: room_bytes(home.seat.of.memory_bytes, home.seat.of.kind) for home in homes}
    worst = ((each.pool, each.worst) for each in forecasts_of(setting, homes))
    return all(peak is None or peak.memory_bytes <= rooms[pool] for pool, peak in worst)


def _synced(setting: Setting, own: Sequence[Home], pool_of: Mapping[str, str]) -> Iterator[str]:
    names = {home.role.name for home in own}
    for target, source in setting.synced.items():
        if (target in names) != (source in names):
            yield pool_of[source if target in names else target]


def _placed(setting: Setting, home: Home) -> PlacedRole:
    return PlacedRole(
        role=home.role.name,
        pool=home.pool,
        engine=home.engine,
        layout=home.layout,
        lag=home.lag,
        running=home.running,
    )


def _with_parts(
    setting: Setting, placed: Iterable[PlacedRole], homes: Sequence[Home], held: Mapping[str, Footprint]
) -> tuple[PlacedRole, ...]:
    """Return roles with the parts that each holds when it holds most: of the peaks of its pool, so that both agree."""
    found = dict[str, dict[str, int]]()
    for pool in dict.fromkeys(home.pool for home in homes):
        for peak in peaks_of(setting, pool, homes, held)[1]:
            for role, parts in peak.roles.items():
                if total_bytes(parts) > sum(found.get(role, {}).values()):
                    found[role] = {str(part): size for part, size in parts.items() if size}
    return tuple(each.model_copy(update={"memory": found.get(each.role, {})}) for each in placed)
