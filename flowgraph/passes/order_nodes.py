"""Order nodes so that every reader of a version of weights runs before the update that consumes it.

Before: `update(policy)`, then `logprobs(policy, rollout)` as the flow wrote them.
After: `logprobs`, then `update`. Otherwise the order of writing is kept.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

from flowgraph.graph import Edge, Graph, Node, newest


def order_nodes(graph: Graph) -> tuple[Node, ...]:
    """Give the nodes in an order that is legal to run: inputs first, readers before the consumer of what they read."""
    return tuple(_kahn(graph)[0])


def blocked_reader(graph: Graph) -> tuple[Node, Node] | None:
    """Find a reader that needs the result of the very update it must precede, with that update."""
    _, left = _kahn(graph)
    pairs = [pair for pair in _before(graph) if left.issuperset(pair)]
    return next(((reader, consumer) for reader, consumer in pairs if reader in _behind(graph, consumer)), None)


def _behind(graph: Graph, first: Node) -> set[Node]:
    """Give every node that must run after `first`."""
    after, todo, found = _waiting(graph), [first], set[Node]()
    while todo:
        new = [then for then in after[todo.pop()] if then not in found]
        found.update(new)
        todo += new
    return found


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


def _waiting(graph: Graph) -> defaultdict[Node, list[Node]]:
    """Map each node to those that wait for it."""
    after = defaultdict[Node, list[Node]](list)
    needs = [(edge.source, node) for node in graph.nodes for edge in node.edges() if isinstance(edge.source, Node)]
    for first, then in [*needs, *_before(graph)]:
        after[first].append(then)
    return after


def _kahn(graph: Graph) -> tuple[list[Node], set[Node]]:
    """Sort topologically, oldest first where there is a choice; give the order and what a cycle left over."""
    after, waits = _waiting(graph), defaultdict[Node, int](int)
    for then in (then for each in after.values() for then in each):
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
