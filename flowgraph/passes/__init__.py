"""Passes over graphs, one file each; the pipeline is the literal tuple below."""

from __future__ import annotations

from collections.abc import Callable

from flowgraph.graph import Graph
from flowgraph.passes.name_nodes import name_nodes

PASSES: tuple[Callable[[Graph], Graph], ...] = (name_nodes,)


def compile_graph(graph: Graph) -> Graph:
    """Run the pipeline on a described graph."""
    for each in PASSES:
        graph = each(graph)
    return graph
