"""Order nodes so that every reader of a version of weights runs before the update that consumes it.

Before: `update(policy)`, then `logprobs(policy, rollout)` as the flow wrote them.
After: `logprobs`, then `update`. Otherwise the order of writing is kept.
"""

from __future__ import annotations

import contextlib
from functools import lru_cache
from typing import TYPE_CHECKING

from flowgraph.language.graph import Graph, Node, newest

if TYPE_CHECKING:
    from networkx import DiGraph


@lru_cache(maxsize=64)
def order_nodes(graph: Graph) -> tuple[Node, ...]:
    """Return the nodes in an order in which they can run: each after its inputs, readers of weights before the update.

    Otherwise the order of the flow is kept. Nodes in a cycle and those after them are left out; `blocked_reader` finds
    a cause of a cycle. Nodes inside losses are not listed. The result is cached.
    """
    from networkx import NetworkXUnfeasible, lexicographical_topological_sort

    order = list[Node]()
    with contextlib.suppress(NetworkXUnfeasible):
        for node in lexicographical_topological_sort(_waits(graph), key=lambda node: node.stamp):
            order.append(node)  # a cycle ends the sort; the nodes before it stay
    return tuple(order)


def blocked_reader(graph: Graph) -> tuple[Node, Node] | None:
    """Return the first pair (reader, update) of nodes that no order can satisfy, or None if there is none.

    The reader must run before the update, whose weights it reads, but also needs the update's result.
    """
    from networkx import descendants

    waits = _waits(graph)
    pairs = _readers_and_consumers(graph)
    later = {consumer: descendants(waits, consumer) for consumer in {consumer for _, consumer in pairs}}
    return next(((reader, consumer) for reader, consumer in pairs if reader in later[consumer]), None)


def _readers_and_consumers(graph: Graph) -> list[tuple[Node, Node]]:
    consumers = {edge: node for node in graph.nodes if (edge := node.carried()) is not None}
    reads = ((node, consumers.get(newest(edge))) for node in graph.nodes for edge in node.edges())
    return [(node, consumer) for node, consumer in reads if consumer is not None and consumer is not node]


def _waits(graph: Graph) -> DiGraph[Node]:
    from networkx import DiGraph

    waits: DiGraph[Node] = DiGraph()
    waits.add_nodes_from(graph.nodes)
    sources = ((edge.source, node) for node in graph.nodes for edge in node.edges())
    waits.add_edges_from((source, node) for source, node in sources if isinstance(source, Node))
    waits.add_edges_from(_readers_and_consumers(graph))
    return waits
