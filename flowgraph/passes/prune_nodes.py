"""Prune nodes: leave out what has no effect on the flow's results, and say so.

Before: `surrogate + 0.0 * kl_k3(new, mask, ref=ref_logprobs)`, and a call whose result nothing reads.
After: `surrogate`; gone, and reported: the factor, kl_k3, `ref.logprobs` that only kl_k3 read, and the call.
"""

from __future__ import annotations

from dataclasses import replace

from flowgraph.language import arithmetic
from flowgraph.language.flow import op_of
from flowgraph.language.graph import Edge, Graph, Node, rewrite

ADD, SCALE = op_of(arithmetic.add), op_of(arithmetic.scale)


def prune_nodes(graph: Graph) -> Graph:
    """Give the graph without terms of factor 0, what only they read, and dropped calls; `pruned` reports them."""
    kept = rewrite(graph, _without_zeros)
    left = {node.stamp for node in kept.all_nodes}
    told = [f"{call.op.name}  # {call.at}: nothing reads it" for call in graph.dropped]
    told += [
        f"{node.name}  # {node.at}: {'its factor is 0' if _is_zero(node) else 'only a term of factor 0 reads it'}"
        for node in graph.all_nodes
        if node.stamp not in left and node.op is not ADD
    ]
    return replace(kept, dropped=(), pruned=(*graph.pruned, *told)) if told else kept


def _without_zeros(node: Node) -> Node | Edge:
    """Give what a sum is without a part of factor 0; a sum of two of them keeps one."""
    parts = [edge for _, edge in node.inputs]
    if node.op is not ADD:
        return node
    kept = [edge for edge in parts if not (isinstance(edge.source, Node) and _is_zero(edge.source))]
    return node if len(kept) == len(parts) else (kept or parts)[0]


def _is_zero(node: Node) -> bool:
    return node.op is SCALE and getattr(node.settings, "factor", 1.0) == 0
