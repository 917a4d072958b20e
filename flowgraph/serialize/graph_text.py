"""Graphs as text: short, stable, diff-able; names of local variables do not show."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from flowgraph.language.graph import Edge, Graph, Node, Param, Region, rewrite
from flowgraph.language.signature import type_name


def graph_text(graph: Graph, *, sites: bool = True, places: Mapping[str, str] | None = None) -> str:
    """Print a named graph: a line a node, regions indented; `sites` adds the flow's file and line.

    What the flow wrote and what was set shows; settings left at their defaults do not. `places` says, by the names of
    nodes, what else stands behind them. Nodes that have no names yet are numbered: `%1`.
    """
    graph = _numbered(graph) if any(not node.name for node in graph.nodes) else graph
    lines = [_line(graph, node, "  ", sites, places or {}) for node in graph.nodes]
    head = ", ".join(_param_text(param) for param in graph.params)
    back = ", ".join(_edge(edge) for edge in graph.outputs)
    carries = [f"  carry {name} <- {_edge(graph.outputs[i])}" for name, i in graph.carries().items()]
    gone = [f"  pruned {each if sites else each.partition('  # ')[0]}" for each in graph.pruned]
    gone += [f"  dropped {call.op.name}" + (f"  # {call.at}" if sites else "") for call in graph.dropped]
    return "\n".join([f"flow {graph.name}({head})", *lines, f"  return {back}", *carries, *gone])


def _numbered(graph: Graph) -> Graph:
    numbers = {node.stamp: f"%{i}" for i, node in enumerate(graph.all_nodes, 1)}
    return rewrite(graph, lambda node: replace(node, name=numbers[node.stamp]))


def _line(graph: Graph, node: Node, indent: str, sites: bool, places: Mapping[str, str]) -> str:
    inputs = [f"{port}={_edge(edge)}" for port, edge in node.inputs]
    settings = [f"{name}={value}" for name, value in shown_settings(node.settings)]
    regions = [f"{port}={region.name}" for port, region in node.regions]
    returns = ", ".join(type_name(each) for each in node.returns)
    line = f"{indent}{node.name} = {node.op.name}({', '.join(inputs + regions + settings)}) -> {returns}"
    said = [node.op.kind, *([str(node.at)] if sites else []), *([places[node.name]] if node.name in places else [])]
    inner = (each for _, region in node.regions for each in _region(graph, region, indent, sites, places))
    return "\n".join([f"{line}  # {', '.join(said)}", *inner])


def _region(graph: Graph, region: Region, indent: str, sites: bool, places: Mapping[str, str]) -> Iterator[str]:
    head = ", ".join(f"{param.name}: {type_name(param.type)}" for param in region.params)
    counts = f"  # counts {', '.join(map(str, region.counts))}" if region.counts else ""
    yield f"{indent}  loss {region.name}({head}){counts}"
    for node in region.inner:
        yield _line(graph, node, indent + "    ", sites, places)
    yield f"{indent}    return {_edge(region.output)}"


def shown_settings(settings: BaseModel) -> list[tuple[str, str]]:
    """Give the settings that were written or set, in their order, as text."""
    chosen = [
        (name, getattr(settings, name)) for name in type(settings).model_fields if name in settings.model_fields_set
    ]
    return [(name, _setting(value)) for name, value in chosen]


def _setting(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return repr(value.value)
    return str(value.__name__) if callable(value) and hasattr(value, "__name__") else repr(value)


def _edge(edge: Edge) -> str:
    free = "" if edge.corrected else ", corrected=False"
    return f"stale({edge}, at_most={edge.at_most}{free})" if edge.at_most or not edge.corrected else str(edge)


def _param_text(param: Param) -> str:
    start = f" = {param.initial!r}" if param.initial is not None else ""
    return f"{param.name}: {type_name(param.type)}{start}"
