"""Which masks the terms of a loss are divided by the counts of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flowgraph.language.graph import Edge, Node, Region
from flowgraph.language.loss import Loss
from flowgraph.language.values import Mask


def counted(region: Region) -> Region:
    """Give the region with its counts: the mask of every node in it that gives a term, each mask once."""
    counts = tuple(dict.fromkeys(masks_of(region)))
    return replace(region, counts=counts) if counts != region.counts else region


def masks_of(region: Region) -> Iterator[Edge]:
    """Give the mask of every term, in the order of the nodes that give them."""
    return (mask for node in region.inner if (mask := mask_of(node)) is not None)


def mask_of(node: Node) -> Edge | None:
    """Give the mask that a node's loss is averaged over; None for what is no loss, and for sums of losses."""
    masks = (edge for _, edge in node.inputs if issubclass(edge.type, Mask))
    return next(masks, None) if issubclass(node.returns[0], Loss) else None
