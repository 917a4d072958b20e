"""The simulation of a schedule: when each task runs in the first steps.

Not here: the period without simulation (`period`), what pools wait for (`idle_time`), and pictures
(`report.simulation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import lcm

from placements.step.schedule import Schedule, in_order

ROUNDING = 1e-9  # share of two spans below which they are equal


@dataclass(frozen=True)
class TaskRun:
    """One step of one task: its start and end in seconds, and the run that it waited for last, as (task, step)."""

    task: str
    step: int
    start_s: float
    end_s: float
    freed_by: tuple[str, int] | None = None


@dataclass(frozen=True)
class TimelineEvent:
    """One step of one task on one pool."""

    task: str
    pool: str
    step: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """The runs of the first `steps` steps of a schedule, sorted by start."""

    schedule: Schedule
    steps: int
    runs: tuple[TaskRun, ...]

    @cached_property
    def events(self) -> tuple[TimelineEvent, ...]:
        """Return one event for each run on each pool, pool by pool, sorted by start."""
        events: dict[str, list[TimelineEvent]] = {pool: [] for pool in self.schedule.pools}
        for run in self.runs:
            for pool in self.schedule.by_name[run.task].pools:
                events[pool].append(TimelineEvent(run.task, pool, run.step, run.start_s, run.end_s))
        return tuple(event for lane in events.values() for event in lane)

    @cached_property
    def by_job(self) -> Mapping[tuple[str, int], TaskRun]:
        """Return the runs, keyed by (task, step)."""
        return {(run.task, run.step): run for run in self.runs}

    @cached_property
    def end_s(self) -> float:
        """Return the end of the last run, in seconds from the start of the first; 0 without runs."""
        return max((run.end_s for run in self.runs), default=0.0)

    @cached_property
    def finish_s(self) -> tuple[float, ...]:
        """Return for each step the time at which its last task ends, in seconds from the start; 0 without tasks."""
        finish_s = [0.0] * self.steps
        for run in self.runs:
            finish_s[run.step] = max(finish_s[run.step], run.end_s)
        return tuple(finish_s)

    @property
    def period_s(self) -> float | None:
        """Return the seconds from one step to the next at the end of the timeline; None for a single step.

        This is the mean over the last steps that repeat the steps before them; if none repeat yet, over the last half.
        """
        gaps = [second - first for first, second in pairwise(self.finish_s)][::-1]
        tolerance = ROUNDING * max(self.finish_s, default=0.0)
        steps = every = lcm(*(task.every for task in self.schedule.tasks))  # a rare task lengthens one step of several
        while steps <= len(gaps) // 2 and any(abs(gaps[i] - gaps[i + steps]) > tolerance for i in range(steps)):
            steps += every
        steps = steps if steps <= len(gaps) // 2 else len(self.finish_s) // 2
        return (self.finish_s[-1] - self.finish_s[-1 - steps]) / steps if steps else None

    def busy(self) -> Mapping[str, float]:
        """Return, by name of each pool, the share of the timeline in which the pool is busy; 0 for an empty timeline.

        The tasks of a pool in `parallel` are added up, so its share may exceed 1.
        """
        seconds = dict.fromkeys(self.schedule.pools, 0.0)
        for event in self.events:
            seconds[event.pool] += event.end_s - event.start_s
        return {pool: busy_s / self.end_s if self.end_s else 0.0 for pool, busy_s in seconds.items()}


def timeline_of(schedule: Schedule, *, steps: int = 1) -> Timeline:
    """Simulate the first `steps` steps of a schedule, and return when each task runs.

    Each task starts as early as its waits and its pools allow; a pool runs its tasks in their order. A task with a
    `shift` skips that many steps, since its input does not exist yet, and then runs in one of `every` steps. Raises
    ValueError if the seconds of a task are not known, if `steps` is below 1, or if tasks of one step wait for each
    other in a circle. Source: (max,+) recursion of a marked graph, F. Baccelli et al., Synchronization and Linearity,
    1992, 2.5.
    """
    order = in_order(schedule)
    if schedule.unknown:
        raise ValueError(f"a timeline needs the seconds of each task; not known: {', '.join(schedule.unknown)}")
    if steps < 1:
        raise ValueError(f"a timeline has 1 step or more, not {steps}")
    incoming: dict[str, list[tuple[str, int]]] = {task.name: [] for task in order}
    for wait in schedule.waits:
        incoming[wait.after].append((wait.before, wait.delay))
    runs, last = dict[tuple[str, int], TaskRun](), dict[str, TaskRun]()  # by task and step; of each pool
    for step in range(steps):
        for task in order:
            if not task.runs_in(step):
                continue
            waits = (runs.get((before, step - delay)) for before, delay in incoming[task.name])
            turns = (last.get(pool) for pool in task.pools if pool not in schedule.parallel)
            freed = max((run for run in (*waits, *turns) if run is not None), key=lambda run: run.end_s, default=None)
            start_s, freed_by = (0.0, None) if freed is None else (freed.end_s, (freed.task, freed.step))
            run = TaskRun(task.name, step, start_s, start_s + (task.seconds or 0.0), freed_by)
            runs[task.name, step] = run
            last |= dict.fromkeys(task.pools, run)
    return Timeline(schedule, steps, tuple(sorted(runs.values(), key=lambda run: (run.start_s, run.step))))
