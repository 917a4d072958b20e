"""The masks whose counts divide the terms of a loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flowgraph.language.graph import Edge, Node, Region
from flowgraph.language.loss import Loss
from flowgraph.language.values import Mask


def counted(region: Region) -> Region:
    """Return the region with `counts` set to the distinct masks of its terms, in the order of their nodes."""
    counts = tuple(dict.fromkeys(masks_of(region)))
    return replace(region, counts=counts) if counts != region.counts else region


def masks_of(region: Region) -> Iterator[Edge]:
    """Yield the mask's edge for each term of a loss, in the order of the nodes; a mask may occur more than once."""
    return (mask for node in region.inner if (mask := mask_of(node)) is not None)


def mask_of(node: Node) -> Edge | None:
    """Return the edge of the mask over which a node averages its loss; None for sums of losses and other nodes."""
    masks = (edge for _, edge in node.inputs if issubclass(edge.type, Mask))
    return next(masks, None) if issubclass(node.returns[0], Loss) else None
