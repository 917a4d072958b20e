"""Count masks: add to each loss the masks whose counts over all ranks are the divisors of its terms.

Before: `clipped(…, mask=rollout.mask) + 0.1 * kl_k3(…, mask=rollout.mask)`, two terms.
After: the loss has `counts rollout.mask`: one mask, counted once for a minibatch, for any number of terms.
"""

from __future__ import annotations

from dataclasses import replace

from flowgraph.language.graph import Graph, Node, rewrite
from flowgraph.language.mask_counts import counted


def count_masks(graph: Graph) -> Graph:
    """Return the graph with `counts` of each loss set to the distinct masks of its terms, in order of the nodes."""

    def change(node: Node) -> Node:
        regions = tuple((port, counted(region)) for port, region in node.regions)
        return replace(node, regions=regions) if regions != node.regions else node

    return rewrite(graph, change)
