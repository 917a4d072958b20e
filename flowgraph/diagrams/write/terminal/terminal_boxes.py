"""Draw boxes and arrows for a terminal: a flow line by line, and a plan as a panel for each pool.

The lines of a flow are laid out as version histories are drawn: a line for each box, and rails from what it reads.
`assign_columns` returns this layout as data, and `flow_lines` turns it into text.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from rich.box import ROUNDED, SQUARE
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from flowgraph.diagrams.model.labels import SIGNS, clean, signed_label
from flowgraph.diagrams.model.picture import Arrow, ArrowStyle, Box, Frame, Picture
from flowgraph.diagrams.write.palette import ARROW_INKS, INKS, STATUS_INKS

_UNCOLOURED = {"data", "arithmetic", "result", "device"}  # their kind is written without a colour
_GAP = "  "
_BORDERS: Mapping[str, str] = {"home": ARROW_INKS[ArrowStyle.SYNC]}

# Arrows between places, by the heading of their list; data within a place is shown with the node that reads it.
_LISTED: Mapping[ArrowStyle, str] = {
    ArrowStyle.TRANSFER: "transfers",
    ArrowStyle.SYNC: "syncs",
    ArrowStyle.STALE: "reads that may lag",
    ArrowStyle.CARRY: "carried to the next step",
}


@dataclass(frozen=True)
class _Line:
    name: Text
    rails: str
    kind: Text
    reads: Text


def flow_lines(picture: Picture, width: int) -> list[Text]:
    """Return the picture of a flow as lines of text for `width` columns: a line for each box, then the other arrows.

    An arrow to a later box is drawn as a rail. Arrows to the next step or to an earlier box are listed at the end. If
    the rails need more than half of the columns, numbers of boxes replace them.
    """
    lines = [*_lines(picture)]
    if any(len(line.rails) > width // 2 for line in lines):
        lines = [*_lines(picture, {row.box.id: place for place, row in enumerate(assign_columns(picture), 1)})]
    names = max((line.name.cell_len for line in lines), default=0)
    rails = max((len(line.rails) for line in lines), default=0)
    kinds = max((line.kind.cell_len for line in lines), default=0)
    texts = list[Text]()
    for line in lines:
        columns = (_padded(line.name, names), Text(line.rails.ljust(rails)), _padded(line.kind, kinds), line.reads)
        texts.append(Text(_GAP, no_wrap=True, overflow="ellipsis").join(columns))
        texts[-1].rstrip()
    names_of = {box.id: clean(box.label[0] if box.label else "") for box in picture.boxes}
    for arrow in arrows_without_rail(picture):
        source, target = names_of[arrow.source], names_of[arrow.target]
        sign, label = SIGNS[arrow.status], f", {clean(arrow.label)}"
        texts.append(Text.assemble(sign, source, (" ↺ ", _ink(arrow)), target, label))
    return texts


def _padded(text: Text, width: int) -> Text:
    padded = text.copy()
    padded.pad_right(width - text.cell_len)
    return padded


def _lines(picture: Picture, numbers: Mapping[str, int] | None = None) -> Iterator[_Line]:
    """Yield a line for each box, and one above the first box of a frame; `numbers` of boxes replace rails."""
    lines = assign_columns(picture)
    paths = [picture.frames_around(row.box.inside)[::-1] for row in lines]
    depth = max(map(len, paths), default=0)
    for row, above, path, beneath in zip(lines, [(), *paths], paths, [*paths[1:], ()], strict=False):
        for level, frame in enumerate(path):
            if path[: level + 1] != above[: level + 1]:
                label = (signed_label(frame.label, frame.status), f"italic {STATUS_INKS.get(frame.status, '')}")
                passing = ("│ " if column in row.rails else "  " for column in range(max(row.rails, default=-1) + 1))
                rails = "" if numbers else "".join(passing).rstrip()
                yield _Line(Text.assemble("│ " * level, "╭ ", label), rails, Text(), Text())
        rails = f"● {numbers[row.box.id]}" if numbers else _rails(row)
        box = row.box
        name = Text(signed_label(box.label[0] if box.label else "", box.status), STATUS_INKS.get(box.status, ""))
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, beneath, strict=False)))
        bracket = Text("│ " * shared + "╰ " * (len(path) - shared) + "  " * (depth - len(path)))
        reads = list[Text]()
        for arrow in dict.fromkeys(row.arrows):
            source = f" of {numbers[arrow.source]}" if numbers else ""
            text = Text(signed_label(arrow.label, arrow.status) + source, _ink(arrow))
            reads += [] if text in reads else [text]
        side = [
            *([Text(", ").join(reads)] if reads else []),
            *([Text(box_details(box), "dim")] if box_details(box) else []),
        ]
        yield _Line(bracket + name, rails, kind_text(box), Text(" · ").join(side))


def kind_text(box: Box) -> Text:
    """Return the kind of a box as text for a terminal; kinds of nodes and models are coloured."""
    return Text(box.kind, "" if box.kind in _UNCOLOURED else INKS[box.kind].border)


def _ink(arrow: Arrow) -> str:
    return STATUS_INKS.get(arrow.status) or ARROW_INKS.get(arrow.style) or ""


def box_details(box: Box) -> str:
    """Return the details of a box as one line: its label without the name and the kind; "" if none remain."""
    return " · ".join(clean(line) for line in box.label[1:] if line != box.kind)


def _rails(row: BoxLine) -> str:
    """Draw the rails in one line: `├` is read and goes on, `┴` is read for the last time, `┼` is only crossed."""
    first = min(row.reads, default=row.column)
    marks = {column: "┼" if first < column < row.column else "│" for column in row.rails}
    marks |= dict.fromkeys(row.reads, "├")
    marks |= {column: "┴" if column > first else "└" for column in row.ends}
    marks[row.column] = "●"
    cells = [marks.get(column, "─" if first < column < row.column else " ") for column in range(max(marks) + 1)]
    joints = ["─" if first <= column < row.column else " " for column in range(len(cells))]
    return "".join(cell + joint for cell, joint in zip(cells, joints, strict=True)).rstrip()


# ---------------------------------------------------------------------------------------- where lines and rails are


@dataclass(frozen=True)
class BoxLine:
    """One box and its place: the column of the box, and the rails in its line, by their columns.

    The box reads the rails `reads`; the rails `ends` end here, and `rails` are all that pass or end. `arrows` are the
    rails' arrows to the box.
    """

    box: Box
    column: int
    reads: frozenset[int]
    ends: frozenset[int]
    rails: frozenset[int]
    arrows: tuple[Arrow, ...]


def assign_columns(picture: Picture) -> list[BoxLine]:
    """Return the line of each box, in reading order, with its column and the columns of rails that pass or end there.

    A rail is the vertical line from a box to the boxes that read it. A box is in the first free column to the right of
    all rails that it reads.
    """
    order = reading_order(picture)
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
    return arrow.style is not ArrowStyle.CARRY and place[arrow.source] < place[arrow.target]


def arrows_without_rail(picture: Picture) -> list[Arrow]:
    """Return the arrows that cannot be drawn as rails: those to the next step, an earlier box or the box itself."""
    place = {box.id: number for number, box in enumerate(reading_order(picture))}
    return [arrow for arrow in picture.arrows if not _is_rail(arrow, place)]


def reading_order(picture: Picture) -> Sequence[Box]:
    """Return the boxes of a picture, sorted so that each comes after all boxes that have an arrow to it.

    Arrows to the next step, and from a box to itself, are ignored. Boxes otherwise keep the order of the picture; if
    arrows form a cycle, all boxes are in the order of the picture.
    """
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


# ---------------------------------------------------------------------------------------- a plan, in panels


def is_placed(picture: Picture) -> bool:
    """Return whether a picture has frames of pools, of copies of a model or of the host, or boxes of devices."""
    return any(frame.kind != "frame" for frame in picture.frames) or any(box.kind == "device" for box in picture.boxes)


def panels(picture: Picture) -> Iterator[RenderableType]:
    """Yield the parts of a plan's picture for a terminal, as objects that rich prints.

    Boxes outside of all frames come first, then a panel for each outer frame. Lists of the transfers, the syncs, the
    reads that may lag and the state for the next step follow. Other arrows are written at the box that reads.
    """
    yield from _panels_in(picture, None)
    for style, heading in _LISTED.items():
        arrows = [arrow for arrow in picture.arrows if arrow.style is style]
        if arrows:
            yield Text(heading, ARROW_INKS[style])
            for arrow in arrows:
                source, target = _name(picture, arrow.source), _name(picture, arrow.target)
                yield Text(f"  {SIGNS[arrow.status]}{source} → {target}  {clean(arrow.label)}")


def _panels_in(picture: Picture, frame: Frame | None) -> Iterator[RenderableType]:
    name = None if frame is None else frame.id
    for box in picture.boxes_in(name):  # its name and kind, its details, and what it reads in its place
        label = signed_label(box.label[0] if box.label else "", box.status)
        line = Text.assemble((label, f"bold {STATUS_INKS.get(box.status, '')}"), "  ", kind_text(box))
        line.append(f" · {box_details(box)}" if box_details(box) else "")
        reads = [arrow for arrow in picture.arrows if arrow.target == box.id and arrow.style not in _LISTED]
        names = dict.fromkeys(_name(picture, arrow.source, box.inside) for arrow in reads)
        yield line.append(f"  ← {', '.join(names)}" if names else "", "dim")
    for inner in picture.frames_in(name):
        yield Panel(
            Group(*_panels_in(picture, inner)),
            title=Text(signed_label(inner.label, inner.status), "bold"),
            title_align="left",
            box=SQUARE if inner.kind == "pool" else ROUNDED,
            border_style=STATUS_INKS.get(inner.status) or _BORDERS.get(inner.kind) or "",
        )


def _name(picture: Picture, box_id: str, reader_frame: str | None = None) -> str:
    names = {box.id: clean(box.label[0] if box.label else "") for box in picture.boxes}
    name = names[box_id]
    box = next(box for box in picture.boxes if box.id == box_id)
    frames = picture.frames_around(box.inside)
    ambiguous = Counter(names.values())[name] > 1 and frames and box.inside != reader_frame
    return f"{name} ({clean(frames[0].label)})" if ambiguous else name
