"""What a step is made of in time: tasks on pools, and what waits for what, over steps without end.

A marked graph: each task runs once a step, each wait holds as many tokens as its delay. Not here: how long a step takes
(`cycles`), and when each task runs (`timeline`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import fsum, inf
from typing import TYPE_CHECKING

from flowgraph.errors import PlanError, UnknownNameError
from flowgraph.plan import TaskKind

if TYPE_CHECKING:
    from networkx import DiGraph


@dataclass(frozen=True)
class Task:
    """What runs once a step and then occupies all of its pools; a task without a pool occupies nothing.

    `seconds` is None where not known. In its last `tail_s` seconds a task works on its longest few rows only. Of the
    first steps it leaves out `shift`: it works on what others made so many steps before.
    """

    name: str
    kind: TaskKind
    pools: tuple[str, ...]
    seconds: float | None
    tail_s: float = 0.0
    shift: int = 0


@dataclass(frozen=True)
class Wait:
    """Step i of `after` starts once step i - delay of `before` has ended; before the first step all has ended.

    `turn` names the pool if it only keeps the order of the tasks there; else data or weights are waited for.
    """

    before: str
    after: str
    delay: int = 0
    turn: str = ""


@dataclass(frozen=True)
class Schedule:
    """Tasks and waits. A pool does one task at a time, in the order of `tasks`, or in `any_order` as they are ready."""

    tasks: tuple[Task, ...]
    waits: tuple[Wait, ...] = ()
    any_order: tuple[str, ...] = ()

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
        for pool in set(self.any_order) - set(self.pools):
            raise UnknownNameError.of("pool", pool, self.pools)

    @cached_property
    def pools(self) -> tuple[str, ...]:
        """Name the pools, in the order in which tasks name them."""
        return tuple(dict.fromkeys(pool for task in self.tasks for pool in task.pools))

    @cached_property
    def by_name(self) -> Mapping[str, Task]:
        """Give the tasks by name."""
        return {task.name: task for task in self.tasks}

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        """Name the tasks whose seconds are not known."""
        return tuple(task.name for task in self.tasks if task.seconds is None)

    def on(self, pool: str) -> tuple[Task, ...]:
        """Give the tasks of a pool, in their order."""
        return tuple(task for task in self.tasks if pool in task.pools)

    def load_s(self, pool: str) -> float | None:
        """Give the seconds that a pool is busy for one step; None if one is not known."""
        known = [task.seconds for task in self.on(pool) if task.seconds is not None]
        return fsum(known) if len(known) == len(self.on(pool)) else None


def queue(producer: str, consumer: str, capacity: int) -> Wait:
    """Make the producer wait for room: it starts a batch once at most `capacity - 1` of its batches are not consumed.

    >>> queue("generate", "update", 2)
    Wait(before='update', after='generate', delay=2, turn='')
    """
    if capacity < 1:
        raise ValueError(f"a queue from {producer} to {consumer} holds 1 batch or more, not {capacity}")
    return Wait(consumer, producer, capacity)


def stale(update: str, generate: str, at_most: int) -> Wait:
    """Make sampling wait for weights that are at most so many updates older than those that will train on it.

    With `at_most=0` it is on-policy: step i samples with what update i - 1 has made.

    >>> stale("update", "generate", 1)
    Wait(before='update', after='generate', delay=2, turn='')
    """
    if at_most < 0:
        raise ValueError(f"weights are 0 updates old or more, not {at_most}")
    return Wait(update, generate, at_most + 1)


def constraints(schedule: Schedule) -> tuple[Wait, ...]:
    """Give all that tasks wait for: their own waits, then their turns; of two between the same tasks the stricter."""
    found = dict[tuple[str, str], Wait]()
    for wait in (*schedule.waits, *_turns(schedule)):
        key = (wait.before, wait.after)
        if key not in found or wait.delay < found[key].delay:
            found[key] = wait
    return tuple(found.values())


def _turns(schedule: Schedule) -> Iterator[Wait]:
    """Give the order on each pool: one token goes round. In any order, each task still waits for its own last run."""
    for pool in schedule.pools:
        names = [task.name for task in schedule.on(pool)]
        if pool in schedule.any_order:
            yield from (Wait(name, name, 1, pool) for name in names)
        else:
            yield from (Wait(first, then, 0, pool) for first, then in pairwise(names))
            yield Wait(names[-1], names[0], 1, pool)


def in_order(schedule: Schedule) -> tuple[Task, ...]:
    """Sort tasks so that each stands after all it waits for within a step, else as they are.

    Raises ValueError if tasks wait for each other in a circle within one step, and names them.
    """
    from networkx import DiGraph, NetworkXUnfeasible, lexicographical_topological_sort

    place = {task.name: index for index, task in enumerate(schedule.tasks)}
    waits: DiGraph[str] = DiGraph()
    waits.add_nodes_from(place)
    waits.add_edges_from((each.before, each.after) for each in constraints(schedule) if not each.delay)
    try:
        order = list(lexicographical_topological_sort(waits, key=place.__getitem__))
    except NetworkXUnfeasible:
        raise ValueError(_circle(schedule, waits)) from None
    return tuple(schedule.by_name[name] for name in order)


def _circle(schedule: Schedule, waits: DiGraph[str]) -> str:
    """Return which tasks wait for each other within one step, as text."""
    from networkx import find_cycle

    by = {(each.before, each.after): each for each in constraints(schedule) if not each.delay}
    circle = [by[edge] for edge in find_cycle(waits)]
    steps = [f"{each.after} (its turn on {each.turn})" if each.turn else each.after for each in circle]
    return f"tasks of one step wait for each other: {' → '.join([circle[0].before, *steps])}"


def streamed(schedule: Schedule, path: Sequence[str], pieces: int) -> Schedule:
    """Cut the tasks of a path into pieces, so that a piece of one starts when that piece of the one before has ended.

    Pieces of one task follow each other. What else waits for a task waits for its last piece, and a task that waits
    for something does so with its first. Path tasks that stand side by side in the schedule take turns piece by piece.
    Two tasks on pools of their own then take T_longer + T_shorter / pieces.

    Source: RLinf (2025), arXiv 2509.15965, spatial pipelining: T_critical + (M/m - 1) T_bottleneck, each T of m rows.
    """
    if pieces < 1:
        raise ValueError(f"a task is cut into 1 piece or more, not {pieces}")
    for name in path:
        if name not in schedule.by_name:
            raise UnknownNameError.of("task", name, schedule.by_name)
    if pieces == 1:
        return schedule
    tasks = [piece for group in _side_by_side(schedule, path) for piece in _pieces(group, path, pieces)]
    links = set(pairwise(path))
    waits = [each for wait in schedule.waits for each in _piecewise(wait, path, links, pieces)]
    chained = [Wait(_piece(n, i, pieces), _piece(n, i + 1, pieces)) for n in path for i in range(pieces - 1)]
    return replace(schedule, tasks=tuple(tasks), waits=(*waits, *chained))


def _side_by_side(schedule: Schedule, path: Collection[str]) -> list[list[Task]]:
    groups = list[list[Task]]()
    for task in schedule.tasks:
        if groups and task.name in path and groups[-1][-1].name in path:
            groups[-1].append(task)
        else:
            groups.append([task])
    return groups


def _pieces(group: Sequence[Task], path: Collection[str], pieces: int) -> Iterator[Task]:
    if group[0].name not in path:
        yield from group
        return
    for index in range(pieces):
        for task in group:
            seconds = None if task.seconds is None else task.seconds / pieces
            tail_s = min(task.tail_s, seconds or 0.0) if index == pieces - 1 else 0.0
            yield replace(task, name=_piece(task.name, index, pieces), seconds=seconds, tail_s=tail_s)


def _piece(name: str, index: int, pieces: int) -> str:
    return f"{name} {index + 1}/{pieces}"


def _piecewise(wait: Wait, path: Collection[str], links: set[tuple[str, str]], pieces: int) -> Iterator[Wait]:
    if (wait.before, wait.after) in links:
        for index in range(pieces):
            yield replace(wait, before=_piece(wait.before, index, pieces), after=_piece(wait.after, index, pieces))
        return
    before = _piece(wait.before, pieces - 1, pieces) if wait.before in path else wait.before
    after = _piece(wait.after, 0, pieces) if wait.after in path else wait.after
    yield replace(wait, before=before, after=after)


def unrolled(schedule: Schedule, steps: int, *, once: Collection[str] = ()) -> Schedule:
    """Write so many steps as one; tasks named in `once` run only in the first of them, as a sync of every few steps.

    Who waits for a task that runs once waits for its newest run. The period of the result is of all `steps` together.
    """
    if steps < 1:
        raise ValueError(f"a schedule is unrolled to 1 step or more, not {steps}")
    tasks = [
        replace(task, name=_copy(task.name, step))
        for step in range(steps)
        for task in schedule.tasks
        if not step or task.name not in once
    ]
    waits = list[Wait]()
    for wait in schedule.waits:
        for step in range(1 if wait.after in once else steps):
            back, copy = divmod(step - wait.delay, steps)
            before = _copy(wait.before, 0 if wait.before in once else copy)
            waits.append(replace(wait, before=before, after=_copy(wait.after, step), delay=-back))
    return replace(schedule, tasks=tuple(tasks), waits=tuple(waits))


def _copy(name: str, step: int) -> str:
    return f"{name} +{step}" if step else name
