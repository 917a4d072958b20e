"""From blocks of roles to a plan: which devices each pool has, what each role holds there, and the step's forecast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flowgraph.cluster import Device
from flowgraph.errors import ResourceError
from flowgraph.plan import Assumed, Forecast, Layout, Peak, Placed, Plan, Pool, Running, Step, Timed, Waits
from flowgraph.roles import Role
from flowgraph.store import structure_hash
from placements.blocks import Offered, Sitting, tensors
from placements.choices import (
    OWN,
    Seat,
    footprint,
    moved_seconds,
    passing_seconds,
    process_of,
    sampling_seconds,
)
from placements.cycles import period
from placements.footprint import Footprint, MemoryConstants, room_bytes, total_bytes, with_more
from placements.loads import Load
from placements.pool_peaks import Held, PoolPeak, Turn, pool_peaks
from placements.problem import Option
from placements.profiles import Links, Profile
from placements.schedule import Schedule, Task, Wait
from placements.seconds import Seconds, added
from placements.setting import Setting
from placements.steps import Refresh, Work, tasks_of, waits_of
from placements.topology import DeviceClass, Wanted, realise
from placements.training import WEIGHT_BYTES
from placements.transitions import reshard_seconds, sync_seconds, wake_seconds

Block = tuple[frozenset[int], Option]


@dataclass(frozen=True)
class Home:
    """Where a role lives: its pool's name, so many devices of a class, and how it runs there."""

    role: Role
    pool: str
    seat: Seat
    engine: str
    layout: Layout
    running: Running
    shared: bool


def plan_of(
    setting: Setting,
    blocks: Sequence[Block],
    assumed: Assumed | None = None,
    pins: Mapping[str, str] | None = None,
) -> Plan:
    """Give the plan of these blocks, pools named as their roles are pinned, else `pool0`, `pool1` and so on.

    Raises ResourceError if the cluster has no such pools of whole domains.
    """
    return plan_from(setting, homes_of(setting, blocks, pins), assumed)


def plan_from(setting: Setting, homes: Sequence[Home], assumed: Assumed | None = None) -> Plan:
    """Give the plan of roles that live so. Raises ResourceError if the cluster has no such pools."""
    step = step_of(setting, homes)
    pools = _pools(setting, homes)
    held = {home.role.name: _footprint(setting, home) for home in homes}
    return Plan(
        flow=setting.graph.name,
        structure_hash=structure_hash(setting.graph),
        cluster=setting.cluster,
        pools=pools,
        placed=_with_parts(setting, [_placed(setting, home) for home in _in_order(setting, homes)], homes, held),
        forecast=forecasts_of(setting, homes, held),
        costed=True,
        step=step,
        assumed=assumed,
    )


def forecast_again(setting: Setting, plan: Plan, assumed: Assumed | None = None) -> Plan:
    """Give a plan with its bytes and seconds as they are forecast now, for what `assumed` says; all else stays.

    Raises ResourceError where it is not known how fast its devices are.
    """
    homes = homes_by(setting, plan)
    held = {home.role.name: _footprint(setting, home) for home in homes}
    return plan.model_copy(
        update={
            "placed": _with_parts(setting, plan.placed, homes, held),
            "forecast": tuple(_forecast(setting, pool.name, homes, held) for pool in plan.pools),
            "step": step_of(setting, homes),
            "assumed": assumed or plan.assumed,
        }
    )


def homes_of(setting: Setting, blocks: Sequence[Block], pins: Mapping[str, str] | None = None) -> list[Home]:
    """Give where each role lives, by the first role of each pool.

    A pool has the name that a role of it is pinned to; the others are `pool0`, `pool1` and so on, taken names left out.
    """
    ordered = sorted(blocks, key=lambda block: min(block[0]))
    names = _names(setting, [block for block, _ in ordered], pins or {})
    return [home for name, block in zip(names, ordered, strict=True) for home in _homes(setting, name, block)]


def _names(setting: Setting, blocks: Sequence[frozenset[int]], pins: Mapping[str, str]) -> Iterator[str]:
    free = (name for number in range(len(blocks) + len(pins)) if (name := f"pool{number}") not in pins.values())
    for block in blocks:
        own = [pins[name] for place in sorted(block) if (name := setting.roles[place].name) in pins]
        yield own[0] if own else next(free)


def _homes(setting: Setting, pool: str, block: Block) -> Iterator[Home]:
    places, (seat, sitting) = sorted(block[0]), _key(block[1])
    shared = any(setting.roles[place].use == "sample" for place in places)
    for place, choice in zip(places, sitting.chosen, strict=True):
        running = choice.running if len(places) > 1 else choice.running.model_copy(update={"sleeps": False})
        yield Home(setting.roles[place], pool, seat, choice.engine, choice.layout, running, shared)


