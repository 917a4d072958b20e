"""Write graphs as text that is short and stable, gives readable diffs, and contains no names of local variables."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import replace

from pydantic import BaseModel

from flowgraph.language.graph import Edge, Graph, Node, rewrite
from flowgraph.language.signature import type_name


def graph_text(graph: Graph, *, sites: bool = True, places: Mapping[str, str] | None = None) -> str:
    """Return a graph as text: a line for each node, for all results, and for each carried state and removed call.

    The first line has the flow's parameters. Nodes inside a loss are indented below a line for the loss. `sites` adds
    the flow's file and line to each node, and `places` maps the name of a node to a comment. Only settings that the
    flow or a command line sets are shown. If any node has no name, all nodes are numbered: `%1`.
    """
    if any(not node.name for node in graph.nodes):
        numbers = {node.stamp: f"%{i}" for i, node in enumerate(graph.all_nodes, 1)}
        graph = rewrite(graph, lambda node: replace(node, name=numbers[node.stamp]))
    lines = [line for node in graph.nodes for line in _node_lines(node, "  ", sites, places or {})]
    params = ", ".join(
        f"{param.name}: {type_name(param.type)}" + (f" = {param.initial!r}" if param.initial is not None else "")
        for param in graph.params
    )
    results = ", ".join(_edge(edge) for edge in graph.outputs)
    carries = [f"  carry {name} <- {_edge(graph.outputs[i])}" for name, i in graph.carries().items()]
    removed = [f"  pruned {text if sites else text.partition('  # ')[0]}" for text in graph.pruned]
    removed += [f"  dropped {call.op.name}" + (f"  # {call.at}" if sites else "") for call in graph.dropped]
    return "\n".join([f"flow {graph.name}({params})", *lines, f"  return {results}", *carries, *removed])


def _node_lines(node: Node, indent: str, sites: bool, places: Mapping[str, str]) -> Iterator[str]:
    inputs = [f"{port}={_edge(edge)}" for port, edge in node.inputs]
    inputs += [f"{port}={region.name}" for port, region in node.regions]
    inputs += [f"{name}={value}" for name, value in shown_settings(node.settings)]
    returns = ", ".join(map(type_name, node.returns))
    comment = [node.op.kind, *([str(node.at)] if sites else []), *([places[node.name]] if node.name in places else [])]
    yield f"{indent}{node.name} = {node.op.name}({', '.join(inputs)}) -> {returns}  # {', '.join(comment)}"
    for _, region in node.regions:
        params = ", ".join(f"{param.name}: {type_name(param.type)}" for param in region.params)
        counts = f"  # counts {', '.join(map(str, region.counts))}" if region.counts else ""
        yield f"{indent}  loss {region.name}({params}){counts}"
        for inner in region.inner:
            yield from _node_lines(inner, indent + "    ", sites, places)
        yield f"{indent}    return {_edge(region.output)}"


def shown_settings(settings: BaseModel) -> list[tuple[str, str]]:
    """Return (name, value as text) of each setting that was set explicitly, in the order of declaration.

    Functions are written by name, enums as the `repr` of their value, and other values as their `repr`.
    """
    shown = list[tuple[str, str]]()
    for name in type(settings).model_fields:
        if name in settings.model_fields_set:
            value = getattr(settings, name)
            plain = value.value if isinstance(value, enum.Enum) else value
            named = plain is value and callable(value) and hasattr(value, "__name__")
            shown.append((name, str(value.__name__) if named else repr(plain)))
    return shown


def _edge(edge: Edge) -> str:
    uncorrected = "" if edge.corrected else ", corrected=False"
    return f"stale({edge}, at_most={edge.at_most}{uncorrected})" if edge.at_most or not edge.corrected else str(edge)
