"""Dedupe nodes: replace pure nodes with the same op, inputs and settings by the first of them.

Before: `logprobs(ref, rollout)` written in two places. After: one node, read in both.
"""

from __future__ import annotations

from collections.abc import Hashable

from flowgraph.language.graph import Graph, Node, rewrite


def dedupe_nodes(graph: Graph) -> Graph:
    """Return the graph with equal pure nodes merged into the first of them, except nodes that take a loss."""
    first = dict[Hashable, Node]()

    def change(node: Node) -> Node:
        computation = computation_of(node)
        return node if computation is None else first.setdefault(computation, node)

    return rewrite(graph, change)


def computation_of(node: Node) -> Hashable | None:
    """Return a key that is equal for nodes that compute the same; None for a node with side effects or a loss.

    The key covers the op, its inputs, its settings and the types of its results; 1, 1.0 and True are different
    settings.
    """
    if not node.op.pure or node.regions:
        return None
    return node.op, frozenset(node.inputs), tuple(_exact(value) for _, value in node.settings), node.returns


def _exact(value: object) -> Hashable:
    if isinstance(value, dict):
        return dict, tuple((name, _exact(entry)) for name, entry in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_exact, value))
    return type(value), value.hex() if isinstance(value, float) else value
