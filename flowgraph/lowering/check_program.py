"""The law of the lowered stage: what a task reads is there by then, every node runs once, results reach the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from flowgraph.errors import LawError
from flowgraph.graph import Node
from flowgraph.lowering.program import HOST, Home, Program, Read, Run, Sync, Task, Transfer, typed_results, value_name
from flowgraph.values import Model


def check_program(program: Program) -> None:
    """Raise LawError for the first task that reads what no task has brought, and for a node not run exactly once."""
    graph = program.graph
    there: set[tuple[str, str | Home]] = {(name, home) for name, home in program.origins}
    there |= {(home.param, home) for home in program.homes if home.param in program.frozen}
    nodes = {node.name: node for node in graph.nodes}
    for task in program.tasks:
        for name, place in _reads(task):
            if (name, place) not in there:
                raise LawError.not_there(str(task), name, str(place))
        there |= set(_gives(task, nodes))
    runs = Counter(each for task in program.tasks if isinstance(task, Run) for each in task.nodes)
    for node in graph.nodes:
        if runs[node.name] != 1:
            raise LawError(f"the program runs {node.name} {runs[node.name]} times, not once", where=str(node.at))
    for edge in graph.outputs:
        if not issubclass(edge.type, Model) and (value_name(edge), HOST) not in there:
            raise LawError.not_there("the end of the step", value_name(edge), HOST)


def _reads(task: Task) -> Iterator[tuple[str, str | Home]]:
    if isinstance(task, Transfer | Sync):
        yield task.value, task.source
    elif isinstance(task, Run):
        yield from ((name, task.place) for name in task.reads)
        yield from task.homes


def _gives(task: Task, nodes: Mapping[str, Node]) -> Iterator[tuple[str, str | Home]]:
    if isinstance(task, Run):
        for node in (nodes[name] for name in task.nodes):
            for name, kind in typed_results(node):
                yield name, task.home if task.home is not None and issubclass(kind, Model) else task.place
    elif isinstance(task, Read):
        yield task.value, HOST
    else:
        yield task.value, task.target
