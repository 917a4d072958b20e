"""A step as it was measured, in the form of a plan's forecast of one: tasks with their seconds, and peaks by pool.

Not here: how one task is measured (`measure`), and the file that steps are written to (`measured_file`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pydantic import NonNegativeInt

from flowgraph.cluster.cluster import Data
from flowgraph.cluster.plan import PhasePeak, Plan, PoolForecast, StepForecast, TaskOrder, TimedTask
from flowgraph.lowering.program import Program, Run, Sync
from flowgraph.lowering.task_names import task_name
from flowgraph.lowering.waits import homes_of, moved_on, waits_for
from flowgraph.runtime.measure.measured_task import MeasuredTask

WHOLE = "measured"
"""The part of a task that was not split."""


class MeasuredStep(Data):
    """One step of a run: what a plan says of a step and of each pool, as measured, and each task on each rank."""

    step: NonNegativeInt
    timed: StepForecast
    forecast: tuple[PoolForecast, ...]
    tasks: tuple[MeasuredTask, ...]


def measured_step(step: int, measured: Sequence[MeasuredTask], program: Program, seconds: float) -> MeasuredStep:
    """Put together what was measured of one step of a program that took so many seconds."""
    told = tuple(sorted(_with_roles(measured, program), key=lambda each: each.begin_s))
    return MeasuredStep(
        step=step, timed=step_of(told, program, seconds), forecast=forecast_of(told, program.plan), tasks=told
    )


def step_of(measured: Sequence[MeasuredTask], program: Program, seconds: float) -> StepForecast:
    """Give the tasks in the order of the program, and what waits for what of them.

    Of several ranks the slowest counts. What the program does not name comes last and waits for nothing.
    """
    found = defaultdict[str, list[MeasuredTask]](list)
    for each in measured:
        found[each.task].append(each)
    places = _places(program, found)
    tasks = sorted(found, key=lambda name: (places.get(name, len(program.tasks)), found[name][0].begin_s))
    waits = _waits(program, {place: name for name, place in places.items()})
    return StepForecast(tasks=tuple(timed(found[name]) for name in tasks), waits=tuple(waits), period_s=seconds)


def timed(ranks: Sequence[MeasuredTask]) -> TimedTask:
    """Give one task of all its ranks: of each pool the seconds of the slowest rank, in its parts if it is one pool.

    >>> sent = MeasuredTask("sync", "sync", "p.sample", "a", 0, 0.0, 2.0)
    >>> timed([sent, MeasuredTask("sync", "sync", "", "b", 0, 2.0, 0.5)])
    TimedTask(name='sync', kind='sync', role='p.sample', pools=('a', 'b'), parts={'a': 2.0, 'b': 0.5}, shift=0)
    >>> timed([MeasuredTask("u", "update", "p.train", "a", rank, 0.0, 1.0 + rank) for rank in (0, 1)]).parts
    {'measured': 2.0}
    """
    pools = dict.fromkeys(each.pool for each in ranks)
    slowest = {pool: _slowest([each for each in ranks if each.pool == pool]) for pool in pools}
    if len(slowest) == 1:
        parts = _parts(next(iter(slowest.values())))
    else:
        parts = {pool: sum(each.seconds for each in times) for pool, times in slowest.items()}
    role = next((each.role for each in ranks if each.role), "")
    return TimedTask(name=ranks[0].task, kind=ranks[0].kind, role=role, pools=tuple(pools), parts=dict(parts))


def forecast_of(measured: Iterable[MeasuredTask], plan: Plan) -> tuple[PoolForecast, ...]:
    """Give the peaks of each pool by phase and role, on the device that held most; the host has none.

    Places in one process see each other's memory, as they do where all of a run is in this process.
    """
    found = defaultdict[str, list[MeasuredTask]](list)
    for each in measured:
        found[each.pool].append(each)
    return tuple(_pool_forecast(pool.name, found[pool.name]) for pool in plan.pools if pool.name in found)


def _pool_forecast(pool: str, measured: Sequence[MeasuredTask]) -> PoolForecast:
    most = dict[tuple[str, str], int]()
    for each in measured:
        key = (each.kind, each.role)
        most[key] = max(most.get(key, 0), each.peak_bytes)
    peaks = tuple(PhasePeak(phase=kind, role=role, memory_bytes=held) for (kind, role), held in most.items())
    return PoolForecast(pool=pool, process_bytes=max(each.process_bytes for each in measured), peaks=peaks)


def _slowest(ranks: Sequence[MeasuredTask]) -> list[MeasuredTask]:
    """Give what the slowest rank measured: more than one where a task comes several times in a step."""
    by_rank = defaultdict[int, list[MeasuredTask]](list)
    for each in ranks:
        by_rank[each.rank].append(each)
    return max(by_rank.values(), key=lambda times: sum(each.seconds for each in times))


def _parts(times: Sequence[MeasuredTask]) -> Mapping[str, float]:
    """Give the seconds of a task by part; the rest is what is around them."""
    found = defaultdict[str, float](float)
    for each in times:
        for part, seconds in each.parts:
            found[part] += seconds
        rest = each.seconds - sum(seconds for _, seconds in each.parts)
        found["around" if each.parts else WHOLE] += max(0.0, rest)
    return found


def _places(program: Program, names: Iterable[str]) -> dict[str, int]:
    """Give where in a program the measured tasks stand; a run without recorded nodes is found by those left."""
    whole = {task_name(task): place for place, task in reversed(list(enumerate(program.tasks)))}
    by_node = {node: place for place, task in enumerate(program.tasks) if isinstance(task, Run) for node in task.nodes}
    found = {name: whole.get(name, by_node.get(name.partition(", ")[0])) for name in names}
    return {name: place for name, place in found.items() if place is not None}


def _waits(program: Program, names: Mapping[int, str]) -> Iterator[TaskOrder]:
    """Give what measured tasks wait for: each other, through tasks that were not measured; weights of the step before.

    `names` are those of measured tasks, by their place in the program.
    """
    needs, behind = waits_for(program), list[frozenset[int]]()
    for place in range(len(program.tasks)):
        reached = (frozenset({each}) if each in names else behind[each] for each in needs[place])
        behind.append(frozenset().union(*reached))
        if place in names:
            yield from (TaskOrder(before=names[each], after=names[place]) for each in sorted(behind[place]))
            yield from (
                TaskOrder(before=names[place], after=name, delay=1) for name in _next_readers(program, place, names)
            )


def _next_readers(program: Program, place: int, names: Mapping[int, str]) -> Iterator[str]:
    """Name the tasks before one that read, in the next step, the weights that it puts in place of what they read."""
    moved = set(moved_on(program.tasks[place], program))
    for earlier in range(place):
        if earlier in names and moved & set(homes_of(program.tasks[earlier])):
            yield names[earlier]


def _with_roles(measured: Iterable[MeasuredTask], program: Program) -> Iterator[MeasuredTask]:
    """Say of a sync which role it is for: of those that share its target, the one that samples if there is one."""
    targets = {task_name(task): task.target for task in program.tasks if isinstance(task, Sync)}
    for each in measured:
        target = targets.get(each.task)
        if target is None or each.role:
            yield each
            continue
        at = [placed for placed in program.plan.placed if (placed.pool, placed.engine) == (target.pool, target.engine)]
        own = [placed.role for placed in at if placed.role.partition(".")[0] == target.param]
        yield replace(each, role=next((role for role in own if role.endswith(".sample")), own[0] if own else ""))
