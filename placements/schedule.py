"""What a step is made of in time: tasks on pools, and what waits for what, over steps without end.

A marked graph: each task runs once a step, each wait holds as many tokens as its delay. Not here: how long a step takes
(`cycles`), and when each task runs (`timeline`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import fsum, inf
from typing import TYPE_CHECKING

from flowgraph.cluster.plan import TaskKind
from flowgraph.errors import PlanError, UnknownNameError

if TYPE_CHECKING:
    from networkx import DiGraph


@dataclass(frozen=True)
class Task:
    """What runs once a step and then occupies all of its pools; a task without a pool occupies nothing.

    `seconds` is None where not known. Of the first steps it leaves out `shift`: it works on what others made so many
    steps before.
    """

    name: str
    kind: TaskKind
    pools: tuple[str, ...]
    seconds: float | None
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
    """Tasks and waits. A pool does one task at a time, in the order of `tasks`."""

    tasks: tuple[Task, ...]
    waits: tuple[Wait, ...] = ()

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
        """Name the pools, in the order in which tasks name them."""
        return tuple(dict.fromkeys(pool for task in self.tasks for pool in task.pools))

    @cached_property
    def by_name(self) -> Mapping[str, Task]:
        """Return the tasks by name."""
        return {task.name: task for task in self.tasks}

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        """Name the tasks whose seconds are not known."""
        return tuple(task.name for task in self.tasks if task.seconds is None)

    def on(self, pool: str) -> tuple[Task, ...]:
        """Return the tasks of a pool, in their order."""
        return tuple(task for task in self.tasks if pool in task.pools)

    def load_s(self, pool: str) -> float | None:
        """Return the seconds that a pool is busy for one step; None if one is not known."""
        known = [task.seconds for task in self.on(pool) if task.seconds is not None]
        return fsum(known) if len(known) == len(self.on(pool)) else None


def constraints(schedule: Schedule) -> tuple[Wait, ...]:
    """Return all that tasks wait for: their own waits, then their turns; of two between the same tasks the stricter."""
    found = dict[tuple[str, str], Wait]()
    for wait in (*schedule.waits, *_turns(schedule)):
        key = (wait.before, wait.after)
        if key not in found or wait.delay < found[key].delay:
            found[key] = wait
    return tuple(found.values())


def _turns(schedule: Schedule) -> Iterator[Wait]:
    """Return the order on each pool: one token goes round."""
    for pool in schedule.pools:
        names = [task.name for task in schedule.on(pool)]
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