def homes_by(setting: Setting, plan: Plan) -> list[Home]:
    """Give where each role lives by a plan for this graph, on a cluster that may be another than the plan's.

    A pool whose devices are not there is taken to be of the first class of devices that has as many. Raises
    ResourceError if none has, or if it is not known how fast they are.
    """
    roles = {role.name: role for role in setting.roles}
    seats = {pool.name: _seat_of(setting, pool) for pool in plan.pools}
    draws = {each.pool for each in plan.placed if roles[each.role].use == "sample"}
    return [
        Home(roles[each.role], each.pool, seats[each.pool], each.engine, each.layout, each.running, each.pool in draws)
        for each in plan.placed
    ]


def _seat_of(setting: Setting, pool: Pool) -> Seat:
    """Give the seat of a pool by the very devices that it has, or by their number where they are not of one class."""
    found = {_class_of(setting, *place) for place in pool.devices}
    of = found.pop() if len(found) == 1 else None
    links = of.links(len(pool.devices)) if of is not None else None
    if of is None or links is None:
        return seat_for(setting, pool.name, len(pool.devices))
    return Seat(of, len(pool.devices), links)


def _class_of(setting: Setting, node: str, index: int) -> DeviceClass | None:
    device = setting.cluster.device(node, index)
    return next((of for of in setting.classes if device is not None and node in of.nodes and _is_of(device, of)), None)


def _is_of(device: Device, of: DeviceClass) -> bool:
    return (device.kind, device.model, device.memory_bytes) == (of.kind, of.model, of.memory_bytes)


def seat_for(setting: Setting, pool: str, devices: int) -> Seat:
    """Give a seat of so many devices; raises ResourceError where no class has as many of a known kind."""
    for of in setting.classes:
        links = of.links(devices) if of.count >= devices else None
        if links is not None:
            return Seat(of, devices, links)
    there = ", ".join(f"{of.count} {of.model or of.kind}" for of in setting.classes)
    raise ResourceError.not_here(f"pool `{pool}`", f"{devices} devices of one known kind", f"the cluster has {there}")


def _key(option: Option) -> tuple[Seat, Sitting]:
    key = option.key
    assert isinstance(key, Offered), "options are those that blocks offer"
    return key.seat, key.sitting


def _in_order(setting: Setting, homes: Sequence[Home]) -> list[Home]:
    order = {role.name: place for place, role in enumerate(setting.roles)}
    return sorted(homes, key=lambda home: order[home.role.name])


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
    """Say whether the cluster has pools of whole domains as these blocks need them."""
    try:
        _pools(setting, homes_of(setting, blocks))
    except ResourceError:
        return False
    return True


def _synced(setting: Setting, own: Sequence[Home], pool_of: Mapping[str, str]) -> Iterator[str]:
    names = {home.role.name for home in own}
    for target, source in setting.synced.items():
        if (target in names) != (source in names):
            yield pool_of[source if target in names else target]


def _placed(setting: Setting, home: Home) -> Placed:
    lag = setting.lag if home.role.name in setting.synced else 0
    return Placed(
        role=home.role.name,
        pool=home.pool,
        engine=home.engine,
        layout=home.layout,
        lag=lag,
        running=home.running,
    )


def _with_parts(
    setting: Setting, placed: Iterable[Placed], homes: Sequence[Home], held: Mapping[str, Footprint]
) -> tuple[Placed, ...]:
    """Return roles with the parts that each holds when it holds most: of the peaks of its pool, so that both agree."""
    found = dict[str, dict[str, int]]()
    for pool in dict.fromkeys(home.pool for home in homes):
        for peak in _peaks_of(setting, pool, homes, held)[1]:
            for role, parts in peak.roles.items():
                if total_bytes(parts) > sum(found.get(role, {}).values()):
                    found[role] = {str(part): size for part, size in parts.items() if size}
    return tuple(each.model_copy(update={"memory": found.get(each.role, {})}) for each in placed)


def _footprint(setting: Setting, home: Home) -> Footprint:
    return footprint(setting, home.role, home.seat, home.engine, home.layout, home.running)


# ---------------------------------------------------------------------------------------- memory


def forecasts_of(
    setting: Setting, homes: Sequence[Home], held: Mapping[str, Footprint] | None = None
) -> tuple[Forecast, ...]:
    """Return the forecast of each pool of roles that live so; what roles hold is worked out unless it is `held`."""
    known = held or {home.role.name: _footprint(setting, home) for home in homes}
    return tuple(_forecast(setting, pool, homes, known) for pool in dict.fromkeys(home.pool for home in homes))


