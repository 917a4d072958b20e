"""Dedupe nodes: let two pure nodes of one op, with the same inputs and settings, be one; the first that was written.

Before: `logprobs(ref, rollout)` written in two places. After: one node, read in both.
"""

from __future__ import annotations

from collections.abc import Hashable

from flowgraph.language.graph import Graph, Node, rewrite


def dedupe_nodes(graph: Graph) -> Graph:
    """Give the graph with equal pure nodes as one."""
    first = dict[Hashable, Node]()

    def change(node: Node) -> Node:
        what = same(node)
        return node if what is None else first.setdefault(what, node)

    return rewrite(graph, change)


def same(node: Node) -> Hashable | None:
    """Say what a pure node computes, so that two that compute it are equal; None for one that is not pure."""
    if not node.op.pure or node.regions:
        return None
    return node.op, frozenset(node.inputs), tuple(_exactly(value) for _, value in node.settings), node.returns


def _exactly(value: object) -> Hashable:
    """Give a setting so that only the same is equal: 1 is not 1.0 and not true, 0.0 is not -0.0."""
    if isinstance(value, dict):
        return dict, tuple((name, _exactly(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(_exactly(each) for each in value)
    return type(value), value.hex() if isinstance(value, float) else value
