"""Insert switches: what sleeps leaves its devices before another home works there, and comes back for its own work.

Before: `run policy.generate on all/sglang`, `run policy.update on all/fsdp`, where the plan says that both sleep.
After: `sleep policy all/fsdp`, `wake policy all/sglang`, `run policy.generate`, `sleep policy all/sglang`, and so on.
A sync needs both of its homes awake. What a step begins with is what the step before left: a switch to what is so
already costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flowgraph.lowering.program import Home, Program, Switch, Task
from flowgraph.lowering.waits import homes_of


def insert_switches(program: Program) -> Program:
    """Return the program with switches before the tasks that need them; the order of all others stays."""
    sleepers = [home for home in program.homes if home.running.sleeps]
    return replace(program, tasks=tuple(_with_switches(program, sleepers))) if sleepers else program


def _with_switches(program: Program, sleepers: list[Home]) -> Iterator[Task]:
    awake = dict[Home, bool]()
    for task in program.tasks:
        for home, wanted in wanted_by(task, sleepers):
            if awake.get(home) is not wanted:
                yield Switch(home, awake=wanted)
                awake[home] = wanted
        yield task


def wanted_by(task: Task, sleepers: list[Home]) -> Iterator[tuple[Home, bool]]:
    """Yield the homes that have to be asleep for a task, then those that have to be awake, each with which it is."""
    used = homes_of(task)
    pools = {home.pool for home in used}
    there = [home for home in sleepers if home.pool in pools]
    yield from ((home, False) for home in there if home not in used)
    yield from ((home, True) for home in there if home in used)
