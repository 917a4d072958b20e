"""The forecast seconds of a step: the tasks of its program, how long each takes, and what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, fsum, lcm

from flowgraph.cluster.plan import StepForecast, TaskOrder, TimedTask
from flowgraph.engines.table import shares_process
from flowgraph.language.graph import Node, reachable
from flowgraph.lowering.program import HOST, IDS_ONLY, Join, Read, Run, Switch, Sync, Take, Transfer
from flowgraph.lowering.program import Home as ProgramHome
from flowgraph.lowering.program import Task as ProgramTask
from placements.memory.footprint import total_bytes
from placements.step.memory_forecast import footprint_of
from placements.step.period import Period, makespan, period
from placements.step.role_costs import best_in_flight, offloaded_seconds, passing_seconds, sampling_seconds, streams
from placements.step.role_placements import RolePlacement, in_order
from placements.step.schedule import Schedule, ScheduledTask, TaskWait
from placements.step.tasks import ProgramPlacement, StepOutline, outline
from placements.time.collectives import network_bytes_per_s
from placements.time.host_work import host_work_of
from placements.time.in_flight import InFlight
from placements.time.seconds import Seconds, added
from placements.time.training import WEIGHT_BYTES
from placements.time.transitions import (
    HOST_SHARE,
    offload_seconds,
    reshard_seconds,
    sync_seconds,
    tensors,
    wake_seconds,
)
from placements.workload.node_workload import NodeWorkload
from placements.workload.planning_problem import PlanningProblem

DRIVER = "the driver"
"""The name of the pause between steps, as tasks wait for it."""


def step_of(problem: PlanningProblem, homes: Sequence[RolePlacement]) -> StepForecast:
    """Return the forecast of a step of placed roles: the tasks of its program, their waits, and its period.

    A step begins when the previous one has ended, unless a role works ahead. If the seconds of any task are not known,
    the period is None.
    """
    timed = _TimedStep(problem, homes)
    step, seconds, every = timed.outline, timed.seconds(), timed.every()
    tasks = tuple(
        TimedTask(
            name=step.names[place],
            kind=step.kinds[place],
            role=step.roles[place],
            pools=step.pools[place],
            parts=dict(seconds[place].parts),
            shift=step.shifts[place] if step.ahead else 0,
            every=every[place],
        )
        for place in range(len(step.tasks))
    )
    undriven = period(schedule_of(tasks, step.waits)) if step.ahead else _alone(step, seconds, every)
    if undriven.seconds is None:
        return StepForecast(tasks=tasks, waits=step.waits, period_s=None)
    driver_s = problem.host.driver_share * undriven.seconds
    waits = step.waits_with(driver_s)
    if not step.ahead:
        return StepForecast(tasks=tasks, waits=waits, period_s=undriven.seconds + driver_s, cycle=undriven.cycle)
    driven = period(schedule_of(tasks, waits))
    cycle = tuple(name for name in driven.cycle if name != DRIVER)
    return StepForecast(tasks=tasks, waits=waits, period_s=driven.seconds, cycle=cycle)


def period_of(problem: PlanningProblem, homes: Sequence[RolePlacement]) -> float | None:
    """Return the seconds from one step of placed roles to the next, as in `step_of`; None if not known."""
    timed = _TimedStep(problem, homes)
    if timed.outline.ahead:
        return step_of(problem, homes).period_s
    step_s = _alone(timed.outline, timed.seconds(), timed.every()).seconds
    return None if step_s is None else step_s + problem.host.driver_share * step_s


def _alone(step: StepOutline, seconds: Sequence[Seconds], every: Sequence[int]) -> Period:
    spans = list[Period]()
    for number in range(lcm(*every)):
        runs = zip(seconds, every, strict=True)
        totals = [0.0 if number % steps else task.total_s for task, steps in runs]
        spans.append(makespan(step.names, step.before, totals))
    totals_s = [span.seconds for span in spans if span.seconds is not None]
    return replace(spans[0], seconds=fsum(totals_s) / len(spans)) if len(totals_s) == len(spans) else spans[0]


def outline_of(problem: PlanningProblem, homes: Sequence[RolePlacement]) -> StepOutline:
    """Return the tasks of a step of placed roles, and their waits, without seconds.

    If one engine trains a model and another generates with it, the graph is the problem's `watched` graph, if it has
    one, whose tasks also measure the mismatch of the two.
    """
    copies = dict[str, list[tuple[object, ...]]]()
    placements = list[ProgramPlacement]()
    for home in in_order(problem, homes):
        # Roles of one model with the same pool, engine, layout and settings share weights.
        key = home.pool, home.engine, home.layout, home.running
        model = copies.setdefault(home.role.param, [])
        model += [key] if key not in model else []
        sleeps, copy = home.running.sleeps, model.index(key)
        placement = ProgramPlacement(
            role=home.role.name,
            pool=home.pool,
            engine=home.engine,
            copy=copy,
            sleeps=sleeps,
            lag=home.lag,
            ahead=home.ahead,
            chunks=home.chunks,
            contract=home.running.contract,
            behind=home.behind,
        )
        placements.append(placement)
    # If one engine trains a model and another generates with it, a run measures their mismatch.
    trained = {home.role.param: home.engine for home in homes if home.role.use == "train"}
    sampled = [home for home in homes if home.role.use == "sample"]
    mismatched = any(trained.get(home.role.param, home.engine) != home.engine for home in sampled)
    graph = problem.running if mismatched else problem.graph
    return outline(graph, tuple(placements))


def synced_every(problem: PlanningProblem, homes: Sequence[RolePlacement]) -> int:
    """Return the number of steps from one weight sync to the next, of the most frequent sync; 1 without syncs."""
    timed = _TimedStep(problem, homes)
    synced = zip(timed.outline.tasks, timed.every(), strict=True)
    return min((every for task, every in synced if isinstance(task, Sync)), default=1)


def node_seconds(problem: PlanningProblem, homes: Sequence[RolePlacement]) -> dict[str, Seconds]:
    """Return the seconds of each node of a step, by name and kind of work, without the call overhead of host nodes.

    The kinds are those of `work_of` for nodes that run a model, and those of `HostWork.node_seconds` for the others. A
    node of a role has no entry if it makes no pass of its own, or if the role has no placement in `homes`. A role
    without any pass has an entry under its own name.
    """
    timed = _TimedStep(problem, homes)
    of_roles = {name for role in problem.roles for name in role.nodes}
    host = (node.name for node in problem.running.nodes if node.name not in of_roles)
    loads = (load for load in problem.loads if load.role.name in timed.by_role)
    seconds = {load.node: timed.load_seconds(load) for load in loads}
    return seconds | {name: timed.host_seconds(name).times(problem.host_factor) for name in host}


class _TimedStep:
    def __init__(self, problem: PlanningProblem, homes: Sequence[RolePlacement]) -> None:
        self.problem, self.outline = problem, outline_of(problem, homes)
        self.by_role = {home.role.name: home for home in homes}
        self._groups = {home.pool: home.group for home in homes}
        self._loads = {load.node: load for load in problem.loads}
        self._by_copy = dict[ProgramHome, list[RolePlacement]]()
        for role, copy in self.outline.homes.items():
            self._by_copy.setdefault(copy, []).extend([self.by_role[role]] if role in self.by_role else [])

    def seconds(self) -> list[Seconds]:
        moving = zip(self.outline.tasks, self.outline.moving, strict=True)
        return [self._seconds(task, moves=moves) for task, moves in moving]

    def _seconds(self, task: ProgramTask, *, moves: bool) -> Seconds:
        host = self.problem.host
        match task:
            case Run(nodes) if task.chunk is not None:
                batch = self._seconds(replace(task, chunk=None, streamed=()), moves=moves)
                if not task.hands_out:
                    return batch.times(1 / task.chunk.of)
                home, load = self.by_role[task.role], self._loads[nodes[0]]
                ends = [chunk_end(self.problem, home, load, batch, n / task.chunk.of) for n in range(task.chunk.of + 1)]
                return batch.times(ends[task.chunk.index + 1] - ends[task.chunk.index])
            case Run(nodes):
                if loads := [self._loads[name] for name in nodes if name in self._loads]:
                    return added(map(self.load_seconds, loads))
                call = Seconds({"call": host.call_s})
                return added([call, *map(self.host_seconds, nodes)]).times(self.problem.host_factor)
            case Read():
                return Seconds({"call": host.call_s})
            case Transfer(value, source, target, parts):
                if parts == IDS_ONLY:
                    return Seconds({"call": host.call_s})
                rate = self._bytes_per_s(source, target)
                seconds = host_work_of(self.problem).travel_seconds(value, parts, rate, host)
                return seconds.times(1 / task.chunk.of) if task.chunk is not None else seconds
            case Join() | Take():
                return Seconds({"call": host.call_s})
            case Sync(_, source, target):
                return _sync_seconds(self.problem, self._by_copy[source][0], self._by_copy[target][0])
            case Switch(home, awake) if moves:
                return _switch_seconds(self.problem, self._by_copy[home], awake=awake)
            case Switch():
                return Seconds({"call": 0.0})

    def host_seconds(self, name: str) -> Seconds:
        """Return the seconds of host work; of the last prompt alone if it runs while later prompts are generated."""
        problem = self.problem
        seconds = host_work_of(problem).node_seconds(name, problem.host)
        node = next((node for node in problem.running.nodes if node.name == name), None)
        if node is None or not node.op.separable:
            return seconds
        sources = (source.name for source in reachable(node.edges()) if isinstance(source, Node))
        loads = [self._loads[source] for source in sources if source in self._loads]
        streamed = bool(loads) and all(load.phase == "generate" and streams(problem, load.role) for load in loads)
        return seconds.times(1 / problem.prompts) if streamed else seconds

    def load_seconds(self, load: NodeWorkload) -> Seconds:
        home = self.by_role[load.role.name]
        goes_on = home.running.in_flight or streams(self.problem, home.role)
        return work_of(
            self.problem, home, load, self._in_flight(home, load) if goes_on and home.role.use == "sample" else None
        )

    def every(self) -> list[int]:
        every = list[int]()
        for task, copy in zip(self.outline.tasks, self.outline.copies, strict=True):
            homes = self._by_copy[task.target] if isinstance(task, Sync) else []
            streamed = [home for home in homes if home.role.use == "sample" and streams(self.problem, home.role)]
            ways = (self._in_flight(home, load) for home in streamed for load in self.problem.loads_of(home.role))
            every.append(min((way.sync_every for way in ways), default=1 if copy is None else copy.sync_every))
        return every

    def _in_flight(self, home: RolePlacement, load: NodeWorkload) -> InFlight:
        problem, target = self.problem, next(copy for copy, homes in self._by_copy.items() if home in homes)
        syncs = [task for task in self.outline.tasks if isinstance(task, Sync) and task.target == target]
        sources = (self._by_copy[sync.source][0] for sync in syncs)
        sync_s = max((_sync_seconds(problem, source, home).total_s or 0.0 for source in sources), default=0.0)
        # Other pools work on the rows of a step before its update ends.
        reading = (read for read in problem.loads if read.phase != "generate" and read.role.name in self.by_role)
        placed = ((self.by_role[read.role.name], read) for read in reading)
        elsewhere = ((place, read) for place, read in placed if place.pool != home.pool)
        training_s = fsum(work_of(problem, place, read).total_s or 0.0 for place, read in elsewhere)
        settings = home.group, home.engine, home.layout, home.running
        return best_in_flight(
            problem,
            *settings,
            load,
            ahead=max(1, self.outline.depth),
            every=home.every(problem.running),
            sync_s=sync_s,
            training_s=training_s,
        )

    def _bytes_per_s(self, source: str, target: str) -> float:
        """Return the bytes per second between two pools; with several machines, all rows cross the network."""
        links = [self._groups[pool].links for pool in (source, target) if pool in self._groups]
        if len(self.problem.cluster.nodes) == 1:
            return min(link.device.host_bytes_per_s * HOST_SHARE for link in links)
        return min(network_bytes_per_s(link) * link.node_devices for link in links)


def schedule_of(tasks: Sequence[TimedTask], waits: Sequence[TaskOrder]) -> Schedule:
    """Return the timed tasks of a plan as a schedule to simulate.

    The pause of the driver between steps becomes a task without a pool. If steps overlap, the host runs several tasks
    at once. Raises PlanError, UnknownNameError or ValueError for duplicate tasks, for waits of unknown tasks, and for
    negative or infinite seconds.
    """
    scheduled = [
        ScheduledTask(task.name, task.kind, task.pools, task.seconds, shift=task.shift, every=task.every)
        for task in tasks
    ]
    paused = [wait for wait in waits if wait.pause_s]
    direct = [TaskWait(wait.before, wait.after, wait.delay) for wait in waits if not wait.pause_s]
    if paused:
        scheduled.append(ScheduledTask(DRIVER, "host", (), max(wait.pause_s for wait in paused)))
        # The pause of a step is one of the step before what comes after it.
        direct += [
            TaskWait(before=name, after=DRIVER, delay=delay - 1)
            for name, delay in dict.fromkeys((w.before, w.delay) for w in paused)
        ]
        direct += [
            TaskWait(before=DRIVER, after=name, delay=1) for name in dict.fromkeys(wait.after for wait in paused)
        ]
    overlap = any(task.shift for task in tasks)
    return Schedule(tuple(scheduled), tuple(direct), frozenset({HOST} if overlap else ()))


def work_of(
    problem: PlanningProblem, home: RolePlacement, load: NodeWorkload, in_flight: InFlight | None = None
) -> Seconds:
    """Return the seconds of a role's node on its pool by kind of work, with offloading and slowdown by a shared pool.

    The kinds are those of `sampling_seconds` for a role that samples. For others they are those of `passing_seconds`,
    `sharing` for training on a pool that also samples, and `offload`, which is counted in the role's last node. For
    rollouts that continue across steps, `in_flight` has the batches in flight; None chooses the fastest number. If a
    cache cannot hold the longest row, the only kind, `decode`, is None. Sleeping and waking between tasks are not
    included: see `switching_of`.
    """
    settings = home.group, home.engine, home.layout, home.running
    if home.role.use == "sample":
        sampling = sampling_seconds(problem, *settings, load, in_flight)
        return sampling if sampling is not None else Seconds({"decode": None})
    passing = passing_seconds(problem, *settings, load)
    parts, loads = [passing], problem.loads_of(home.role)
    if home.shared and home.role.use == "train":  # training is slower on a pool that also samples
        share, total_s = problem.host.slowed_share - 1, passing.total_s
        parts.append(Seconds({"sharing": None if total_s is None else share * total_s}))
    if load == loads[-1] and home.running.offload:
        parts.append(offloaded_seconds(footprint_of(problem, home), home.group, home.layout, home.running, loads))
    return added(parts)


def chunk_end(problem: PlanningProblem, home: RolePlacement, load: NodeWorkload, batch: Seconds, share: float) -> float:
    """Return when a `share` of the groups of a step has finished, as a share of the `batch` seconds of sampling them.

    A group has finished with its longest response. If all responses run at once, this depends on their lengths alone;
    if many wait, groups also finish in turn, as fast as full batches generate tokens. An engine in the process of its
    device returns the responses of a batch together. If the seconds of the batch are 0 or not known, the result is
    `share`.
    """
    if share in (0.0, 1.0) or not batch.total_s:
        return share if share < 1 else 1.0
    if shares_process(home.engine):
        batches = ceil(load.round_rows / home.layout.data / problem.sample_rows)
        return ceil(share * batches) / batches
    longest = load.response.longest_of(max(1, round(load.round_rows)))
    finished = load.response.quantile(share ** (1 / load.samples)) / longest
    in_turn = share * (1 - (batch.parts.get("tail") or 0.0) / batch.total_s)
    return min(1.0, max(finished, in_turn))


def switching_of(problem: PlanningProblem, home: RolePlacement) -> Seconds:
    """Return the seconds per step in which a role goes to sleep and wakes, once each.

    The keys are `copy` and, for a role that samples, also `sleep` (0) and `wake`; there are none if the role never
    sleeps.
    """
    if not home.running.sleeps:
        return Seconds()
    return added(_switch_seconds(problem, [home], awake=awake) for awake in (False, True))


def _switch_seconds(problem: PlanningProblem, homes: Sequence[RolePlacement], *, awake: bool) -> Seconds:
    device = homes[0].group.links.device
    if any(home.role.use == "sample" for home in homes):
        weights = max(footprint_of(problem, home).resident.get("weights", 0) for home in homes)
        return wake_seconds(weights, device) if awake else Seconds({"sleep": 0.0})
    asleep_bytes = max(total_bytes(footprint_of(problem, home).asleep_host) for home in homes)
    return Seconds({"copy": offload_seconds(asleep_bytes, device)})


def _sync_seconds(problem: PlanningProblem, source: RolePlacement, target: RolePlacement) -> Seconds:
    shape = problem.shape(target.role)
    size_bytes, count = WEIGHT_BYTES * shape.trained, tensors(shape)
    if source.pool == target.pool:
        sync = reshard_seconds(size_bytes, count, source.layout, target.layout, source.group.links)
    else:
        ends = source.group.links, source.group.devices, target.group.links, target.group.devices
        sync = sync_seconds(size_bytes, count, *ends, target.layout.data)
    return sync.times(problem.sync_factor)
