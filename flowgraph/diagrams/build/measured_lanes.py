"""Measured lanes beneath those of the forecast, over the same seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowgraph.diagrams.model.charts import Lane, Lanes
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.lowering.program import HOST


def lanes_beside(predicted: Lanes, measured: Sequence[Lane]) -> Lanes:
    """Put each measured lane beneath the lane of its pool in the forecast; pools without one follow, the host last.

    The picture ends where the longer of both ends; nothing is drawn in a lane after its own end.

    >>> lanes = Lanes("", (Lane("a", "a", ()), Lane("host", "host", ())), 0.0)
    >>> there = lanes_beside(lanes, [Lane("host", "host", (), True), Lane("a", "a", (), True)])
    >>> [(lane.label, lane.measured) for lane in there.lanes]
    [('a', False), ('a', True), ('host', False), ('host', True)]
    """
    both = [*predicted.lanes, *measured]
    pools = sorted(dict.fromkeys(lane.pool for lane in both), key=lambda pool: pool == HOST)
    lanes = tuple(lane for pool in pools for lane in both if lane.pool == pool)
    ends_s = [_end_s(lane) for lane in measured]
    same = "the same steps" if predicted.lanes else "the steps"
    told = f"Measured, {same} took {show_s(max(ends_s))}." if ends_s else "Nothing was measured."
    about = f"{predicted.about} {told}".strip()
    return replace(predicted, lanes=lanes, end_s=max([predicted.end_s, *ends_s]), about=about)


def _end_s(lane: Lane) -> float:
    return max((bar.end_s for bar in lane.bars), default=0.0)
