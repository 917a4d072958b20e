"""Insert transfers: a value that is read elsewhere than where it was made is brought there, once to each place.

Before: `run policy.generate on all/local`, `run score on host`.
After: the same with `transfer policy.generate all -> host` between; and at the end what the flow returns, to the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flowgraph.language.values import Model
from flowgraph.lowering.program import (
    HOST,
    Home,
    Program,
    Read,
    Run,
    Task,
    Transfer,
    value_name,
    what_is_given,
)


def insert_transfers(program: Program) -> Program:
    """Give the program with a transfer before the first run at a place that reads what was made at another."""
    return replace(program, tasks=tuple(_with_transfers(program)))


def _with_transfers(program: Program) -> Iterator[Task]:
    made, there = dict[str, str](), set[tuple[str, str | Home]]()

    def bring(name: str, target: str) -> Iterator[Task]:
        if (name, target) not in there:
            there.add((name, target))
            yield Transfer(name, made[name], target)

    for task in program.tasks:
        for name in task.reads if isinstance(task, Run) else ():
            yield from bring(name, task.place if isinstance(task, Run) else HOST)
        yield task
        for name, place in what_is_given(task, program.nodes) if isinstance(task, Run | Read) else ():
            there.add((name, place))
            if isinstance(place, str):
                made[name] = place
    for edge in program.graph.outputs:
        if not issubclass(edge.type, Model):
            yield from bring(value_name(edge), HOST)
