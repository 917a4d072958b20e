"""Project columns: a run reads the parts of a record that its nodes read, and a transfer brings what its target needs.

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
from flowgraph.lowering.parts import in_order, parts_needed
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
    """Give the program whose runs and transfers name the parts that are read, where those are not all."""
    tasks = [_reading(program, task) for task in program.tasks]
    needed = parts_at(program, tasks, value_types(program.graph))
    tasks = [_bringing(task, needed) for task in tasks]
    sent = defaultdict[str, dict[Parts, None]](dict)
    for task in tasks:
        if isinstance(task, Transfer) and task.parts:
            sent[task.value][task.parts] = None
    return replace(program, tasks=tuple(_sending(program, task, sent) for task in tasks))


@lru_cache(maxsize=64)
def value_types(graph: Graph) -> Mapping[str, type[Value]]:
    """Return the type of each value of a named graph by its name."""
    params = {param.name: param.type for param in graph.params}
    return params | {name: kind for node in graph.nodes for name, kind in typed_results(node)}


def parts_at(program: Program, tasks: Sequence[Task], types: Mapping[str, type[Value]]) -> dict[tuple[str, str], Parts]:
    """Give the parts of each value that are read at each place, by runs and at the end; none for the whole."""
    found = defaultdict[tuple[str, str], set[str]](set)
    whole = {(value_name(edge), HOST) for edge in program.graph.outputs if not issubclass(edge.type, Model)}
    for task in tasks:
        if isinstance(task, Run):
            parts = dict(task.parts)
            for name in task.reads:
                found[name, task.place].update(parts.get(name, ()))
                whole |= {(name, task.place)} if name not in parts else set()
    return {where: () if where in whole else in_order(types[where[0]], read) for where, read in found.items()}


def _reading(program: Program, task: Task) -> Task:
    if not isinstance(task, Run):
        return task
    needed = _parts_read(program.graph, task.nodes)
    return replace(task, parts=tuple((name, needed[name]) for name in task.reads if name in needed))


@lru_cache(maxsize=1024)
def _parts_read(graph: Graph, names: tuple[str, ...]) -> Mapping[str, Parts]:
    """Return the parts that nodes read of each value: the same wherever they are placed."""
    return parts_needed([node for node in graph.nodes if node.name in names], value_types(graph))


def _bringing(task: Task, needed: dict[tuple[str, str], Parts]) -> Task:
    return replace(task, parts=needed.get((task.value, task.target), ())) if isinstance(task, Transfer) else task


def _sending(program: Program, task: Task, sent: dict[str, dict[Parts, None]]) -> Task:
    """Let the run that makes a record give it in parts too, for places that need no more of it."""
    if not isinstance(task, Run):
        return task
    names = [name for name, _ in results_given(task, program.nodes) if name in sent]
    return replace(task, sends=tuple((name, parts) for name in names for parts in sent[name]))
