"""A measured step: in the form of a plan's forecast, as a line of `measured.jsonl`, and as events of a Chrome trace.

`measured_task` measures a single task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt

from flowgraph.cluster.cluster import Data
from flowgraph.cluster.plan import PhasePeak, Plan, PoolForecast, StepForecast, TaskOrder, TimedTask
from flowgraph.errors import RunFolderError
from flowgraph.files.untrusted import json_as, read_bytes
from flowgraph.lowering.program import HOST, Program, Run, Sync
from flowgraph.lowering.task_names import task_name
from flowgraph.lowering.waits import homes_of, homes_replaced, waits_for
from flowgraph.runtime.driver import HeldOutResult
from flowgraph.runtime.interpreter import StepResult
from flowgraph.runtime.measure.measured_task import MeasuredTask
from flowgraph.runtime.record.checkpoint import disk_fault
from flowgraph.runtime.record.recorder import Journal
from flowgraph.runtime.record.run_folder import RunFolder

NAME = "measured.jsonl"
MAX_MEASURED_BYTES = 2**28

Event = dict[str, Any]


class MeasuredStep(Data):
    """The measurements of one step: its timing, the peak memory of each pool, and each task on each rank.

    `timed` and `forecast` have the form of a plan's forecast.
    """

    step: NonNegativeInt
    timed: StepForecast
    forecast: tuple[PoolForecast, ...]
    tasks: tuple[MeasuredTask, ...]


def measured_step(step: int, measured: Sequence[MeasuredTask], program: Program, seconds: float) -> MeasuredStep:
    """Return the measurements of step `step` of a program, with tasks in the order in which they began.

    `measured` are the step's tasks on all ranks, and `seconds` is the duration of the whole step. A weight sync has no
    role, so it gets the role that samples at its target, or else the first role there.
    """
    served = dict[str, str]()
    for sync in program.tasks:
        if isinstance(sync, Sync):
            home = (sync.target.pool, sync.target.engine, sync.target.param)
            placed = program.plan.placed
            roles = [r.role for r in placed if (r.pool, r.engine, r.role.partition(".")[0]) == home]
            sampling = (role for role in roles if role.endswith(".sample"))
            served[task_name(sync)] = next(sampling, roles[0] if roles else "")
    named = (replace(task, role=task.role or served.get(task.task, "")) for task in measured)
    tasks = tuple(sorted(named, key=lambda task: task.begin_s))
    timed = step_timing(tasks, program, seconds)
    return MeasuredStep(step=step, timed=timed, forecast=peaks_by_pool(tasks, program.plan), tasks=tasks)


def step_timing(measured: Sequence[MeasuredTask], program: Program, seconds: float) -> StepForecast:
    """Return the timing of a measured step: its tasks, the seconds of their slowest ranks, and their dependencies.

    `measured` are the tasks on all ranks; `seconds` is the duration of the step. Tasks are in the program's order;
    those that are not in the program come last, without dependencies.
    """
    ranks = defaultdict[str, list[MeasuredTask]](list)
    for task in measured:
        ranks[task.task].append(task)
    by_name = {task_name(task): place for place, task in reversed(list(enumerate(program.tasks)))}
    # A replayed run lacks its recorded nodes, and is recognized by the first of the others.
    by_node = {node: place for place, task in enumerate(program.tasks) if isinstance(task, Run) for node in task.nodes}
    places = {name: by_name.get(name, by_node.get(name.partition(", ")[0], len(program.tasks))) for name in ranks}
    names = sorted(ranks, key=lambda name: (places[name], ranks[name][0].begin_s))
    waits = _waits(program, {place: name for name, place in places.items() if place < len(program.tasks)})
    return StepForecast(tasks=tuple(combine_ranks(ranks[name]) for name in names), waits=tuple(waits), period_s=seconds)


def combine_ranks(ranks: Sequence[MeasuredTask]) -> TimedTask:
    """Return the timing of one task from its measurements on all ranks: the seconds of the slowest rank of each pool.

    If the task ran in one pool, the seconds are split into the parts that the slowest rank measured, and "around" for
    the rest; without such parts, all are "measured". Repetitions within the step are added. `ranks` must not be empty.

    >>> sent = MeasuredTask("sync", "sync", "p.sample", "a", 0, 0.0, 2.0)
    >>> combine_ranks([sent, MeasuredTask("sync", "sync", "", "b", 0, 2.0, 0.5)])
    TimedTask(name='sync', kind='sync', role='p.sample', pools=('a', 'b'), parts={'a': 2.0, 'b': 0.5}, shift=0, every=1)
    >>> combine_ranks([MeasuredTask("u", "update", "p.train", "a", rank, 0.0, 1.0 + rank) for rank in (0, 1)]).parts
    {'measured': 2.0}
    """
    by_rank = defaultdict[str, dict[int, list[MeasuredTask]]](dict)
    for task in ranks:
        by_rank[task.pool].setdefault(task.rank, []).append(task)  # several where a task comes several times in a step
    slowest = {pool: max(times.values(), key=_seconds) for pool, times in by_rank.items()}
    parts = {pool: _seconds(times) for pool, times in slowest.items()}
    if len(slowest) == 1:
        parts = defaultdict[str, float](float)
        for task in next(iter(slowest.values())):
            for part, seconds in task.parts:
                parts[part] += seconds
            rest = task.seconds - sum(seconds for _, seconds in task.parts)
            parts["around" if task.parts else "measured"] += max(0.0, rest)
    role = next((task.role for task in ranks if task.role), "")
    return TimedTask(name=ranks[0].task, kind=ranks[0].kind, role=role, pools=tuple(slowest), parts=dict(parts))


def _seconds(tasks: Iterable[MeasuredTask]) -> float:
    return sum(task.seconds for task in tasks)


def peaks_by_pool(measured: Iterable[MeasuredTask], plan: Plan) -> tuple[PoolForecast, ...]:
    """Return the measured peak memory of each pool, in bytes, by phase and role, on the device with the highest peak.

    `measured` are the tasks of one step on all ranks. The host and pools without measurements are left out. If all
    pools share one process, each pool's peak includes the memory of the others.
    """
    tasks_by_pool = defaultdict[str, list[MeasuredTask]](list)
    for task in measured:
        tasks_by_pool[task.pool].append(task)
    forecasts = list[PoolForecast]()
    for pool in plan.pools:
        if tasks := tasks_by_pool.get(pool.name):
            peaks = dict[tuple[str, str], int]()
            for task in tasks:
                peaks[task.kind, task.role] = max(peaks.get((task.kind, task.role), 0), task.peak_bytes)
            phases = tuple(PhasePeak(phase=kind, role=role, memory_bytes=peak) for (kind, role), peak in peaks.items())
            process_bytes = max(task.process_bytes for task in tasks)
            forecasts.append(PoolForecast(pool=pool.name, process_bytes=process_bytes, peaks=phases))
    return tuple(forecasts)


def _waits(program: Program, names: Mapping[int, str]) -> Iterator[TaskOrder]:
    """Yield which measured task (`names`, by index in the program) waits for which, also across steps."""
    needs, measured_before = waits_for(program), list[frozenset[int]]()
    for place, task in enumerate(program.tasks):
        reached = (frozenset({need}) if need in names else measured_before[need] for need in needs[place])
        measured_before.append(frozenset().union(*reached))
        if place not in names:
            continue
        yield from (TaskOrder(before=names[need], after=names[place]) for need in sorted(measured_before[place]))
        updated = set(
            homes_replaced(task, program)
        )  # the earlier readers of these weights wait for them in the next step
        for earlier in range(place):
            if earlier in names and updated & set(homes_of(program.tasks[earlier])):
                yield TaskOrder(before=names[place], after=names[earlier], delay=1)


class MeasuredRecorder:
    """Writes the measurements of each step to `measured.jsonl`; a listener of the driver and a context manager."""

    def __init__(self, folder: RunFolder, program: Program) -> None:
        self._program = program
        self._file = Journal(folder.path / NAME)

    def stepped(self, step: int, ran: StepResult, seconds: float) -> None:
        """Append the measurements of a step to `measured.jsonl`; does nothing if no task was measured.

        Lines that the disk refuses are written with the next step; the run's recorder reports such a disk.
        """
        if not ran.observed.measured:
            return
        self._file.add(measured_step(step, ran.observed.measured, self._program, seconds).model_dump_json() + "\n")
        try:
            self._file.write()
        except OSError as error:
            if not disk_fault(error):  # the recorder of the run reports a disk that refuses
                raise

    def checked(self, step: int, result: HeldOutResult, seconds: float) -> None:
        """Do nothing: plans do not forecast checks."""

    def __enter__(self) -> MeasuredRecorder:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def read_measured(run: Path) -> list[MeasuredStep]:
    """Return the measured steps of a run folder in order; empty if the file does not exist.

    An incomplete last line is ignored. Of a step that was repeated after a resume, the last measurement is returned.
    Raises RunFolderError for any other invalid line, and for a file that cannot be read.
    """
    path = run / NAME
    try:
        lines = read_bytes(path, MAX_MEASURED_BYTES).split(b"\n")[:-1] if path.is_file() else []
        steps = [json_as(MeasuredStep, line) for line in lines]
    except (OSError, ValueError) as error:
        raise RunFolderError.cannot(str(path), error) from error
    return [step for _, step in sorted({step.step: step for step in steps}.items())]


def measured_events(steps: Sequence[MeasuredStep], first_process: int = 1) -> list[Event]:
    """Return measured steps as events of a Chrome trace, in microseconds; the first task begins at time 0.

    Each pool is a process of the trace, numbered from `first_process`, and each rank a thread. Arrows lead from where
    weights are sent to where they are loaded, and a counter shows the peak memory of each rank in GiB.
    """
    tasks = [(step.step, task) for step in steps for task in step.tasks]
    pools = sorted({task.pool for _, task in tasks}, key=lambda pool: (pool == HOST, pool))
    processes = {pool: process for process, pool in enumerate(pools, start=first_process)}
    start_s = min((task.begin_s for _, task in tasks), default=0.0)

    def begin(task: MeasuredTask) -> Event:
        return {"ts": round(1e6 * (task.begin_s - start_s), 3), "pid": processes[task.pool], "tid": task.rank + 1}

    events = list[Event]()
    for pool, process in processes.items():
        args: Event = {"name": f"{pool}, measured"}
        events.append({"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": args})
        for rank in sorted({task.rank for _, task in tasks if task.pool == pool}):
            args = {"name": f"rank {rank}"}
            events.append({"name": "thread_name", "ph": "M", "pid": process, "tid": rank + 1, "args": args})
    for number, task in tasks:
        args = {"step": number, "role": task.role, "seconds": task.seconds, "bytes read": task.bytes_read}
        args |= {"bytes given": task.bytes_given, "peak bytes": task.peak_bytes, **dict(task.parts)}
        duration = {"dur": round(1e6 * task.seconds, 3)}
        peak = {"name": f"peak of rank {task.rank}", "ph": "C", "args": {"GiB": task.peak_bytes / 2**30}}
        events.append({"name": task.task, "cat": task.kind, "ph": "X", **begin(task), **duration, "args": args})
        events.append({**peak, **begin(task)})
    sent = list[tuple[MeasuredTask, MeasuredTask]]()  # from the first rank to each that loads weights in another pool
    for step in steps:
        for name in dict.fromkeys(task.task for task in step.tasks if task.kind == "sync"):
            sender, *ranks = [task for task in step.tasks if task.task == name]
            sent += [(sender, receiver) for receiver in ranks if receiver.pool != sender.pool]
    for number, (sender, receiver) in enumerate(sent, start=1):
        arrow = {"name": "weights", "cat": "sync", "bp": "e", "id": number}
        events += [{**arrow, "ph": "s", **begin(sender)}, {**arrow, "ph": "f", **begin(receiver)}]
    return events
