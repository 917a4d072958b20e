"""Project columns: a run reads only the parts of a record that its nodes read, and a transfer copies only those.

Before: `transfer policy.generate all -> apart`, the whole rollout, for a node that reads its tokens.
After: `transfer policy.generate all -> apart  context, tokens, lengths, temperature`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from flowgraph.language.graph import Graph
from flowgraph.language.values import Model, Value
from flowgraph.lowering.parts import parts_in_order, parts_needed
from flowgraph.lowering.program import (
    HOST,
    Parts,
    Program,
    Run,
    Task,
    Transfer,
    results_given,
    typed_results,
    value_name,
)


def project_columns(program: Program) -> Program:
    """Return the program in which each run and each transfer names the parts of records that it needs.

    A task that needs a whole record names no parts. `sends` of a run gets the parts that transfers copy.
    """
    tasks = [_with_parts(program, task) for task in program.tasks]
    needed = parts_read_by_place(program, tasks, value_types(program.graph))
    sent = defaultdict[str, dict[Parts, None]](dict)
    for i, task in enumerate(tasks):
        if isinstance(task, Transfer):
            parts = needed.get((task.value, task.target), ())
            tasks[i] = replace(task, parts=parts)
            sent[task.value] |= {parts: None} if parts else {}
    for i, task in enumerate(tasks):
        if isinstance(task, Run):
            values = [value for value, _ in results_given(task, program.nodes) if value in sent]
            tasks[i] = replace(task, sends=tuple((value, parts) for value in values for parts in sent[value]))
    return replace(program, tasks=tuple(tasks))


@lru_cache(maxsize=64)
def value_types(graph: Graph) -> Mapping[str, type[Value]]:
    """Return the type of each value of a graph by name: the flow's parameters and the results of its named nodes."""
    params = {param.name: param.type for param in graph.params}
    return params | {name: kind for node in graph.nodes for name, kind in typed_results(node)}


def parts_read_by_place(
    program: Program, tasks: Sequence[Task], types: Mapping[str, type[Value]]
) -> dict[tuple[str, str], Parts]:
    """Return the parts that are read of each value at each place, keyed by (value, place); () means the whole value.

    Parts are dotted paths in the order of the record, and include the record's lengths. Reads are those of the runs in
    `tasks`, which may differ from `program.tasks`, and those of the flow's results, which are read whole on the host.
    `types` maps the names of values to types.
    """
    reads = defaultdict[tuple[str, str], set[str]](set)
    whole = {(value_name(edge), HOST) for edge in program.graph.outputs if not issubclass(edge.type, Model)}
    for task in tasks:
        if isinstance(task, Run):
            parts = dict(task.parts)
            for name in task.reads:
                reads[name, task.place].update(parts.get(name, ()))
                whole |= {(name, task.place)} if name not in parts else set()
    return {key: () if key in whole else parts_in_order(types[key[0]], read) for key, read in reads.items()}


def _with_parts(program: Program, task: Task) -> Task:
    if not isinstance(task, Run):
        return task
    needed = _parts_read(program.graph, task.nodes)
    return replace(task, parts=tuple((name, needed[name]) for name in task.reads if name in needed))


@lru_cache(maxsize=1024)
def _parts_read(graph: Graph, names: tuple[str, ...]) -> Mapping[str, Parts]:
    return parts_needed([node for node in graph.nodes if node.name in names], value_types(graph))
