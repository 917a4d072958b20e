"""Count masks: write into each loss which masks its terms are divided by the counts of, over all ranks.

Before: `clipped(…, mask=rollout.mask) + 0.1 * kl_k3(…, mask=rollout.mask)`, two terms.
After: the loss says `counts rollout.mask`: one mask, counted once for a minibatch, however many terms are under it.
"""

from __future__ import annotations

from dataclasses import replace

from flowgraph.language.graph import Graph, Node, rewrite
from flowgraph.language.mask_counts import counted


def count_masks(graph: Graph) -> Graph:
    """Give the graph with the counts of each region filled in."""
    return rewrite(graph, _with_counts)


def _with_counts(node: Node) -> Node:
    regions = tuple((port, counted(region)) for port, region in node.regions)
    return replace(node, regions=regions) if regions != node.regions else node
