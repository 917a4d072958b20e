"""Order nodes so that every reader of a version of weights runs before the update that consumes it.

Before: `update(policy)`, then `logprobs(policy, rollout)` as the flow wrote them.
After: `logprobs`, then `update`. Otherwise the order of writing is kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from flowgraph.language.graph import Edge, Graph, Node, newest

if TYPE_CHECKING:
    from networkx import DiGraph


@lru_cache(maxsize=64)
def order_nodes(graph: Graph) -> tuple[Node, ...]:
    """Return the nodes in an order that is legal to run: inputs first, readers before the consumer of what they read.

    Oldest first where there is a choice. What waits in a circle is left out; `blocked_reader` names one.
    """
    from networkx import NetworkXUnfeasible, lexicographical_topological_sort

    order = list[Node]()
    try:
        for node in lexicographical_topological_sort(_waits(graph), key=lambda node: node.stamp):
            order.append(node)
    except NetworkXUnfeasible:
        pass
    return tuple(order)


def blocked_reader(graph: Graph) -> tuple[Node, Node] | None:
    """Return a reader that needs the result of the very update it must precede, with that update."""
    from networkx import descendants

    waits = _waits(graph)
    pairs = _before(graph)
    behind = {consumer: descendants(waits, consumer) for consumer in dict.fromkeys(pair[1] for pair in pairs)}
    return next(((reader, consumer) for reader, consumer in pairs if reader in behind[consumer]), None)


def _before(graph: Graph) -> list[tuple[Node, Node]]:
    """Pair each reader of a version with the node that consumes the version."""
    consumers: dict[Edge, Node] = {}
    for node in graph.nodes:
        consumed = node.carried()
        if consumed is not None:
            consumers[consumed] = node
    pairs = list[tuple[Node, Node]]()
    for node in graph.nodes:
        for edge in node.edges():
            consumer = consumers.get(newest(edge))
            if consumer is not None and consumer is not node:
                pairs.append((node, consumer))
    return pairs


def _waits(graph: Graph) -> DiGraph[Node]:
    """Return a graph with an edge from each node to those that wait for it."""
    from networkx import DiGraph

    found: DiGraph[Node] = DiGraph()
    found.add_nodes_from(graph.nodes)
    found.add_edges_from(
        (edge.source, node) for node in graph.nodes for edge in node.edges() if isinstance(edge.source, Node)
    )
    found.add_edges_from(_before(graph))
    return found
