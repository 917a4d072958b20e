"""From blocks of roles to a plan: which devices each pool has, what each role holds there, and the step's forecast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flowgraph.cluster import Device
from flowgraph.errors import ResourceError
from flowgraph.lowering.program import Home as ProgramHome
from flowgraph.lowering.program import Read, Run, Switch, Sync, Transfer
from flowgraph.lowering.program import Task as ProgramTask
from flowgraph.plan import Assumed, Forecast, Layout, Peak, Placed, Plan, Pool, Running, Step, Timed, Waits
from flowgraph.roles import Role
from flowgraph.store import structure_hash
from placements.blocks import Offered, Sitting, tensors
from placements.choices import Seat, footprint, moved_seconds, passing_seconds, sampling_seconds
from placements.collectives import network_bytes_per_s
from placements.cycles import makespan, period
from placements.footprint import Footprint, MemoryConstants, total_bytes
from placements.loads import Load
from placements.pool_peaks import Held, PoolPeak, Turn, pool_peaks
from placements.problem import Option
from placements.schedule import Schedule, Task, Wait
from placements.seconds import Seconds, added
from placements.setting import Setting
from placements.steps import Outline, Spot, Staged, outline, overlapped
from placements.topology import DeviceClass, Wanted, realise
from placements.training import WEIGHT_BYTES
from placements.transitions import HOST_SHARE, offload_seconds, reshard_seconds, sync_seconds, wake_seconds

Block = tuple[frozenset[int], Option]
ALL = "all"  # the name of the one pool that all roles share
DRIVER = "the driver"
"""What is waited for between steps."""


@dataclass(frozen=True)
class Home:
    """Where a role lives: its pool's name, so many devices of a class, how it runs there, how old its weights may be."""

    role: Role
    pool: str
    seat: Seat
    engine: str
    layout: Layout
    running: Running
    shared: bool
    lag: int = 0


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
        placed=tuple(_placed(setting, home, held[home.role.name]) for home in _in_order(setting, homes)),
        forecast=forecasts_of(setting, homes, held),
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
            "placed": tuple(each.model_copy(update={"memory": _memory(held[each.role])}) for each in plan.placed),
            "forecast": tuple(_forecast(setting, pool.name, homes, held) for pool in plan.pools),
            "step": step_of(setting, homes),
            "assumed": assumed or plan.assumed,
        }
    )


def homes_of(setting: Setting, blocks: Sequence[Block], pins: Mapping[str, str] | None = None) -> list[Home]:
    """Give where each role lives, by the first role of each pool.

    A pool has the name that a role of it is pinned to; the others are `pool0`, `pool1` and so on, taken names left out,
    and `all` is the one that all roles share.
    """
    ordered = sorted(blocks, key=lambda block: min(block[0]))
    names = _names(setting, [block for block, _ in ordered], pins or {})
    found = [home for name, block in zip(names, ordered, strict=True) for home in _homes(setting, name, block)]
    return [replace(home, lag=0) if home.lag and _in_place(home, found) else home for home in found]


def _in_place(home: Home, homes: Sequence[Home]) -> bool:
    """Return whether a role reads the very weights that another trains, so that there is no copy that could lag."""
    key = home.role.param, home.pool, home.engine, home.layout
    trained = (each for each in homes if each.role.use == "train")
    return any((each.role.param, each.pool, each.engine, each.layout) == key for each in trained)


def _names(setting: Setting, blocks: Sequence[frozenset[int]], pins: Mapping[str, str]) -> Iterator[str]:
    numbered = (f"pool{number}" for number in range(len(blocks) + len(pins)))
    free = (name for name in ([ALL] if len(blocks) == 1 else numbered) if name not in pins.values())
    for block in blocks:
        own = [pins[name] for place in sorted(block) if (name := setting.roles[place].name) in pins]
        yield own[0] if own else next(free)


def _homes(setting: Setting, pool: str, block: Block) -> Iterator[Home]:
    places, (seat, sitting) = sorted(block[0]), _key(block[1])
    shared = any(setting.roles[place].use == "sample" for place in places)
    for place, choice in zip(places, sitting.chosen, strict=True):
        running = choice.running if len(places) > 1 else choice.running.model_copy(update={"sleeps": False})
        role = setting.roles[place]
        yield Home(role, pool, seat, choice.engine, choice.layout, running, shared, setting.lag_of(role))


