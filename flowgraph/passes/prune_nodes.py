"""Prune nodes: remove nodes that do not affect the flow's results, and report them.

Before: `surrogate + 0.0 * kl_k3(new, mask, ref=ref_logprobs)`, and a call whose result is never read.
After: `surrogate`; removed and reported: the factor, kl_k3, `ref.logprobs` that only kl_k3 read, and the call.
"""

from __future__ import annotations

from dataclasses import replace

from flowgraph.language import arithmetic
from flowgraph.language.flow import op_of
from flowgraph.language.graph import Edge, Graph, Node, rewrite

UNREAD = "nothing reads it"
"""Why a call that a flow makes is left out, at the end of its line in `pruned`."""

ADD, SCALE = op_of(arithmetic.add), op_of(arithmetic.scale)


def prune_nodes(graph: Graph) -> Graph:
    """Return the graph without terms of factor 0, nodes that only such terms read, and calls whose results are unused.

    The result's `pruned` gains a line for each removed call and node, except for sums. If all terms of a sum have
    factor 0, the first term remains.
    """

    def change(node: Node) -> Node | Edge:
        terms = [edge for _, edge in node.inputs] if node.op is ADD else []
        rest = [edge for edge in terms if not (isinstance(edge.source, Node) and _is_zero(edge.source))]
        return node if len(rest) == len(terms) else (rest or terms)[0]

    smaller = rewrite(graph, change)
    remaining = {node.stamp for node in smaller.all_nodes}
    notes = [f"{call.op.name}  # {call.at}: {UNREAD}" for call in graph.dropped]
    notes += [
        f"{node.name}  # {node.at}: {'its factor is 0' if _is_zero(node) else 'only a term of factor 0 reads it'}"
        for node in graph.all_nodes
        if node.stamp not in remaining and node.op is not ADD
    ]
    return replace(smaller, dropped=(), pruned=(*graph.pruned, *notes)) if notes else smaller


def unread_calls(graph: Graph) -> list[str]:
    """Return a warning for each call of a flow that was left out because nothing reads its result, with its line."""
    lines = (line.removesuffix(f": {UNREAD}").split("  # ") for line in graph.pruned if line.endswith(f": {UNREAD}"))
    return [f"warning unread: nothing reads the result of {name} at {at}, so it is left out" for name, at in lines]


def _is_zero(node: Node) -> bool:
    return node.op is SCALE and getattr(node.settings, "factor", 1.0) == 0
