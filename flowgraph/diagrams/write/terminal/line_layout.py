"""Lay a picture out line by line, as version histories are drawn: a line for each box, a rail from it to its readers.

The result is data; `terminal_flow` turns it into text.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from flowgraph.diagrams.model.picture import Arrow, ArrowStyle, Box, Picture


@dataclass(frozen=True)
class BoxLine:
    """One box: its column, the columns that it reads, those that end at it, and all that pass or end here."""

    box: Box
    column: int
    reads: frozenset[int]
    ends: frozenset[int]
    rails: frozenset[int]
    arrows: tuple[Arrow, ...]


def rows(picture: Picture) -> list[BoxLine]:
    """Lay out every box, right of all that it reads, in the first column that is free there."""
    order = ordered(picture)
    place = {box.id: number for number, box in enumerate(order)}
    rails = [arrow for arrow in picture.arrows if _is_rail(arrow, place)]
    last = {arrow.source: max(place[rail.target] for rail in rails if rail.source == arrow.source) for arrow in rails}
    holders, lines = dict[int, str](), list[BoxLine]()  # holders: the source of the rail in each column
    for number, box in enumerate(order):
        arrows = tuple(arrow for arrow in rails if arrow.target == box.id)
        sources = {arrow.source for arrow in arrows}
        reads = frozenset(column for column, name in holders.items() if name in sources)
        ends = frozenset(column for column in reads if last[holders[column]] == number)
        start = max(reads, default=-1) + 1
        column = next(column for column in range(start, start + len(holders) + 1) if column not in holders)
        lines.append(BoxLine(box, column, reads, ends, frozenset(holders), arrows))
        for end in ends:
            del holders[end]
        if box.id in last:
            holders[column] = box.id
    return lines


def _is_rail(arrow: Arrow, place: dict[str, int]) -> bool:
    """Return whether an arrow is drawn as a rail: it leads to a later line, and not to the next step."""
    return arrow.style is not ArrowStyle.CARRY and place[arrow.source] < place[arrow.target]


def ways_back(picture: Picture) -> list[Arrow]:
    """Return the arrows that no rail can show."""
    place = {box.id: number for number, box in enumerate(ordered(picture))}
    return [arrow for arrow in picture.arrows if not _is_rail(arrow, place)]


def ordered(picture: Picture) -> Sequence[Box]:
    """Return the boxes in their order, each moved beneath all that it reads; with a cycle no box is moved."""
    number = {box.id: place for place, box in enumerate(picture.boxes)}
    edges = {(arrow.source, arrow.target) for arrow in picture.arrows if arrow.style is not ArrowStyle.CARRY}
    waits = {name: {source for source, target in edges if target == name != source} for name in number}
    ready = [number[name] for name, sources in waits.items() if not sources]
    heapq.heapify(ready)
    order = list[Box]()
    while ready:
        box = picture.boxes[heapq.heappop(ready)]
        order.append(box)
        for name in {target for source, target in edges if source == box.id != target}:
            waits[name].discard(box.id)
            if not waits[name]:
                heapq.heappush(ready, number[name])
    return order if len(order) == len(number) else picture.boxes