def homes_by(setting: Setting, plan: Plan) -> list[Home]:
    """Give where each role lives by a plan for this graph, on a cluster that may be another than the plan's.

    A pool whose devices are not there is taken to be of the first class of devices that has as many. Raises
    ResourceError if none has, or if it is not known how fast they are.
    """
    roles = {role.name: role for role in setting.roles}
    seats = {pool.name: _seat_of(setting, pool) for pool in plan.pools}
    draws = {each.pool for each in plan.placed if roles[each.role].use == "sample"}
    return [
        Home(
            roles[each.role],
            each.pool,
            seats[each.pool],
            each.engine,
            each.layout,
            each.running,
            each.pool in draws,
            each.lag,
        )
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


def _placed(setting: Setting, home: Home, held: Footprint) -> Placed:
    return Placed(
        role=home.role.name,
        pool=home.pool,
        engine=home.engine,
        layout=home.layout,
        lag=home.lag,
        running=home.running,
        memory=_memory(held),
    )


def _memory(held: Footprint) -> dict[str, int]:
    return {str(part): size for parts in (held.resident, held.working) for part, size in parts.items() if size}


def _footprint(setting: Setting, home: Home) -> Footprint:
    return footprint(setting, home.role, home.seat, home.engine, home.layout, home.running)


# ---------------------------------------------------------------------------------------- memory


def forecasts_of(
    setting: Setting, homes: Sequence[Home], held: Mapping[str, Footprint] | None = None
) -> tuple[Forecast, ...]:
    """Give the forecast of each pool of roles that live so; what roles hold is worked out unless it is `held`."""
    known = held or {home.role.name: _footprint(setting, home) for home in homes}
    return tuple(_forecast(setting, pool, homes, known) for pool in dict.fromkeys(home.pool for home in homes))


def _forecast(setting: Setting, pool: str, homes: Sequence[Home], held: Mapping[str, Footprint]) -> Forecast:
    """Give the peaks of a pool: of each phase, and of each change of hands before it, named `to PHASE`."""
    own = [home for home in homes if home.pool == pool]
    roles = [Held(home.role.name, held[home.role.name], home.running.sleeps, home.engine) for home in own]
    turns = [
        Turn(load.phase, load.role.name, setting.synced.get(load.role.name, "") if load.phase == "generate" else "")
        for load in setting.loads
        if load.role in {home.role for home in own}
    ]
    found = pool_peaks(roles, turns, bucket_bytes=MemoryConstants().bucket_bytes)
    peaks = map(_told_peak, found)
    contexts = {home.engine: held[home.role.name].asleep.get("context", 0) for home in own}
    return Forecast(pool=pool, process_bytes=sum(contexts.values()), peaks=tuple(dict.fromkeys(peaks)))


def _told_peak(peak: PoolPeak) -> Peak:
    return Peak(
        phase=f"to {peak.phase}" if peak.entering else peak.phase,
        role=peak.role,
        memory_bytes=peak.peak_bytes,
        held={role: size for role, parts in peak.roles.items() if (size := total_bytes(parts))},
    )


# ---------------------------------------------------------------------------------------- seconds


def step_of(setting: Setting, homes: Sequence[Home]) -> Step:
    """Return the forecast of a step of placed roles: the tasks of its program, what they wait for, and its period.

    A step begins once the one before has ended, unless the setting asks for steps that overlap.
    """
    found = outline_of(setting, homes)
    tasks = tuple(_timed(setting, homes, found))
    seconds = [each.seconds for each in tasks]
    alone = period(schedule_of(tasks, found.waits)) if found.shifts else makespan(found.names, found.before, seconds)
    if alone.seconds is None:
        return Step(tasks=tasks, waits=found.waits, period_s=None)
    driver_s = setting.host.driver_share * alone.seconds
    waits = found.waits_with(driver_s)
    if not found.shifts:
        return Step(tasks=tasks, waits=waits, period_s=alone.seconds + driver_s, cycle=alone.cycle)
    longest = period(schedule_of(tasks, waits))
    cycle = tuple(name for name in longest.cycle if name != DRIVER)
    return Step(tasks=tasks, waits=waits, period_s=longest.seconds, cycle=cycle)


def outline_of(setting: Setting, homes: Sequence[Home]) -> Outline:
    """Return the tasks of a step of placed roles and what they wait for, without their seconds."""
    spots = tuple(spot for spot, _ in _spots(setting, homes))
    graph = setting.running if _engines_apart(homes) else setting.graph
    if not setting.overlaps:
        return outline(graph, spots)
    staged = tuple(Staged(each.node, each.role.name, each.stage, each.phase == "update") for each in setting.loads)
    return overlapped(graph, spots, staged, setting.lag)


def _engines_apart(homes: Sequence[Home]) -> bool:
    """Return whether one engine trains a model and another generates with it, so that a run measures their mismatch."""
    trained = {home.role.param: home.engine for home in homes if home.role.use == "train"}
    return any(trained.get(home.role.param, home.engine) != home.engine for home in homes if home.role.use == "sample")


def synced_every(setting: Setting, homes: Sequence[Home]) -> int:
    """Return after how many updates weights are synced: as seldom as their lag lets them, rows drawn ahead counted."""
    found = outline_of(setting, homes)
    return min((_synced_every(found, task) for task in found.tasks if isinstance(task, Sync)), default=1)


def _synced_every(found: Outline, sync: Sync) -> int:
    return max(1, sync.lag - max(found.shifts, default=0) + 1)


def _spots(setting: Setting, homes: Sequence[Home]) -> Iterator[tuple[Spot, Home]]:
    """Return what a program depends on of each home; equal homes of one model have weights in common."""
    copies = dict[str, list[tuple[object, ...]]]()
    for home in _in_order(setting, homes):
        own = copies.setdefault(home.role.param, [])
        key = home.pool, home.engine, home.layout, home.running
        own += [key] if key not in own else []
        sleeps = home.running.sleeps
        yield Spot(home.role.name, home.pool, home.engine, own.index(key), sleeps, home.lag), home


def _timed(setting: Setting, homes: Sequence[Home], found: Outline) -> Iterator[Timed]:
    """Give each task of a step its seconds."""
    work = _Worked(setting, homes, found)
    for place, task in enumerate(found.tasks):
        yield Timed(
            name=found.names[place],
            kind=found.kinds[place],
            role=found.roles[place],
            pools=found.pools[place],
            parts=dict(work.seconds(task, moves=found.moving[place]).parts),
            shift=found.shifts[place] if found.shifts else 0,
        )


class _Worked:
    """The seconds of the tasks of a program whose roles live somewhere."""

    def __init__(self, setting: Setting, homes: Sequence[Home], found: Outline) -> None:
        self._setting, self._found = setting, found
        self._by_role = {home.role.name: home for home in homes}
        self._seats = {home.pool: home.seat for home in homes}
        self._loads = {load.node: load for load in setting.loads}
        by_copy = dict[ProgramHome, list[Home]]()
        for role, home in found.homes.items():
            by_copy.setdefault(home, []).extend([self._by_role[role]] if role in self._by_role else [])
        self._by_copy = by_copy

    def seconds(self, task: ProgramTask, *, moves: bool) -> Seconds:
        """Return the seconds of a task, by part; a switch that `moves` nothing takes none."""
        match task:
            case Run(nodes):
                return self._run(nodes)
            case Read():
                return Seconds({"call": self._setting.host.call_s})
            case Transfer(value, source, target, parts):
                rate = self._bytes_per_s(source, target)
                return self._setting.host_work.travel_seconds(value, parts, rate, self._setting.host)
            case Sync(_, source, target):
                share = 1 / _synced_every(self._found, task)
                return _sync_seconds(self._setting, self._by_copy[source][0], self._by_copy[target][0]).times(share)
            case Switch(home, awake):
                return (
                    _switch_seconds(self._setting, self._by_copy[home], awake=awake)
                    if moves
                    else Seconds({"call": 0.0})
                )

    def _run(self, nodes: Sequence[str]) -> Seconds:
        loads = [self._loads[name] for name in nodes if name in self._loads]
        if loads:
            return added(work_of(self._setting, self._by_role[load.role.name], load) for load in loads)
        takes, work = self._setting.host, self._setting.host_work
        return added([Seconds({"call": takes.call_s}), *(work.node_seconds(name, takes) for name in nodes)])

    def _bytes_per_s(self, source: str, target: str) -> float:
        """Return the bytes per second between two places: over a device's own link, or a machine's network.

        Which machine a pool's rows are on is not known: where there are several, all of them travel.
        """
        links = [self._seats[place].links for place in (source, target) if place in self._seats]
        if len(self._setting.cluster.nodes) == 1:
            return min(each.device.host_bytes_per_s * HOST_SHARE for each in links)
        return min(network_bytes_per_s(each) * each.node_devices for each in links)


def schedule_of(tasks: Sequence[Timed], waits: Sequence[Waits]) -> Schedule:
    """Give a plan's tasks as the schedule that is played; what passes between steps is a task without a pool."""
    played = [Task(each.name, each.kind, each.pools, each.seconds, shift=each.shift) for each in tasks]
    paused = [each for each in waits if each.pause_s]
    if not paused:
        return Schedule(tuple(played), tuple(Wait(each.before, each.after, each.delay) for each in waits))
    played.append(Task(DRIVER, "host", (), max(each.pause_s for each in paused)))
    ends = (Wait(name, DRIVER) for name in dict.fromkeys(each.before for each in paused))
    begins = (Wait(DRIVER, name, delay) for name, delay in dict.fromkeys((each.after, each.delay) for each in paused))
    rest = (Wait(each.before, each.after, each.delay) for each in waits if not each.pause_s)
    return Schedule(tuple(played), (*rest, *ends, *begins))


def work_of(setting: Setting, home: Home, load: Load) -> Seconds:
    """Return how long a load takes where its role lives, what it offloads and loses by sharing included.

    What leaves the devices between tasks is not: that is switching, see `switching_of`.
    """
    seat = home.seat
    if home.role.use == "sample":
        sampled = sampling_seconds(setting, seat, home.engine, home.layout, home.running, load)
        return sampled if sampled is not None else Seconds({"decode": None})
    passing = passing_seconds(setting, seat, home.engine, home.layout, home.running, load)
    parts = [passing, _slowed(setting, home, passing)]
    own = setting.loads_of(home.role)
    if load == own[-1] and home.running.offload and not home.running.sleeps:
        parts.append(moved_seconds(_footprint(setting, home), seat, home.layout, home.running, own))
    return added(parts)


def switching_of(setting: Setting, home: Home) -> Seconds:
    """Return the seconds of a step in which a role goes to sleep and wakes, once each; none if it never sleeps."""
    if not home.running.sleeps:
        return Seconds()
    return added(_switch_seconds(setting, [home], awake=awake) for awake in (False, True))


def _slowed(setting: Setting, home: Home, passing: Seconds) -> Seconds:
    """Give what training loses on a pool that also draws."""
    if not home.shared or home.role.use != "train":
        return Seconds()
    total, share = passing.total_s, setting.host.slowed_share - 1
    return Seconds({"sharing": None if total is None else share * total})


def _switch_seconds(setting: Setting, homes: Sequence[Home], *, awake: bool) -> Seconds:
    """Return the seconds in which what roles of one copy keep off their devices goes there, or comes back.

    What samples has thrown its weights away: they come from the host, and the engine takes a while to answer.
    """
    device = homes[0].seat.links.device
    if any(home.role.use == "sample" for home in homes):
        held = max(_footprint(setting, home).resident.get("weights", 0) for home in homes)
        return wake_seconds(held, device) if awake else Seconds({"sleep": 0.0})
    put_away = max(total_bytes(_footprint(setting, home).asleep_host) for home in homes)
    return Seconds({"copy": offload_seconds(put_away, device)})


def _sync_seconds(setting: Setting, source: Home, target: Home) -> Seconds:
    shape = setting.shape(target.role)
    size_bytes, count = WEIGHT_BYTES * shape.trained, tensors(shape.layers)
    if source.pool == target.pool:
        return reshard_seconds(size_bytes, count, source.layout, target.layout, source.seat.links)
    ends = source.seat.links, source.seat.devices, target.seat.links, target.seat.devices
    return sync_seconds(size_bytes, count, *ends, target.layout.data)
