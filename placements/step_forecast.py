"""The seconds of a step: the tasks of the program that would run, how long each takes, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import fsum

from flowgraph.cluster.plan import StepForecast, TaskOrder, TimedTask
from flowgraph.language.graph import Node, reachable
from flowgraph.lowering.program import Home as ProgramHome
from flowgraph.lowering.program import Read, Run, Switch, Sync, Transfer
from flowgraph.lowering.program import Task as ProgramTask
from placements.blocks import tensors
from placements.collectives import network_bytes_per_s
from placements.cycles import makespan, period
from placements.footprint import total_bytes
from placements.homes import Home, in_order
from placements.in_flight import InFlight
from placements.loads import Load
from placements.memory_forecast import footprint_of
from placements.role_costs import best_in_flight, offloaded_seconds, passing_seconds, sampling_seconds, streams
from placements.schedule import Schedule, Task, Wait
from placements.seconds import Seconds, added
from placements.setting import Setting
from placements.steps import Outline, Spot, Staged, outline, overlapped
from placements.training import WEIGHT_BYTES
from placements.transitions import HOST_SHARE, offload_seconds, reshard_seconds, sync_seconds, wake_seconds

DRIVER = "the driver"
"""What is waited for between steps."""


def step_of(setting: Setting, homes: Sequence[Home]) -> StepForecast:
    """Return the forecast of a step of placed roles: the tasks of its program, what they wait for, and its period.

    A step begins once the one before has ended, unless the setting asks for steps that overlap.
    """
    found = outline_of(setting, homes)
    tasks = tuple(_timed(found, _seconds(setting, homes, found)))
    seconds = [each.seconds for each in tasks]
    alone = period(schedule_of(tasks, found.waits)) if found.shifts else makespan(found.names, found.before, seconds)
    if alone.seconds is None:
        return StepForecast(tasks=tasks, waits=found.waits, period_s=None)
    driver_s = setting.host.driver_share * alone.seconds
    waits = found.waits_with(driver_s)
    if not found.shifts:
        return StepForecast(tasks=tasks, waits=waits, period_s=alone.seconds + driver_s, cycle=alone.cycle)
    longest = period(schedule_of(tasks, waits))
    cycle = tuple(name for name in longest.cycle if name != DRIVER)
    return StepForecast(tasks=tasks, waits=waits, period_s=longest.seconds, cycle=cycle)


def period_of(setting: Setting, homes: Sequence[Home]) -> float | None:
    """Return the seconds from one step to the next that `step_of` forecasts, without the step itself."""
    found = outline_of(setting, homes)
    if found.shifts:
        return step_of(setting, homes).period_s
    seconds = [each.total_s for each in _seconds(setting, homes, found)]
    alone_s = makespan(found.names, found.before, seconds).seconds
    return None if alone_s is None else alone_s + setting.host.driver_share * alone_s


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
    work = _Worked(setting, homes, found)
    return min((work.synced_every(task) for task in found.tasks if isinstance(task, Sync)), default=1)


def _spots(setting: Setting, homes: Sequence[Home]) -> Iterator[tuple[Spot, Home]]:
    """Return what a program depends on of each home; equal homes of one model have weights in common."""
    copies = dict[str, list[tuple[object, ...]]]()
    for home in in_order(setting, homes):
        own = copies.setdefault(home.role.param, [])
        key = home.pool, home.engine, home.layout, home.running
        own += [key] if key not in own else []
        sleeps = home.running.sleeps
        yield Spot(home.role.name, home.pool, home.engine, own.index(key), sleeps, home.lag), home


def _seconds(setting: Setting, homes: Sequence[Home], found: Outline) -> list[Seconds]:
    """Return the seconds of each task of a step."""
    work = _Worked(setting, homes, found)
    return [work.seconds(task, moves=moves) for task, moves in zip(found.tasks, found.moving, strict=True)]


def _timed(found: Outline, seconds: Sequence[Seconds]) -> Iterator[TimedTask]:
    for place, each in enumerate(seconds):
        yield TimedTask(
            name=found.names[place],
            kind=found.kinds[place],
            role=found.roles[place],
            pools=found.pools[place],
            parts=dict(each.parts),
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

    def synced_every(self, sync: Sync) -> int:
        """Return after how many updates a sync comes: as seldom as staleness lets it, rows in flight counted."""
        left = max(1, sync.lag - self._ahead + 1)
        homes = [home for home in self._by_copy[sync.target] if home.role.use == "sample"]
        streamed = [home for home in homes if streams(self._setting, home.role)]
        ways = (self._in_flight(home, load) for home in streamed for load in self._setting.loads_of(home.role))
        return min((each.sync_every for each in ways), default=left)

    @property
    def _ahead(self) -> int:
        return max(self._found.shifts, default=0)

    def _in_flight(self, home: Home, load: Load) -> InFlight:
        """Return how many batches of a load are in flight."""
        setting, target = self._setting, next(place for place, own in self._by_copy.items() if home in own)
        ends = ((task.source, task.target) for task in self._found.tasks if isinstance(task, Sync))
        sources = (self._by_copy[source][0] for source, to in ends if to == target)
        sync_s = max((_sync_seconds(setting, source, home).total_s or 0.0 for source in sources), default=0.0)
        place = setting, home.seat, home.engine, home.layout, home.running
        return best_in_flight(*place, load, ahead=self._ahead, sync_s=sync_s, training_s=self._beside_s(home))

    def _beside_s(self, home: Home) -> float:
        """Return the seconds in which other pools work on the rows of a step before its update is done."""
        pairs = ((self._by_role.get(load.role.name), load) for load in self._setting.loads)
        beside = ((other, load) for other, load in pairs if other is not None and other.pool != home.pool)
        works = (work_of(self._setting, other, load) for other, load in beside if load.phase != "generate")
        return fsum(each.total_s or 0.0 for each in works)

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
                ends = self._by_copy[source][0], self._by_copy[target][0]
                return _sync_seconds(self._setting, *ends).times(1 / self.synced_every(task))
            case Switch(home, awake):
                return (
                    _switch_seconds(self._setting, self._by_copy[home], awake=awake)
                    if moves
                    else Seconds({"call": 0.0})
                )

    def node_seconds(self) -> dict[str, Seconds]:
        """Return the seconds of each node, the call of a host node left out."""
        setting, own = self._setting, {name for role in self._setting.roles for name in role.nodes}
        placed = ((load, self._by_role.get(load.role.name)) for load in setting.loads)
        found = {load.node: self._load_seconds(home, load) for load, home in placed if home is not None}
        host = (node.name for node in setting.running.nodes if node.name not in own)
        return found | {name: self._host_seconds(name).times(setting.host_factor) for name in host}

    def _run(self, nodes: Sequence[str]) -> Seconds:
        loads = [self._loads[name] for name in nodes if name in self._loads]
        if loads:
            return added(self._load_seconds(self._by_role[load.role.name], load) for load in loads)
        takes = self._setting.host
        host = added([Seconds({"call": takes.call_s}), *(self._host_seconds(name) for name in nodes)])
        return host.times(self._setting.host_factor)

    def _host_seconds(self, name: str) -> Seconds:
        """Return the seconds of host work; of the last prompt alone where rows come one by one, as they are drawn."""
        found = self._setting.host_work.node_seconds(name, self._setting.host)
        return found.times(1 / self._setting.prompts) if self._streams_along(name) else found

    def _streams_along(self, name: str) -> bool:
        """Return whether a host node works on rows as each prompt's are drawn: it reads no batch of any other model."""
        node = next((each for each in self._setting.running.nodes if each.name == name), None)
        if node is None or not node.op.separable:
            return False
        names = (each.name for each in reachable(node.edges()) if isinstance(each, Node))
        read = [self._loads[name] for name in names if name in self._loads]
        return bool(read) and all(load.phase == "generate" and streams(self._setting, load.role) for load in read)

    def _load_seconds(self, home: Home, load: Load) -> Seconds:
        if home.role.use != "sample" or not streams(self._setting, home.role):
            return work_of(self._setting, home, load)
        return work_of(self._setting, home, load, self._in_flight(home, load))

    def _bytes_per_s(self, source: str, target: str) -> float:
        """Return the bytes per second between two places: over a device's own link, or a machine's network.

        Which machine a pool's rows are on is not known: where there are several, all of them travel.
        """
        links = [self._seats[place].links for place in (source, target) if place in self._seats]
        if len(self._setting.cluster.nodes) == 1:
            return min(each.device.host_bytes_per_s * HOST_SHARE for each in links)
        return min(network_bytes_per_s(each) * each.node_devices for each in links)


