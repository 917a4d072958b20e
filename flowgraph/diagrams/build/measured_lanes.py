"""Measured steps as lanes: one for each pool, that of its busiest rank, idle where nothing was measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flowgraph.diagrams.model.charts import Bar, Lane, Lanes
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.lowering.program import HOST
from flowgraph.runtime.measure.measured_step import MeasuredStep
from flowgraph.runtime.measure.measured_task import MeasuredTask

StepTask = tuple[int, MeasuredTask]  # the number of its step in the run, and the task


def measured_lanes(steps: Sequence[MeasuredStep]) -> tuple[Lane, ...]:
    """Return a lane of measured tasks for each pool, sorted by name with the host last; empty without tasks.

    Times are seconds from the start of the first task. A lane shows the rank of the pool that was busy longest, the
    lowest of equally busy ones, and gaps as idle bars. Steps keep their numbers in the run. If two tasks overlap on
    that rank, the later one is drawn from the end of the earlier one, and is left out if it ends no later.
    """
    tasks = [(step.step, task) for step in steps for task in step.tasks]
    start_s = min((task.begin_s for _, task in tasks), default=0.0)
    end_s = max((task.end_s for _, task in tasks), default=0.0) - start_s
    pools = sorted({task.pool for _, task in tasks}, key=lambda pool: (pool == HOST, pool))
    return tuple(Lane(pool, pool, tuple(_bars(tasks, pool, start_s, end_s)), True) for pool in pools)


def lanes_beside(forecast: Lanes, measured: Sequence[Lane]) -> Lanes:
    """Return the timeline of a forecast with each pool's measured lane below its forecast lane.

    Pools without a forecast come after the others, and the host is last. The timeline ends with the longer of both.
    `about` gets a sentence with the measured seconds, or one that says that nothing was measured.

    >>> lanes = Lanes("", (Lane("a", "a", ()), Lane("host", "host", ())), 0.0)
    >>> both = lanes_beside(lanes, [Lane("host", "host", (), True), Lane("a", "a", (), True)])
    >>> [(lane.label, lane.measured) for lane in both.lanes]
    [('a', False), ('a', True), ('host', False), ('host', True)]
    """
    lanes = [*forecast.lanes, *measured]
    pools = sorted(dict.fromkeys(lane.pool for lane in lanes), key=lambda pool: pool == HOST)
    by_pool = tuple(lane for pool in pools for lane in lanes if lane.pool == pool)
    ends_s = [max((bar.end_s for bar in lane.bars), default=0.0) for lane in measured]
    steps = "the same steps" if forecast.lanes else "the steps"
    text = f"Measured, {steps} took {show_s(max(ends_s))}." if ends_s else "Nothing was measured."
    about = f"{forecast.about} {text}".strip()
    return replace(forecast, lanes=by_pool, end_s=max([forecast.end_s, *ends_s]), about=about)


def _bars(tasks: Sequence[StepTask], pool: str, start_s: float, end_s: float) -> Iterator[Bar]:
    busy_s = defaultdict[int, float](float)
    for _, task in tasks:
        if task.pool == pool:
            busy_s[task.rank] += task.seconds
    busiest = max(sorted(busy_s), key=lambda rank: busy_s[rank])
    of_rank = [(step, task) for step, task in tasks if task.pool == pool and task.rank == busiest]
    last_s, last_step = 0.0, tasks[0][0]
    for step, task in sorted(of_rank, key=lambda step_task: (step_task[1].begin_s, -step_task[1].seconds)):
        begin_s, until_s = max(last_s, task.begin_s - start_s), task.end_s - start_s
        if until_s > begin_s:
            yield from _idle(pool, last_s, begin_s, step)
            role = f" as {task.role}" if task.role else ""
            about = f"{task.task} of step {step} took {show_s(task.seconds)} on rank {task.rank} of {task.pool}{role}."
            yield Bar(begin_s, until_s, task.task, task.kind, about, step)
            last_s, last_step = until_s, step
    yield from _idle(pool, last_s, end_s, last_step)


def _idle(pool: str, start_s: float, end_s: float, step: int) -> Iterator[Bar]:
    if end_s > start_s:
        about = f"Nothing was measured on {pool} for {show_s(end_s - start_s)}."
        yield Bar(start_s, end_s, "idle", "idle", about, step)
