"""Lay a picture out line by line, as version histories are drawn: a line for each box, a rail from it to its readers.

What is laid out is data; the terminal's writer turns it into text.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from flowgraph.diagrams.model.picture import Arrow, ArrowStyle, Box, Picture


@dataclass(frozen=True)
class BoxLine:
    """One box: its column, the columns that it reads, those that end with it, and all that pass or end here."""

    box: Box
    column: int
    reads: frozenset[int]
    ends: frozenset[int]
    rails: frozenset[int]
    arrows: tuple[Arrow, ...]

    @property
    def goes_on(self) -> frozenset[int]:
        """Give the rails that are still there beneath this line, the box's own not among them."""
        return self.rails - self.ends


@dataclass
class _Rails:
    """Who has which column, while lines are laid out from the top."""

    holders: list[str | None] = field(default_factory=list[str | None])

    def of(self, names: set[str]) -> frozenset[int]:
        return frozenset(column for column, name in enumerate(self.holders) if name in names)

    def taken(self) -> frozenset[int]:
        return frozenset(column for column, name in enumerate(self.holders) if name is not None)

    def first_free(self, start: int) -> int:
        return next(column for column in range(start, len(self.holders) + start + 1) if column not in self.taken())

    def give(self, column: int, name: str | None) -> None:
        self.holders += [None] * (column + 1 - len(self.holders))
        self.holders[column] = name


def rows(picture: Picture) -> list[BoxLine]:
    """Lay out every box, right of all that it reads, in the first column that is free there."""
    order = ordered(picture)
    place = {box.id: number for number, box in enumerate(order)}
    down = [arrow for arrow in picture.arrows if goes_down(arrow, place)]
    last = {arrow.source: max(place[each.target] for each in down if each.source == arrow.source) for arrow in down}
    rails, laid = _Rails(), list[BoxLine]()
    for number, box in enumerate(order):
        arrows = tuple(arrow for arrow in down if arrow.target == box.id)
        sources = {arrow.source for arrow in arrows}
        reads, before = rails.of(sources), rails.taken()
        ends = rails.of({name for name in sources if last[name] == number})
        column = rails.first_free(max(reads, default=-1) + 1)
        laid.append(BoxLine(box, column, reads, ends, before, arrows))
        for ended in ends:
            rails.give(ended, None)
        rails.give(column, box.id if box.id in last else None)
    return laid


def goes_down(arrow: Arrow, place: dict[str, int]) -> bool:
    """Say whether an arrow is drawn as a rail: it leads to a later line, and is not of the next step."""
    return arrow.style is not ArrowStyle.CARRY and place[arrow.source] < place[arrow.target]


def ways_back(picture: Picture) -> list[Arrow]:
    """Give the arrows that no rail can show."""
    place = {box.id: number for number, box in enumerate(ordered(picture))}
    return [arrow for arrow in picture.arrows if not goes_down(arrow, place)]


def ordered(picture: Picture) -> Sequence[Box]:
    """Give the boxes so that each stands beneath all that it reads, else as they are; in a cycle, as they are."""
    number = {box.id: place for place, box in enumerate(picture.boxes)}
    edges = {(arrow.source, arrow.target) for arrow in picture.arrows if arrow.style is not ArrowStyle.CARRY}
    waits = {name: {source for source, target in edges if target == name != source} for name in number}
    ready = [number[name] for name, sources in waits.items() if not sources]
    heapq.heapify(ready)
    found = list[Box]()
    while ready:
        box = picture.boxes[heapq.heappop(ready)]
        found.append(box)
        for name in {target for source, target in edges if source == box.id != target}:
            waits[name].discard(box.id)
            if not waits[name]:
                heapq.heappush(ready, number[name])
    return found if len(found) == len(number) else picture.boxes
