"""Insert switches: a home that sleeps frees its devices before another home works there, and wakes for its own tasks.

Before: `run policy.generate on all/sglang`, `run policy.update on all/fsdp`, where the plan says that both sleep.
After: `sleep policy all/fsdp`, `wake policy all/sglang`, `run policy.generate`, `sleep policy all/sglang`, and so on.
A sync needs both of its homes awake. A step begins in the state that the last one left, and a switch to the present
state costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flowgraph.lowering.program import Home, Program, Switch, Task
from flowgraph.lowering.waits import homes_of


def insert_switches(program: Program) -> Program:
    """Return the program with a `Switch` before each task that needs a sleeping home awake, or an awake one asleep.

    A home is one copy of a model's weights; asleep, it has freed the memory of its devices. Only homes whose settings
    make them sleep are switched. The order of the other tasks does not change.
    """
    sleepers = [home for home in program.homes if home.running.sleeps]
    if not sleepers:
        return program
    tasks, state = list[Task](), dict[Home, bool]()
    for task in program.tasks:
        for home, awake in switches_before(task, sleepers):
            if state.get(home) is not awake:
                tasks.append(Switch(home, awake))
                state[home] = awake
        tasks.append(task)
    return replace(program, tasks=tuple(tasks))


def switches_before(task: Task, sleepers: list[Home]) -> Iterator[tuple[Home, bool]]:
    """Yield (home, awake) for each home in a task's pools that must be in a certain state while the task runs.

    Only homes in `sleepers`, whose settings make them sleep, are considered. Homes that the task does not use must be
    asleep (False) and come first; homes that the task uses must be awake (True).
    """
    used = homes_of(task)
    pools = {home.pool for home in used}
    neighbours = [home for home in sleepers if home.pool in pools]
    yield from ((home, False) for home in neighbours if home not in used)
    yield from ((home, True) for home in neighbours if home in used)
