"""Write a placed graph as text: the text of the graph, with the place of each node, and the pools."""

from __future__ import annotations

from collections import defaultdict

from flowgraph.analysis.roles import Role, roles
from flowgraph.cluster.plan import Plan
from flowgraph.language.graph import Graph, carried_from
from flowgraph.lowering.program import HOST
from flowgraph.serialize.columns import columns
from flowgraph.serialize.graph_text import graph_text


def placed_text(graph: Graph, plan: Plan, *, sites: bool = True) -> str:
    """Return a named graph as text, with the place and roles of each node, and the devices of each pool of its plan.

    The plan must be checked. `sites` adds the flow's file and line to each node. Nodes without a model run on the host;
    nodes inside a loss run with the node that takes the loss.
    """
    placed, uses = {row.role: row for row in plan.placed}, defaultdict[str, list[Role]](list)
    for role in roles(graph):
        for name in role.nodes:
            uses[name].append(role)
    places = dict[str, str]()
    for node in graph.nodes:
        model = node.carried() or node.model()  # its home is that of the weights that it updates, or else reads first
        root = carried_from(model) if model is not None else None
        homes = (placed[role.name] for role in uses[node.name] if root is not None and role.param == root.name)
        home = next(homes, None)
        place = f"on {home.pool}/{home.engine}" if home is not None else f"on {HOST}"
        inner = (inner for _, region in node.regions for inner in region.inner if inner.name in uses)
        for reader in (node, *inner):
            names = [f"{role.name} {placed[role.name].late}".strip() for role in uses[reader.name]]
            places[reader.name] = f"{place} as {', '.join(names)}" if names else place
    pools = [[pool.name, ", ".join(f"{node}/{index}" for node, index in pool.devices)] for pool in plan.pools]
    return "\n".join([graph_text(graph, sites=sites, places=places), *(f"  pool  {line}" for line in columns(pools))])