def node_seconds(setting: Setting, homes: Sequence[Home]) -> dict[str, Seconds]:
    """Return the seconds of each node of a step as its task takes them, the call of a host node left out.

    Nodes of roles without a home are left out.
    """
    return _Worked(setting, homes, outline_of(setting, homes)).node_seconds()


def schedule_of(tasks: Sequence[TimedTask], waits: Sequence[TaskOrder]) -> Schedule:
    """Return a plan's tasks as the schedule that is played; what passes between steps is a task without a pool."""
    played = [Task(each.name, each.kind, each.pools, each.seconds, shift=each.shift) for each in tasks]
    paused = [each for each in waits if each.pause_s]
    if not paused:
        return Schedule(tuple(played), tuple(Wait(each.before, each.after, each.delay) for each in waits))
    played.append(Task(DRIVER, "host", (), max(each.pause_s for each in paused)))
    ends = (Wait(name, DRIVER) for name in dict.fromkeys(each.before for each in paused))
    begins = (Wait(DRIVER, name, delay) for name, delay in dict.fromkeys((each.after, each.delay) for each in paused))
    rest = (Wait(each.before, each.after, each.delay) for each in waits if not each.pause_s)
    return Schedule(tuple(played), (*rest, *ends, *begins))


def work_of(setting: Setting, home: Home, load: Load, in_flight: InFlight | None = None) -> Seconds:
    """Return how long a load takes where its role lives, what it offloads and loses by sharing included.

    Rollouts that continue across steps have so many batches `in_flight`, None for the best way by itself. Sleeping and
    waking between tasks is not counted: that is switching, see `switching_of`.
    """
    seat = home.seat
    if home.role.use == "sample":
        sampled = sampling_seconds(setting, seat, home.engine, home.layout, home.running, load, in_flight)
        return sampled if sampled is not None else Seconds({"decode": None})
    passing = passing_seconds(setting, seat, home.engine, home.layout, home.running, load)
    parts = [passing, _slowed(setting, home, passing)]
    own = setting.loads_of(home.role)
    if load == own[-1] and home.running.offload:
        parts.append(offloaded_seconds(footprint_of(setting, home), seat, home.layout, home.running, own))
    return added(parts)


