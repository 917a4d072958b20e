"""Order nodes so that every reader of a version of weights runs before the update that consumes it.

Before: `update(policy)`, then `logprobs(policy, rollout)` as the flow wrote them.
After: `logprobs`, then `update`. Otherwise the order of writing is kept.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

from flowgraph.graph import Edge, Graph, Node


def order_nodes(graph: Graph) -> tuple[Node, ...]:
    """Give the nodes in an order that is legal to run: inputs first, readers before the consumer of what they read."""
    return tuple(_kahn(graph)[0])


def blocked_reader(graph: Graph) -> tuple[Node, Node] | None:
    """Find a reader that needs the result of the very update it must precede, with that update."""
    _, left = _kahn(graph)
    for reader, consumer in _before(graph):
        if reader in left and consumer in left:
            return reader, consumer
    return None


def _before(graph: Graph) -> list[tuple[Node, Node]]:
    """Pair each reader of a version with the node that consumes the version."""
    consumers: dict[Edge, Node] = {}
    for node in graph.nodes:
        if node.op.carries is not None:
            consumers[dict(node.inputs)[node.op.carries]] = node
    pairs = list[tuple[Node, Node]]()
    for node in graph.nodes:
        for edge in node.edges():
            consumer = consumers.get(edge)
            if consumer is not None and consumer is not node:
                pairs.append((node, consumer))
    return pairs


def _kahn(graph: Graph) -> tuple[list[Node], set[Node]]:
    """Sort topologically, oldest first where there is a choice; give the order and what a cycle left over."""
    after, waits = defaultdict[Node, list[Node]](list), defaultdict[Node, int](int)
    needs = [(edge.source, node) for node in graph.nodes for edge in node.edges() if isinstance(edge.source, Node)]
    for first, then in [*needs, *_before(graph)]:
        after[first].append(then)
        waits[then] += 1
    ready = [(node.stamp, node) for node in graph.nodes if not waits[node]]
    heapq.heapify(ready)
    order = list[Node]()
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for then in after[node]:
            waits[then] -= 1
            if not waits[then]:
                heapq.heappush(ready, (then.stamp, then))
    return order, set(graph.nodes) - set(order)
