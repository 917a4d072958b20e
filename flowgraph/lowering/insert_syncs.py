"""Insert syncs: copy weights to each home that reads a version that another home produced.

Before: `run policy.generate on apart/local`, with weights that `all/fsdp` trains.
After: `sync policy all/fsdp -> apart/local`, then that run. A sync contains two limits: how many updates its readers
let the copy lag, and how many the plan chose.
"""

from __future__ import annotations

from dataclasses import replace

from flowgraph.analysis.roles import roles
from flowgraph.language.graph import carried_from
from flowgraph.language.values import Model
from flowgraph.lowering.program import Home, Program, Run, Sync, Task, edges_read, typed_results, value_name

Bounds = dict[tuple[str, Home], tuple[int, int]]
"""How many updates a version may lag in a home, by its readers and by the plan."""


def insert_syncs(program: Program) -> Program:
    """Return the program with a `Sync` before the first run that reads a version of weights at a home that lacks it.

    A home is one copy of a model's weights. A sync copies from the home that made the version, or, for the version with
    which the step begins, from its home in `program.origins`.
    """
    sources, bounds = dict(program.origins), sync_bounds(program)
    present = {*program.origins, *((home.param, home) for home in program.homes if home.param in program.frozen)}
    tasks = list[Task]()
    for task in program.tasks:
        for version, home in task.homes if isinstance(task, Run) else ():
            if (version, home) not in present:
                present.add((version, home))
                tasks.append(Sync(version, sources[version], home, *bounds[version, home]))
        tasks.append(task)
        if isinstance(task, Run) and task.home is not None:
            results = (result for node in task.nodes for result in typed_results(program.nodes[node]))
            for version in (name for name, kind in results if issubclass(kind, Model)):
                sources[version] = task.home
                present.add((version, task.home))
    return replace(program, tasks=tuple(tasks))


def sync_bounds(program: Program) -> Bounds:
    """Return two limits of the lag, in updates, of each version of weights at each home that reads it.

    The keys are (version, home); a home is one copy of a model's weights. The first limit is the smallest of the lags
    that the nodes at this home allow for the version; the second is the smallest lag that the plan chose for the roles
    of these nodes.
    """
    placed = {role.role: role.lag for role in program.plan.placed}
    lags = {(role.param, name): placed.get(role.name, 0) for role in roles(program.graph) for name in role.nodes}
    bounds = Bounds()
    for task in program.tasks:
        if not isinstance(task, Run):
            continue
        homes = dict(task.homes)
        for edge, reader in (read for name in task.nodes for read in edges_read(program.nodes[name])):
            root = carried_from(edge) if issubclass(edge.type, Model) else None
            if root is not None:
                version = value_name(edge)
                reads = edge.at_most, lags[root.name, reader]
                at_most, lag = bounds.get((version, homes[version]), reads)
                bounds[version, homes[version]] = min(at_most, reads[0]), min(lag, reads[1])
    return bounds
