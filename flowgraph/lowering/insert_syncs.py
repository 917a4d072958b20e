"""Insert syncs: weights that are read in another home than where their version was made are brought there.

Before: `run policy.generate on apart/local`, of weights that `all/fsdp` trains.
After: `sync policy all/fsdp -> apart/local`, then that run. A sync says by how many updates its readers let the copy
lag, and how far the plan lets it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flowgraph.analysis.roles import roles
from flowgraph.language.graph import carried_from
from flowgraph.language.values import Model
from flowgraph.lowering.program import Home, Program, Run, Sync, Task, read_by, typed_results, value_name

Bounds = dict[tuple[str, Home], tuple[int, int]]
"""How old a version may be in a home, and how old the plan lets it be, by the name of the version."""


def insert_syncs(program: Program) -> Program:
    """Give the program with a sync before the first run that reads a version of weights in a home that has it not."""
    return replace(program, tasks=tuple(_with_syncs(program)))


def _with_syncs(program: Program) -> Iterator[Task]:
    made, bounds = dict(program.origins), sync_bounds(program)
    there = {*program.origins, *((home.param, home) for home in program.homes if home.param in program.frozen)}
    for task in program.tasks:
        for name, home in task.homes if isinstance(task, Run) else ():
            if (name, home) not in there:
                there.add((name, home))
                at_most, lag = bounds[name, home]
                yield Sync(name, made[name], home, at_most, lag)
        yield task
        if isinstance(task, Run) and task.home is not None:
            for name, kind in (each for node in task.nodes for each in typed_results(program.nodes[node])):
                if issubclass(kind, Model):
                    made[name] = task.home
                    there.add((name, task.home))


def sync_bounds(program: Program) -> Bounds:
    """Give how old each version may be in each home where it is read: the least that one of its readers allows."""
    placed = {each.role: each.lag for each in program.plan.placed}
    lags = {(role.param, name): placed.get(role.name, 0) for role in roles(program.graph) for name in role.nodes}
    found = Bounds()
    for task in program.tasks:
        for node in (program.nodes[name] for name in task.nodes) if isinstance(task, Run) else ():
            homes = dict(task.homes) if isinstance(task, Run) else {}
            for edge, reader in read_by(node):
                root = carried_from(edge) if issubclass(edge.type, Model) else None
                if root is not None:
                    where = value_name(edge), homes[value_name(edge)]
                    own = edge.at_most, lags[root.name, reader]
                    at_most, lag = found.get(where, own)
                    found[where] = min(at_most, own[0]), min(lag, own[1])
    return found