def switching_of(setting: Setting, home: Home) -> Seconds:
    """Return the seconds of a step in which a role goes to sleep and wakes, once each; none if it never sleeps."""
    if not home.running.sleeps:
        return Seconds()
    return added(_switch_seconds(setting, [home], awake=awake) for awake in (False, True))


def _slowed(setting: Setting, home: Home, passing: Seconds) -> Seconds:
    """Return what training loses on a pool that also draws."""
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
        held = max(footprint_of(setting, home).resident.get("weights", 0) for home in homes)
        return wake_seconds(held, device) if awake else Seconds({"sleep": 0.0})
    put_away = max(total_bytes(footprint_of(setting, home).asleep_host) for home in homes)
    return Seconds({"copy": offload_seconds(put_away, device)})


def _sync_seconds(setting: Setting, source: Home, target: Home) -> Seconds:
    shape = setting.shape(target.role)
    size_bytes, count = WEIGHT_BYTES * shape.trained, tensors(shape)
    factor = setting.sync_factor
    if source.pool == target.pool:
        resharded = reshard_seconds(size_bytes, count, source.layout, target.layout, source.seat.links)
        return resharded.times(factor)
    ends = source.seat.links, source.seat.devices, target.seat.links, target.seat.devices
    return sync_seconds(size_bytes, count, *ends, target.layout.data).times(factor)
