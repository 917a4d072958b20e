"""Draw a flow for a terminal: a line for each box, rails from what it reads, its kind and what travels beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.text import Text

from flowgraph.diagrams.model.labels import SIGNS, clean, signed
from flowgraph.diagrams.model.picture import Arrow, Box, Frame, Picture
from flowgraph.diagrams.write.palette import ARROW_INKS, INKS, STATUS_INKS
from flowgraph.diagrams.write.terminal.line_layout import BoxLine, rows, ways_back

_UNCOLOURED = {"data", "arithmetic", "result", "device"}  # of these the written kind alone tells
_GAP = "  "

Path = tuple[Frame, ...]  # the frames around a box, the outermost first


@dataclass(frozen=True)
class _Line:
    """One line in its four columns: a name, the rails, a kind, and what is read."""

    name: Text
    rails: str
    kind: Text
    reads: Text


def flow_lines(picture: Picture, width: int) -> list[Text]:
    """Give the lines of a flow, what no rail can show beneath it; numbered where rails would fill half of the width."""
    lines = [*_lines(picture)]
    if any(len(line.rails) > width // 2 for line in lines):
        lines = [*_lines(picture, {row.box.id: place for place, row in enumerate(rows(picture), 1)})]
    wide = max((line.name.cell_len for line in lines), default=0)
    far = max((len(line.rails) for line in lines), default=0)
    kinds = max((line.kind.cell_len for line in lines), default=0)
    drawn = list[Text]()
    for line in lines:
        texts = (_padded(line.name, wide), Text(line.rails.ljust(far)), _padded(line.kind, kinds), line.reads)
        drawn.append(Text(_GAP, no_wrap=True, overflow="ellipsis").join(texts))
        drawn[-1].rstrip()
    return [*drawn, *(_way_back(picture, arrow) for arrow in ways_back(picture))]


def _padded(text: Text, width: int) -> Text:
    padded = text.copy()
    padded.pad_right(width - text.cell_len)
    return padded


def _lines(picture: Picture, numbers: Mapping[str, int] | None = None) -> Iterator[_Line]:
    """Give a line for each box, and one above the first box of a frame; with `numbers`, these in place of rails."""
    laid = rows(picture)
    paths = [around(picture, row.box) for row in laid]
    depth = max(map(len, paths), default=0)
    for row, above, path, beneath in zip(laid, [(), *paths], paths, [*paths[1:], ()], strict=False):
        for level, frame in enumerate(path):
            if path[: level + 1] != above[: level + 1]:
                yield _Line(_opened(frame, level), "" if numbers else _passing(row), Text(), Text())
        rails = f"● {numbers[row.box.id]}" if numbers else _rails(row)
        name = _bracket(path, beneath, depth) + _name(row.box)
        yield _Line(name, rails, kind_text(row.box), _side(row, numbers))


def around(picture: Picture, box: Box) -> Path:
    """Give the frames around a box, the outermost first."""
    known = {frame.id: frame for frame in picture.frames}
    found, inner = list[Frame](), box.inside
    while inner is not None:
        found.append(known[inner])
        inner = known[inner].parent
    return tuple(reversed(found))


def _opened(frame: Frame, level: int) -> Text:
    ink = STATUS_INKS.get(frame.status, "")
    return Text.assemble("│ " * level, "╭ ", (signed(frame.label, frame.status), f"italic {ink}"))


def _bracket(path: Path, beneath: Path, depth: int) -> Text:
    """Draw the left edge of the frames around a box; those that end with it are closed."""
    shared = next((n for n, (one, other) in enumerate(zip(path, beneath, strict=False)) if one != other), None)
    kept = min(len(path), len(beneath)) if shared is None else shared
    return Text("".join("│ " if level < kept else "╰ " for level in range(len(path))) + "  " * (depth - len(path)))


def _name(box: Box) -> Text:
    return Text(signed(box.label[0] if box.label else "", box.status), STATUS_INKS.get(box.status, ""))


def kind_text(box: Box) -> Text:
    """Write what kind of box it is, in the colour of its kind."""
    return Text(box.kind, "" if box.kind in _UNCOLOURED else INKS[box.kind].border)


def _side(row: BoxLine, numbers: Mapping[str, int] | None) -> Text:
    """Say what a box reads, and of which number where there are numbers; then what its label says beneath its name."""
    said = list[Text]()
    for arrow in dict.fromkeys(row.arrows):
        ink = STATUS_INKS.get(arrow.status) or ARROW_INKS.get(arrow.style) or ""
        of = f" of {numbers[arrow.source]}" if numbers else ""
        text = Text(signed(arrow.label, arrow.status) + of, ink)
        said += [] if text in said else [text]
    reads = Text(", ").join(said)
    more = details(row.box)
    return Text(" · ").join([*([reads] if said else []), *([Text(more, "dim")] if more else [])])


def details(box: Box) -> str:
    """Give what a label says beneath its name, in one line, its kind left out."""
    return " · ".join(clean(line) for line in box.label[1:] if line != box.kind)


def _passing(row: BoxLine) -> str:
    return "".join("│ " if column in row.rails else "  " for column in range(max(row.rails, default=-1) + 1)).rstrip()


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


def _way_back(picture: Picture, arrow: Arrow) -> Text:
    names = {box.id: clean(box.label[0] if box.label else "") for box in picture.boxes}
    ink = STATUS_INKS.get(arrow.status) or ARROW_INKS.get(arrow.style) or ""
    sign, said = SIGNS[arrow.status], clean(arrow.label)
    return Text.assemble(sign, names[arrow.source], (" ↺ ", ink), names[arrow.target], f", {said}")