@dataclass(frozen=True)
class Resident:
    """What the devices of one pool hold, peak by peak; the smallest has `memory_bytes`, of which a plan fills a part."""

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
    homes = _homes_at_rest(setting, plan)
    held = {home.role.name: _footprint(setting, home) for home in homes}
    return tuple(_resident(setting, pool, homes, held) for pool in plan.pools)


def _resident(setting: Setting, pool: Pool, homes: Sequence[Home], held: Mapping[str, Footprint]) -> Resident:
    found = [setting.cluster.device(*place) for place in pool.devices]
    memory = [device.memory_bytes for device in found if device is not None]
    kind = next((device.kind for device in found if device is not None), "gpu")
    least = min(memory, default=0)
    peaks = _peaks_of(setting, pool.name, homes, held)[1]
    return Resident(pool.name, len(pool.devices), least, room_bytes(least, kind), len({*memory}) <= 1, peaks)


def with_memory(setting: Setting, plan: Plan) -> Plan:
    """Return a plan with the memory of each role and pool as it is forecast now; all else stays.

    No speed of any device needs to be known. Raises ResourceError where a device of a plan is not there.
    """
    homes = _homes_at_rest(setting, plan)
    held = {home.role.name: _footprint(setting, home) for home in homes}
    return plan.model_copy(
        update={
            "placed": _with_parts(setting, plan.placed, homes, held),
            "forecast": tuple(_forecast(setting, pool.name, homes, held) for pool in plan.pools),
        }
    )


def _homes_at_rest(setting: Setting, plan: Plan) -> list[Home]:
    """Return where roles live by a plan, on devices whose speed may be unknown."""
    roles = {role.name: role for role in setting.roles}
    seats = {pool.name: _unhurried(setting, pool) for pool in plan.pools}
    return [
        Home(roles[each.role], each.pool, seats[each.pool], each.engine, each.layout, each.running, shared=False)
        for each in plan.placed
    ]


def _unhurried(setting: Setting, pool: Pool) -> Seat:
    """Return the seat of a pool on devices whose speed may be unknown: of its first device, as all have one layout."""
    of = _class_of(setting, *pool.devices[0])
    if of is None:
        raise ResourceError.not_here(f"pool `{pool.name}`", f"{pool.devices[0][0]}/{pool.devices[0][1]}", "it is not")
    return Seat(of, len(pool.devices), of.links(len(pool.devices)) or UNKNOWN)


UNKNOWN = Links(Profile("", 0, {}, 0.0, 0.0, 1, 0.0, None, {}), domain=1, node_devices=1, network_bytes_per_s=0.0)
"""Links of devices whose speed nobody knows."""


def _forecast(setting: Setting, pool: str, homes: Sequence[Home], held: Mapping[str, Footprint]) -> Forecast:
    """Return the peaks of a pool: of each phase, and of each change of hands before it, named `to PHASE`."""
    roles, found = _peaks_of(setting, pool, homes, held)
    contexts = dict[str, int]()
    for each in roles:
        context = each.footprint.resident.get("context", 0)
        contexts[each.process] = max(contexts.get(each.process, 0), context)
    return Forecast(pool=pool, process_bytes=sum(contexts.values()), peaks=tuple(dict.fromkeys(map(_told_peak, found))))


