"""Measured steps as lanes to be drawn: a lane for each pool, that of its busiest rank, idle where nothing was measured.

Not here: the lanes of a forecast, which `lanes_beside` puts these beneath.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowgraph.diagrams.model.charts import Bar, Lane
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.lowering.program import HOST
from flowgraph.runtime.measure.measured_step import MeasuredStep
from flowgraph.runtime.measure.measured_task import MeasuredTask

Done = tuple[int, MeasuredTask]  # a task and the step of the run that it is of


def measured_lanes(steps: Sequence[MeasuredStep]) -> tuple[Lane, ...]:
    """Give what each pool did in these steps, in seconds from the begin of the first task; the host comes last.

    Steps keep the numbers that the run has for them.

    Of several ranks the one that was busy longest is shown. Of two tasks at once on it the later begins, in the
    picture, where the other ends.
    """
    tasks = [(step.step, task) for step in steps for task in step.tasks]
    start_s = min((task.begin_s for _, task in tasks), default=0.0)
    end_s = max((task.end_s for _, task in tasks), default=0.0) - start_s
    pools = sorted({task.pool for _, task in tasks}, key=lambda pool: (pool == HOST, pool))
    return tuple(Lane(pool, pool, tuple(_bars(tasks, pool, start_s, end_s)), True) for pool in pools)


def _bars(tasks: Sequence[Done], pool: str, start_s: float, end_s: float) -> Iterator[Bar]:
    """Give the bars of a pool, one after another from 0 to the end."""
    last_s, last_step = 0.0, tasks[0][0] if tasks else 0
    for step, task in _busiest([each for each in tasks if each[1].pool == pool]):
        begin_s, until_s = max(last_s, task.begin_s - start_s), task.end_s - start_s
        if until_s > begin_s:
            yield from _idle(pool, last_s, begin_s, step)
            yield Bar(begin_s, until_s, task.task, task.kind, _about(step, task), step)
            last_s, last_step = until_s, step
    yield from _idle(pool, last_s, end_s, last_step)


def _busiest(tasks: Sequence[Done]) -> list[Done]:
    """Give the tasks of the rank that was busy longest, by when they began, the longer of equals first."""
    ranks = sorted({task.rank for _, task in tasks})
    rank = max(ranks, key=lambda rank: sum(task.seconds for _, task in tasks if task.rank == rank))
    own = (each for each in tasks if each[1].rank == rank)
    return sorted(own, key=lambda each: (each[1].begin_s, -each[1].seconds))


def _about(step: int, task: MeasuredTask) -> str:
    role = f" as {task.role}" if task.role else ""
    return f"{task.task} of step {step} took {show_s(task.seconds)} on rank {task.rank} of {task.pool}{role}."


def _idle(pool: str, start_s: float, end_s: float, step: int) -> Iterator[Bar]:
    if end_s > start_s:
        about = f"Nothing was measured on {pool} for {show_s(end_s - start_s)}."
        yield Bar(start_s, end_s, "idle", "idle", about, step)
