"""The bytes of each pool of a plan: what its roles hold in each phase and on the way to it, and whether that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowgraph.cluster.cluster import DeviceKind
from flowgraph.cluster.plan import PhasePeak, Plan, Pool, PoolForecast
from flowgraph.engines.table import shares_process
from placements.footprint import Footprint, MemoryConstants, room_bytes, total_bytes, with_more
from placements.homes import Home, homes_by
from placements.loads import Load
from placements.pool_peaks import Held, PoolPeak, Turn, pool_peaks
from placements.role_costs import footprint, process_of
from placements.setting import Setting


def footprint_of(setting: Setting, home: Home) -> Footprint:
    """Return what a role holds on each device where it lives."""
    return footprint(setting, home.role, home.seat, home.engine, home.layout, home.running)


def forecasts_of(
    setting: Setting, homes: Sequence[Home], held: Mapping[str, Footprint] | None = None
) -> tuple[PoolForecast, ...]:
    """Return the forecast of each pool of roles that live so; what roles hold is worked out unless it is `held`."""
    known = held or {home.role.name: footprint_of(setting, home) for home in homes}
    return tuple(forecast_pool(setting, pool, homes, known) for pool in dict.fromkeys(home.pool for home in homes))


@dataclass(frozen=True)
class Resident:
    """What the devices of a pool hold, peak by peak; the smallest has `memory_bytes`, of which a plan fills a part."""

    pool: str
    devices: int
    memory_bytes: int
    room_bytes: int
    even: bool
    peaks: tuple[PoolPeak, ...]


def residents(setting: Setting, plan: Plan) -> tuple[Resident, ...]:
    """Return what the pools of a plan hold, as it is forecast now; no speed of any device needs to be known.

    Raises ResourceError where a device of a plan is not there.
    """
    homes = homes_by(setting, plan)
    held = {home.role.name: footprint_of(setting, home) for home in homes}
    return tuple(_resident(setting, pool, homes, held) for pool in plan.pools)


def _resident(setting: Setting, pool: Pool, homes: Sequence[Home], held: Mapping[str, Footprint]) -> Resident:
    found = [setting.cluster.device(*place) for place in pool.devices]
    memory = [device.memory_bytes for device in found if device is not None]
    kinds: list[DeviceKind] = [device.kind for device in found if device is not None]
    kind: DeviceKind = kinds[0] if kinds else "gpu"
    least = min(memory, default=0)
    peaks = peaks_of(setting, pool.name, homes, held)[1]
    return Resident(pool.name, len(pool.devices), least, room_bytes(least, kind), len({*memory}) <= 1, peaks)


def forecast_pool(setting: Setting, pool: str, homes: Sequence[Home], held: Mapping[str, Footprint]) -> PoolForecast:
    """Return the peaks of a pool: of each phase, and of each change of hands before it, named `to PHASE`."""
    roles, found = peaks_of(setting, pool, homes, held)
    contexts = dict[str, int]()
    for each in roles:
        context = each.footprint.resident.get("context", 0)
        contexts[each.process] = max(contexts.get(each.process, 0), context)
    return PoolForecast(
        pool=pool, process_bytes=sum(contexts.values()), peaks=tuple(dict.fromkeys(map(_told_peak, found)))
    )


def peaks_of(
    setting: Setting, pool: str, homes: Sequence[Home], held: Mapping[str, Footprint]
) -> tuple[list[Held], tuple[PoolPeak, ...]]:
    """Return what the roles of a pool hold by themselves, and the peaks of all of them together."""
    own = [home for home in homes if home.pool == pool]
    by_role = {home.role.name: home for home in homes}
    trained = [home for home in homes if home.role.use == "train"]
    roles = [
        Held(
            home.role.name,
            _with_mapped(setting, home, by_role, held[home.role.name]),
            home.running.sleeps,
            process_of(home.engine),
            _copy(setting, home, trained),
        )
        for home in own
    ]
    kept = max((each.footprint.kept for each in roles if each.process == "device"), default=0)
    turns = [_turn(setting, load, by_role, kept) for load in setting.loads if load.role in {home.role for home in own}]
    return roles, pool_peaks(roles, turns, bucket_bytes=MemoryConstants().bucket_bytes)


def _turn(setting: Setting, load: Load, homes: Mapping[str, Home], kept: int) -> Turn:
    """Return the turn of a load, and what passes when weights are brought to it first, none if it has them already.

    Between processes of ours on CPUs they come whole, out of blocks that a heap of `kept` bytes has, large ones apart.
    """
    name = load.role.name
    home, source = homes[name], homes.get(setting.synced.get(name, ""))
    if load.phase != "generate" or source is None or _one_copy(source, home):
        return Turn(load.phase, name)
    if home.seat.of.kind != "cpu":
        return Turn(load.phase, name, source.role.name)
    if not shares_process(home.engine):
        bucket = int(MemoryConstants().bucket_bytes)
        return Turn(load.phase, name, source.role.name, min(bucket, 4 * setting.shape(load.role).trained))
    shape = setting.shape(load.role)
    table = 4 * shape.vocabulary * shape.hidden
    large = table * shape.tables if table > MemoryConstants().kept_block_bytes and not shape.adapters else 0
    return Turn(load.phase, name, source.role.name, large + max(0, 4 * shape.trained - large - kept))


def _with_mapped(setting: Setting, home: Home, homes: Mapping[str, Home], held: Footprint) -> Footprint:
    """Add the weights that went from one CPU process to another: pages of the store that they share stay mapped."""
    if home.seat.of.kind != "cpu" or not shares_process(home.engine):
        return held
    ends = [(homes[target], homes[source]) for target, source in setting.synced.items() if {target, source} <= {*homes}]
    apart = any(home in pair and pair[0].pool != pair[1].pool and shares_process(pair[0].engine) for pair in ends)
    return with_more(held, {"sync": 4 * setting.shape(home.role).trained}) if apart else held


def _copy(setting: Setting, home: Home, trained: Sequence[Home]) -> str:
    """Name the copy of weights that a role reads on a CPU; a frozen base of adapters trained there is theirs."""
    if home.seat.of.kind != "cpu":
        return ""
    shape = setting.shape(home.role)
    for other in trained:
        base = setting.shape(other.role)
        alike = base.adapters > 0 and not shape.adapters and (base.base, base.head) == (shape.base, shape.head)
        if alike and (other.pool, other.engine, other.layout) == (home.pool, home.engine, home.layout):
            return f"{other.role.param} {other.engine} {other.layout}"
    return f"{home.role.param} {home.engine} {home.layout}"


def _one_copy(one: Home, other: Home) -> bool:
    """Say whether two roles of a model on CPUs read one copy of it."""
    alike = (one.pool, one.engine, one.layout) == (other.pool, other.engine, other.layout)
    return alike and one.seat.of.kind == "cpu" and one.role.param == other.role.param


def _told_peak(peak: PoolPeak) -> PhasePeak:
    context = sum(parts.get("context", 0) for parts in peak.roles.values())
    own = {role: total_bytes(parts) - parts.get("context", 0) for role, parts in peak.roles.items()}
    return PhasePeak(
        phase=f"to {peak.phase}" if peak.entering else peak.phase,
        role=peak.role,
        memory_bytes=peak.peak_bytes,
        held={name: size for name, size in {"process": context, **own}.items() if size},
    )
