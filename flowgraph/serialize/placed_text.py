"""A placed graph as text: the graph's own, with the pools, and with each node's place."""

from __future__ import annotations

from collections.abc import Mapping

from flowgraph.analysis.roles import roles
from flowgraph.cluster.plan import PlacedRole, Plan
from flowgraph.language.graph import Graph, carried_from
from flowgraph.lowering.program import HOST
from flowgraph.serialize.columns import columns
from flowgraph.serialize.graph_text import graph_text


def placed_text(graph: Graph, plan: Plan, *, sites: bool = True) -> str:
    """Print a named graph under a plan that was checked against it; `sites` adds the flow's file and line.

    A node that reads a model says where and in which role; what reads none runs on the host, or, inside a loss, where
    the node runs that has the loss.
    """
    pools = [[pool.name, ", ".join(f"{node}/{index}" for node, index in pool.devices)] for pool in plan.pools]
    text = graph_text(graph, sites=sites, places=_places(graph, {placed.role: placed for placed in plan.placed}))
    return "\n".join([text, *(f"  pool  {line}" for line in columns(pools))])


def _places(graph: Graph, placed: Mapping[str, PlacedRole]) -> dict[str, str]:
    """Say by the names of nodes where each runs: where the weights are that it updates, or else first reads."""
    served: dict[str, list[str]] = {}
    for role in roles(graph):
        for name in role.nodes:
            served.setdefault(name, []).append(role.name)
    said = dict[str, str]()
    for node in graph.nodes:
        model = node.carried() or node.model()
        root = carried_from(model) if model is not None else None
        first = next((placed[name] for name in served.get(node.name, []) if root and _param(name) == root.name), None)
        place = f"on {first.pool}/{first.engine}" if first is not None else f"on {HOST}"
        inner = (each for _, region in node.regions for each in region.inner if each.name in served)
        for each in (node, *inner):
            names = [f"{name} {placed[name].late}".strip() for name in served.get(each.name, [])]
            said[each.name] = f"{place} as {', '.join(names)}" if names else place
    return said


def _param(role: str) -> str:
    return role.rpartition(".")[0]