def _peaks_of(
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
    kept = max((each.footprint.kept for each in roles if each.process == "ours"), default=0)
    turns = [_turn(setting, load, by_role, kept) for load in setting.loads if load.role in {home.role for home in own}]
    return roles, pool_peaks(roles, turns, bucket_bytes=MemoryConstants().bucket_bytes)


def _turn(setting: Setting, load: Load, homes: Mapping[str, Home], kept: int) -> Turn:
    """Return the turn of a load, and what passes when weights are brought to it first, none if it has them already.

    Between processes of ours on CPUs they come whole, out of blocks that a heap of `kept` bytes has, but for large ones.
    """
    name = load.role.name
    home, source = homes[name], homes.get(setting.synced.get(name, ""))
    if load.phase != "generate" or source is None or _one_copy(source, home):
        return Turn(load.phase, name)
    if home.seat.of.kind != "cpu":
        return Turn(load.phase, name, source.role.name)
    if home.engine not in OWN:
        bucket = int(MemoryConstants().bucket_bytes)
        return Turn(load.phase, name, source.role.name, min(bucket, 4 * setting.shape(load.role).trained))
    shape = setting.shape(load.role)
    table = 4 * shape.vocabulary * shape.hidden
    large = table * shape.tables if table > MemoryConstants().kept_block_bytes and not shape.adapters else 0
    return Turn(load.phase, name, source.role.name, large + max(0, 4 * shape.trained - large - kept))


def _with_mapped(setting: Setting, home: Home, homes: Mapping[str, Home], held: Footprint) -> Footprint:
    """Add the weights that went from one CPU process to another: pages of the store that they share stay mapped."""
    if home.seat.of.kind != "cpu" or home.engine not in OWN:
        return held
    ends = [(homes[target], homes[source]) for target, source in setting.synced.items() if {target, source} <= {*homes}]
    apart = any(home in pair and pair[0].pool != pair[1].pool and pair[0].engine in OWN for pair in ends)
    return with_more(held, {"sync": 4 * setting.shape(home.role).trained}) if apart else held


def _copy(setting: Setting, home: Home, trained: Sequence[Home]) -> str:
    """Name the copy of weights that a role reads on a CPU; a frozen base of adapters that are trained there is theirs."""
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


def _told_peak(peak: PoolPeak) -> Peak:
    context = sum(parts.get("context", 0) for parts in peak.roles.values())
    own = {role: total_bytes(parts) - parts.get("context", 0) for role, parts in peak.roles.items()}
    return Peak(
        phase=f"to {peak.phase}" if peak.entering else peak.phase,
        role=peak.role,
        memory_bytes=peak.peak_bytes,
        held={name: size for name, size in {"process": context, **own}.items() if size},
    )


# ---------------------------------------------------------------------------------------- seconds


def step_of(setting: Setting, homes: Sequence[Home]) -> Step:
    """Give the forecast of a step of placed roles: its tasks, what they wait for, and its period."""
    works, refreshes = parts_of_step(setting, homes)
    tasks = tasks_of(works, refreshes, setting.host)
    waits = waits_of(setting.running, works, refreshes)
    found = period(schedule_of(tasks, waits))
    return Step(tasks=tasks, waits=waits, period_s=found.seconds, cycle=found.cycle)


def parts_of_step(setting: Setting, homes: Sequence[Home]) -> tuple[list[Work], list[Refresh]]:
    """Give what models do in a step of placed roles, and the syncs of weights between them."""
    by_role = {home.role.name: home for home in homes}
    works = [work_of(setting, by_role[load.role.name], load) for load in setting.loads]
    refreshes = [_refresh(setting, by_role[source], by_role[target]) for target, source in setting.synced.items()]
    return works, refreshes


def schedule_of(tasks: Sequence[Timed], waits: Sequence[Waits]) -> Schedule:
    """Give a plan's tasks as the schedule that is played."""
    return Schedule(
        tuple(Task(each.name, each.kind, each.pools, each.seconds) for each in tasks),
        tuple(Wait(each.before, each.after, each.delay) for each in waits),
    )


def work_of(setting: Setting, home: Home, load: Load) -> Work:
    """Give how long a load takes where its role lives, what it keeps off its devices and loses by sharing included."""
    seat = home.seat
    if home.role.use == "sample":
        drawn = sampling_seconds(setting, seat, home.layout, home.running, load)
        return Work(load, home.pool, drawn if drawn is not None else Seconds({"decode": None}))
    passing = passing_seconds(setting, seat, home.layout, home.running, load)
    parts = [passing, _slowed(setting, home, passing)]
    if load == setting.loads_of(home.role)[-1]:
        parts.append(
            moved_seconds(_footprint(setting, home), seat, home.layout, home.running, setting.loads_of(home.role))
        )
    return Work(load, home.pool, added(parts))


def _slowed(setting: Setting, home: Home, passing: Seconds) -> Seconds:
    """Give what training loses on a pool that also draws."""
    if not home.shared or home.role.use != "train":
        return Seconds()
    total, share = passing.total_s, setting.host.slowed_share - 1
    return Seconds({"sharing": None if total is None else share * total})


def _refresh(setting: Setting, source: Home, target: Home) -> Refresh:
    shape, pools = setting.shape(target.role), tuple(dict.fromkeys((source.pool, target.pool)))
    size_bytes, count = WEIGHT_BYTES * shape.trained, tensors(shape.layers)
    if source.pool == target.pool:
        moved = reshard_seconds(size_bytes, count, source.layout, target.layout, source.seat.links)
        held_bytes = size_bytes / target.layout.tensor
        seconds = added([moved, wake_seconds(held_bytes, source.seat.links.device)])
    else:
        ends = source.seat.links, source.seat.devices, target.seat.links, target.seat.devices
        seconds = sync_seconds(size_bytes, count, *ends, target.layout.data)
    return Refresh(source.role.name, target.role.name, pools, seconds, setting.lag)
