"""A step as a schedule: tasks on pools, and waits between them, repeated step after step.

This is a marked graph: each task runs once a step, and each wait holds as many tokens as its delay. If a sync of
weights runs only in some steps, several steps together are one (`in_one`). Not here: the seconds of a step (`period`),
and when each task runs (`timeline`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import fsum, inf, lcm

from flowgraph.cluster.plan import TaskKind
from flowgraph.errors import PlanError, UnknownNameError


@dataclass(frozen=True)
class ScheduledTask:
    """A task that runs once a step and then occupies all of its pools; a task without a pool occupies nothing.

    `seconds` is None if unknown. The task works on rows of `shift` steps ago, so it skips the first `shift` steps. From
    then on it runs in one of `every` steps.
    """

    name: str
    kind: TaskKind
    pools: tuple[str, ...]
    seconds: float | None
    shift: int = 0
    every: int = 1

    def runs_in(self, step: int) -> bool:
        """Return whether the task runs in a step (from 0)."""
        return step >= self.shift and (step - self.shift) % self.every == 0


@dataclass(frozen=True)
class TaskWait:
    """Step i of `after` starts once step i - delay of `before` has ended; steps before the first have ended.

    There is nothing to wait for in a step in which `before` does not run.

    `turn` names the pool if the wait only keeps the order of tasks there; else `after` waits for data or weights.
    """

    before: str
    after: str
    delay: int = 0
    turn: str = ""


@dataclass(frozen=True)
class Schedule:
    """Tasks and waits. A pool runs one task at a time, in the order of `tasks`; those in `parallel` run several.

    Raises PlanError for two tasks of one name, UnknownNameError for a wait of an unknown task, and ValueError for
    negative or infinite seconds and for a negative delay.
    """

    tasks: tuple[ScheduledTask, ...]
    waits: tuple[TaskWait, ...] = ()
    parallel: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        names = set[str]()
        for task in self.tasks:
            if task.name in names:
                raise PlanError.twice("", "task", task.name, "scheduled")
            if not 0 <= (task.seconds or 0.0) < inf:
                raise ValueError(f"{task.name}: a task takes 0 seconds or more, not {task.seconds}")
            names.add(task.name)
        for wait in self.waits:
            for name in {wait.before, wait.after} - names:
                raise UnknownNameError.of("task", name, names)
            if wait.delay < 0:
                raise ValueError(f"{wait.after} cannot wait for a later step of {wait.before}")

    @cached_property
    def pools(self) -> tuple[str, ...]:
        """Return the names of the pools, in the order in which tasks first use them."""
        return tuple(dict.fromkeys(pool for task in self.tasks for pool in task.pools))

    @property
    def serial(self) -> list[str]:
        """Return the names of the pools that run one task at a time."""
        return [pool for pool in self.pools if pool not in self.parallel]

    @cached_property
    def by_name(self) -> Mapping[str, ScheduledTask]:
        """Return the tasks, keyed by name."""
        return {task.name: task for task in self.tasks}

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        """Return the names of tasks with unknown seconds."""
        return tuple(task.name for task in self.tasks if task.seconds is None)

    def on(self, pool: str) -> tuple[ScheduledTask, ...]:
        """Return the tasks of a pool in the order in which it runs them."""
        return tuple(task for task in self.tasks if pool in task.pools)

    def load_s(self, pool: str) -> float | None:
        """Return the mean busy seconds of a pool in a step; None if the seconds of any of its tasks are unknown."""
        tasks = self.on(pool)
        seconds = [task.seconds / task.every for task in tasks if task.seconds is not None]
        return fsum(seconds) if len(seconds) == len(tasks) else None


def constraints(schedule: Schedule) -> tuple[TaskWait, ...]:
    """Return all waits: those of the schedule, then those that keep the order of tasks on each pool not in `parallel`.

    Of several waits between the same two tasks, only the one with the smallest delay is returned.
    """
    turns = list[TaskWait]()  # the order on each pool: a circle with one token
    for pool in schedule.serial:
        names = [task.name for task in schedule.on(pool)]
        turns += [TaskWait(first, second, 0, pool) for first, second in pairwise(names)]
        turns.append(TaskWait(names[-1], names[0], 1, pool))
    strictest = dict[tuple[str, str], TaskWait]()
    for wait in (*schedule.waits, *turns):
        key = (wait.before, wait.after)
        if key not in strictest or wait.delay < strictest[key].delay:
            strictest[key] = wait
    return tuple(strictest.values())


def in_one(schedule: Schedule) -> tuple[Schedule, int, Mapping[str, str]]:
    """Return a schedule whose step stands for several steps of `schedule`, the number of those steps, and task names.

    The number is the least common multiple of the tasks' `every`, after which `schedule` repeats. If this is 1, the
    schedule itself is returned. Otherwise they are steps from the largest `shift` on, so that each task of the result
    has a `shift` of 0 and runs in every step. The mapping has the name in `schedule` of each task of the result.
    """
    steps = lcm(*(task.every for task in schedule.tasks))
    if steps == 1:
        return schedule, 1, {task.name: task.name for task in schedule.tasks}
    first = max(task.shift for task in schedule.tasks)
    names = {
        (task.name, number): f"{task.name}, step {number}"
        for number in range(steps)
        for task in schedule.tasks
        if task.runs_in(first + number)
    }
    tasks = tuple(
        replace(schedule.by_name[name], name=numbered, shift=0, every=1) for (name, _), numbered in names.items()
    )
    waits = list[TaskWait]()
    for wait in schedule.waits:
        for number in range(steps):
            earlier, place = divmod(number - wait.delay, steps)
            if (wait.before, place) in names and (wait.after, number) in names:
                waits.append(
                    replace(wait, before=names[wait.before, place], after=names[wait.after, number], delay=-earlier)
                )
    return (
        Schedule(tasks, tuple(waits), schedule.parallel),
        steps,
        {numbered: name for (name, _), numbered in names.items()},
    )


def in_order(schedule: Schedule) -> tuple[ScheduledTask, ...]:
    """Return the tasks, each after all tasks that it waits for in the same step, and otherwise in the schedule's order.

    Raises ValueError, which names the tasks, if tasks of one step wait for each other in a circle.
    """
    from networkx import DiGraph, NetworkXUnfeasible, find_cycle, lexicographical_topological_sort

    place = {task.name: index for index, task in enumerate(schedule.tasks)}
    waits = {(wait.before, wait.after): wait for wait in constraints(schedule) if not wait.delay}
    graph: DiGraph[str] = DiGraph()
    graph.add_nodes_from(place)
    graph.add_edges_from(waits)
    try:
        order = list(lexicographical_topological_sort(graph, key=place.__getitem__))
    except NetworkXUnfeasible:
        circle = [waits[edge] for edge in find_cycle(graph)]
        steps = [f"{wait.after} (its turn on {wait.turn})" if wait.turn else wait.after for wait in circle]
        why = f"tasks of one step wait for each other: {' → '.join([circle[0].before, *steps])}"
        raise ValueError(why) from None
    return tuple(schedule.by_name[name] for name in order)
