"""When each task of a schedule runs: some steps played from the first on.

Not here: the period without playing (`cycles`), what pools wait for (`bubbles`), and how it is drawn (`timeline_text`,
`chrome_trace`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from itertools import pairwise

from placements.schedule import Schedule, Task, constraints, in_order

# Two spans that differ by less than this share of them are the same.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Run:
    """One step of one task: from when to when, and whose end it waited for last, as (task, step)."""

    task: str
    step: int
    start_s: float
    end_s: float
    freed_by: tuple[str, int] | None = None


@dataclass(frozen=True)
class Event:
    """One step of one task on one pool."""

    task: str
    pool: str
    step: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """The runs of the first `steps` steps of a schedule, by start."""

    schedule: Schedule
    steps: int
    runs: tuple[Run, ...]

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """Give what each pool does, pool by pool, by start."""
        found: dict[str, list[Event]] = {pool: [] for pool in self.schedule.pools}
        for run in self.runs:
            for pool in self.schedule.by_name[run.task].pools:
                found[pool].append(Event(run.task, pool, run.step, run.start_s, run.end_s))
        return tuple(event for events in found.values() for event in events)

    @cached_property
    def by_job(self) -> Mapping[tuple[str, int], Run]:
        """Give the runs by task and step."""
        return {(run.task, run.step): run for run in self.runs}

    @cached_property
    def end_s(self) -> float:
        """Give when the last run ends, in seconds from the start of the first."""
        return max((run.end_s for run in self.runs), default=0.0)

    @cached_property
    def finish_s(self) -> tuple[float, ...]:
        """Give when all of a step has ended, for each step."""
        found = [0.0] * self.steps
        for run in self.runs:
            found[run.step] = max(found[run.step], run.end_s)
        return tuple(found)

    def step_s(self, step: int = 0) -> float:
        """Give the makespan of one step: from the start of its first run to the end of its last."""
        return self.finish_s[step] - min((run.start_s for run in self.runs if run.step == step), default=0.0)

    @property
    def period_s(self) -> float | None:
        """Give the measured time from step to step, of the last steps; None with one step."""
        every = _rhythm(self.finish_s)
        return (self.finish_s[-1] - self.finish_s[-1 - every]) / every if every else None

    @property
    def steady(self) -> tuple[float, float] | None:
        """Give a span in seconds, of one or more periods, in which no pool has run out of work; None if there is none.

        Shares within it are those of a run without end, once the first steps have settled.
        """
        every = _rhythm(self.finish_s)
        last = min((max(e.end_s for e in self.events if e.pool == pool) for pool in self.schedule.pools), default=0.0)
        ends = [step for step, end_s in enumerate(self.finish_s) if end_s <= last and step >= every]
        return (self.finish_s[ends[-1] - every], self.finish_s[ends[-1]]) if every and ends else None

    def busy(self, between: tuple[float, float] | None = None) -> Mapping[str, float]:
        """Give the share of the time that each pool is busy, of all or of a span in seconds."""
        start_s, end_s = between or (0.0, self.end_s)
        found = dict.fromkeys(self.schedule.pools, 0.0)
        for event in self.events:
            found[event.pool] += max(0.0, min(event.end_s, end_s) - max(event.start_s, start_s))
        return {pool: seconds / (end_s - start_s) if end_s > start_s else 0.0 for pool, seconds in found.items()}


def play(schedule: Schedule, *, steps: int = 1) -> Timeline:
    """Run the first steps of a schedule: each task as early as what it waits for and its pools allow.

    A task with a `shift` does not run in the first steps, since nothing is there yet that it could work on; and what
    waits for it does not.

    A pool takes its tasks in their order; one in any order takes what has been ready longest, a task of several
    pools not before the pool's others that were ready sooner. In their order a faster task never makes any run later;
    in any order it may.

    Raises ValueError if seconds of a task are not known, or if tasks of one step wait for each other in a circle.

    Source: (max,+) recursion of a marked graph, F. Baccelli et al., Synchronization and Linearity, 1992, 2.5. Any
    order: R. L. Graham, Bounds on Multiprocessing Timing Anomalies, SIAM J. Appl. Math. 17(2), 1969.
    """
    order = in_order(schedule)
    if schedule.unknown:
        raise ValueError(f"a timeline needs the seconds of each task; not known: {', '.join(schedule.unknown)}")
    if steps < 1:
        raise ValueError(f"a timeline has 1 step or more, not {steps}")
    runs = _as_ready(schedule, order, steps) if schedule.any_order else _in_turn(schedule, order, steps)
    return Timeline(schedule, steps, tuple(sorted(runs, key=lambda run: (run.start_s, run.step))))


def makespan_s(schedule: Schedule) -> float:
    """Give the seconds of one step by itself, before which all has ended; raises what `play` raises."""
    return play(schedule).end_s


def _in_turn(schedule: Schedule, order: Sequence[Task], steps: int) -> Iterable[Run]:
    incoming: dict[str, list[tuple[str, int]]] = {task.name: [] for task in order}
    for wait in schedule.waits:
        incoming[wait.after].append((wait.before, wait.delay))
    done, last = dict[tuple[str, int], Run](), dict[str, Run]()  # by task and step; of each pool
    for step in range(steps):
        for task in order:
            if step < task.shift:
                continue
            waits = (done.get((before, step - delay)) for before, delay in incoming[task.name])
            turns = (last.get(pool) for pool in task.pools)
            freed = max((run for run in (*waits, *turns) if run is not None), key=lambda run: run.end_s, default=None)
            start_s = freed.end_s if freed is not None else 0.0
            by = (freed.task, freed.step) if freed is not None else None
            run = Run(task.name, step, start_s, start_s + (task.seconds or 0.0), by)
            done[task.name, step] = run
            last |= dict.fromkeys(task.pools, run)
            yield run


# A run before it starts: (ready at, step, place of its task). Of two at one pool the smaller goes first.
_Job = tuple[float, int, int]


@dataclass
class _Yard:
    """A shop floor: what is ready queues at each of its pools that take tasks in any order."""

    order: Sequence[Task]
    freeing: Sequence[Sequence[tuple[int, int]]]  # of each task: (who waits for it, delay)
    left: dict[tuple[int, int], int]  # by (step, place): how many ends it still waits for
    queues: dict[str, list[_Job]]
    taken: dict[str, bool]
    freed_by: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict[tuple[int, int], tuple[str, int]])
    last: dict[str, Run] = field(default_factory=dict[str, Run])
    running: list[tuple[float, int, int, Run]] = field(default_factory=list[tuple[float, int, int, Run]])
    done: list[Run] = field(default_factory=list[Run])

    def played(self) -> list[Run]:
        """Run all jobs."""
        for step, place in [job for job, count in self.left.items() if not count]:
            self._is_ready((0.0, step, place))
        self._dispatch(0.0)
        while self.running:
            now_s = self.running[0][0]
            while self.running and self.running[0][0] == now_s:
                _, step, place, run = heappop(self.running)
                self._ended(run, step, place)
            self._dispatch(now_s)
        return self.done

    def _queued_at(self, place: int) -> list[str]:
        return [pool for pool in self.order[place].pools if pool in self.queues]

    def _is_ready(self, job: _Job) -> None:
        pools = self._queued_at(job[2])
        for pool in pools:
            heappush(self.queues[pool], job)
        if not pools:
            self._start(job, job[0], self.freed_by.get(job[1:]))

    def _dispatch(self, now_s: float) -> None:
        """Start each job that is the first at all its pools, as long as there is one."""
        waiting = [pool for pool in self.queues if self.queues[pool]]
        while waiting:
            queue = self.queues[waiting.pop()]
            pools = self._queued_at(queue[0][2]) if queue else []
            if pools and all(not self.taken[pool] and self.queues[pool][0] == queue[0] for pool in pools):
                job = queue[0]
                by = [self.last[pool] for pool in pools if pool in self.last and self.last[pool].end_s == now_s]
                freed_by = (by[0].task, by[0].step) if by and now_s > job[0] else self.freed_by.get(job[1:])
                for pool in pools:
                    heappop(self.queues[pool])
                    self.taken[pool] = True
                self._start(job, now_s, freed_by)

    def _start(self, job: _Job, now_s: float, freed_by: tuple[str, int] | None) -> None:
        _, step, place = job
        task = self.order[place]
        run = Run(task.name, step, now_s, now_s + (task.seconds or 0.0), freed_by)
        heappush(self.running, (run.end_s, step, place, run))

    def _ended(self, run: Run, step: int, place: int) -> None:
        self.done.append(run)
        for pool in self._queued_at(place):
            self.taken[pool], self.last[pool] = False, run
        for after, delay in self.freeing[place]:
            job = (step + delay, after)
            if job in self.left:
                self.left[job] -= 1
                if not self.left[job]:
                    self.freed_by[job] = (run.task, run.step)
                    self._is_ready((run.end_s, *job))


def _as_ready(schedule: Schedule, order: Sequence[Task], steps: int) -> list[Run]:
    place = {task.name: index for index, task in enumerate(order)}
    freeing: list[list[tuple[int, int]]] = [[] for _ in order]
    left = {(step, index): 0 for index, task in enumerate(order) for step in range(task.shift, steps)}
    for wait in constraints(schedule):
        before, after = place[wait.before], place[wait.after]
        freeing[before].append((after, wait.delay))
        for step in range(wait.delay, steps):
            if (step, after) in left and (step - wait.delay, before) in left:
                left[step, after] += 1
    queues: dict[str, list[_Job]] = {pool: [] for pool in schedule.any_order}
    return _Yard(order, freeing, left, queues, dict.fromkeys(queues, False)).played()


def _rhythm(finish_s: Sequence[float]) -> int:
    """Give after how many steps the last ones repeat; half of all if they do not yet, and 0 with one step."""
    gaps = [then - first for first, then in pairwise(finish_s)]
    least = ROUNDING * max(finish_s, default=0.0)
    for every in range(1, len(gaps) // 2 + 1):
        last = len(gaps) - 1
        if all(abs(gaps[last - i] - gaps[last - i - every]) <= least for i in range(every)):
            return every
    return len(finish_s) // 2
