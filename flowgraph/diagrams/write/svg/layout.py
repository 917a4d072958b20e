"""Where boxes, frames and arrows stand: sizes from their labels, places from Graphviz (layout `dot`).

Graphviz is told sizes and generated ids alone, no word of a user, so that nothing in a name can be syntax to it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flowgraph.diagrams.model.labels import SIGNS, clean, signed
from flowgraph.diagrams.model.picture import Arrow, ArrowStyle, Box, Frame, Picture
from flowgraph.diagrams.write.style import SIZE_PX, SMALL_PX
from flowgraph.diagrams.write.svg.geometry import Rect
from flowgraph.diagrams.write.svg.label_places import Label, Place, label_places
from flowgraph.diagrams.write.svg.text_width import text_width_px, wrapped
from flowgraph.errors import UsageError

if TYPE_CHECKING:
    import pygraphviz

POINTS_PER_INCH = 72
LINE_PX = 15.0  # from one line of a label to the next
BOX_ROOM_PX, ARROW_ROOM_PX, FRAME_ROOM_PX = 190.0, 120.0, 300.0  # for a line of a label
PADDING_PX = {"model": 34.0, "data": 24.0, "result": 34.0, "arithmetic": 12.0}  # of a box, left and right together
PLATE_PX = 22.0  # from one plate of devices to the next
LINES_AT_MOST = 3
LONG_WEIGHT = "3"  # of arrows between what is carried and what makes it, the longest: kept straight, all are shorter
MARGIN_PX = 16.0
LABELS_KEPT = 150  # of so many Graphviz keeps room; 400 take it 1 s and 900 take 95 s, or it loses arrows of theirs
# Labels in frames that are ranked each by itself make Graphviz 14 end the process, at an assertion, or lose arrows.
WITH_LABELS: Mapping[str, str] = {"ranksep": "0.4", "newrank": "true"}
WITHOUT_LABELS: Mapping[str, str] = {"ranksep": "0.8", "nslimit": "1"}  # without a limit 500 boxes take 6 s, not 1.3


@dataclass(frozen=True)
class LaidBox:
    """A box, the lines of its label, of which the first `names` are its name, and where it stands."""

    box: Box
    lines: tuple[str, ...]
    names: int
    at: Rect


@dataclass(frozen=True)
class LaidFrame:
    """A frame, the lines of its label, and where it stands."""

    frame: Frame
    lines: tuple[str, ...]
    at: Rect


@dataclass(frozen=True)
class LaidArrow:
    """An arrow as cubic curves: a first point, then three for each; where its tip is, and its label around a middle.

    A label for which there is no room is nowhere; a viewer tells it when the arrow is pointed at.
    """

    arrow: Arrow
    points: tuple[Place, ...]
    tip: Place
    lines: tuple[str, ...]
    label_at: Place | None


@dataclass(frozen=True)
class LaidPicture:
    """A picture that has been laid out: frames from the outermost in, and its size in CSS pixels."""

    boxes: tuple[LaidBox, ...]
    frames: tuple[LaidFrame, ...]
    arrows: tuple[LaidArrow, ...]
    width: float
    height: float


def laid_out(picture: Picture) -> LaidPicture:
    """Lay a picture out from top to bottom; arrows to the next step go back up and move nothing.

    Raises UsageError where Graphviz is not installed.
    """
    if all(_is_plate(box) for box in picture.boxes):
        return LaidPicture((), (), (), 2 * MARGIN_PX, 2 * MARGIN_PX)
    return _read(arranged(picture), picture)


def arranged(picture: Picture) -> pygraphviz.AGraph:
    """Have Graphviz arrange a picture, without labels where these are too many or make it lose an arrow."""
    labelled = len(picture.arrows) <= LABELS_KEPT
    made = _arranged(picture, labelled)
    if labelled and not all(_told(made, place, arrow)["pos"] for place, arrow in enumerate(picture.arrows)):
        return _arranged(picture, labelled=False)
    return made


def _arranged(picture: Picture, labelled: bool) -> pygraphviz.AGraph:
    """Have Graphviz arrange a picture, with room for the labels of arrows or without."""
    made = _graph(**(WITH_LABELS if labelled else WITHOUT_LABELS))
    _add_frame(made, picture, None)
    long = {(arrow.target, arrow.source) for arrow in picture.arrows if arrow.style is ArrowStyle.CARRY}
    for place, arrow in enumerate(picture.arrows):
        _add_arrow(made, place, arrow if labelled else replace(arrow, label=""), long)
    made.layout(prog="dot")
    return made


def _graph(**more: str) -> pygraphviz.AGraph:
    try:
        import pygraphviz
    except ImportError:
        hint = "pip install 'flowgraph[draw]'; -o FILE.mmd and FILE.dot need nothing"
        raise UsageError("needs Graphviz, which is not installed", where="draw", hint=hint) from None
    made = pygraphviz.AGraph(directed=True, strict=False, name="G", nodesep="0.22", margin="0", **more)
    made.node_attr.update(fixedsize="true", label="", shape="box")
    return made


# ---------------------------------------------------------------------------------------- what Graphviz is told


def _add_frame(inside: Any, picture: Picture, frame: str | None) -> None:
    """Add the boxes that stand right inside a frame, then the frames in it."""
    for box in picture.boxes:
        if box.inside == frame and not _is_plate(box):
            width, height = box_size_px(box)
            inside.add_node(box.id, width=_inches(width), height=_inches(height), shape=_shape(box))
    for inner in picture.frames:
        if inner.parent == frame:
            room = _head_room(inner, plates_in(picture, inner))
            made = inside.add_subgraph(name=f"cluster_{inner.id}", label=room, labeljust="l", margin="12")
            _add_frame(made, picture, inner.id)


def _add_arrow(made: Any, place: int, arrow: Arrow, long: Collection[tuple[str, str]]) -> None:
    ends, told = _ends(arrow), dict[str, str]()
    if arrow.label:
        told["label"] = _room(arrow_lines(arrow), SMALL_PX)
    if arrow.style is ArrowStyle.CARRY:
        told["dir"] = "back"
    if ends in long:
        told["weight"] = LONG_WEIGHT
    made.add_edge(*ends, key=f"e{place}", arrowsize="0.8", **told)


def _ends(arrow: Arrow) -> tuple[str, str]:
    """Give what is above and what is below: an arrow to the next step goes up."""
    up = arrow.style is ArrowStyle.CARRY
    return (arrow.target, arrow.source) if up else (arrow.source, arrow.target)


def _shape(box: Box) -> str:
    """Name the outline that arrows end at."""
    return "ellipse" if box.kind == "arithmetic" else "box"


def _inches(length_px: float) -> str:
    return f"{length_px / POINTS_PER_INCH:.4f}"


def _room(lines: Sequence[str], size_px: float) -> str:
    """Give room for some lines, as a label in which nothing is written."""
    return _table(max(text_width_px(line, size_px) for line in lines) + 8, len(lines) * LINE_PX + 4)


def _head_room(frame: Frame, plates: Sequence[Box]) -> str:
    """Give room for what stands at the head of a frame: its label, and the plates of its devices beneath."""
    lines = frame_lines(frame)
    widths = [text_width_px(line, SMALL_PX, bold=True) for line in lines] + [plate_width_px(each) for each in plates]
    return _table(max(widths) + 8, len(lines) * LINE_PX + 4 + len(plates) * PLATE_PX)


def _table(width_px: float, height_px: float) -> str:
    size = f'FIXEDSIZE="TRUE" WIDTH="{round(width_px)}" HEIGHT="{round(height_px)}"'
    return f'<<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0" {size}><TR><TD></TD></TR></TABLE>>'


def _is_plate(box: Box) -> bool:
    """Say whether a box is a plate at the head of its frame: no arrow ends at devices."""
    return box.kind == "device" and box.inside is not None


def plates_in(picture: Picture, frame: Frame) -> list[Box]:
    """Give the plates of a frame: the devices that it stands for."""
    return [box for box in picture.boxes if box.inside == frame.id and _is_plate(box)]


def plate_line(box: Box) -> str:
    """Give what is written on a plate."""
    return SIGNS[box.status] + " · ".join(clean(line) for line in box.label)


def plate_width_px(box: Box) -> float:
    """Give the width of a plate."""
    return text_width_px(plate_line(box), SMALL_PX) + 16


def box_lines(box: Box) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Give the lines of a box's label as they are drawn: its name in bold, and the others, smaller."""
    name, *others = box.label
    smaller = (line for each in others for line in wrapped(each, BOX_ROOM_PX, SMALL_PX, most=LINES_AT_MOST))
    return wrapped(signed(name, box.status), BOX_ROOM_PX, SIZE_PX, bold=True, most=2), tuple(smaller)


def box_size_px(box: Box) -> tuple[float, float]:
    """Give the width and height that a box needs for its label."""
    names, others = box_lines(box)
    widths = [text_width_px(line, SIZE_PX, bold=True) for line in names]
    widths += [text_width_px(line, SMALL_PX) for line in others]
    width, height = max(widths) + PADDING_PX.get(box.kind, 20.0), len(widths) * LINE_PX + 14
    if box.kind == "arithmetic":
        side = max(width, height)
        return side, side
    return max(width, 64.0), height + (8 if box.kind == "data" else 0)


def arrow_lines(arrow: Arrow) -> tuple[str, ...]:
    """Give the lines of an arrow's label as they are drawn."""
    return wrapped(signed(arrow.label, arrow.status), ARROW_ROOM_PX, SMALL_PX, most=4)


def frame_lines(frame: Frame) -> tuple[str, ...]:
    """Give the lines of a frame's label as they are drawn, in bold."""
    return wrapped(signed(frame.label, frame.status), FRAME_ROOM_PX, SMALL_PX, bold=True, most=2)


# ---------------------------------------------------------------------------------------- what Graphviz answers


def _read(made: Any, picture: Picture) -> LaidPicture:
    left, bottom, right, top = _numbers(made.graph_attr["bb"])

    def flipped(x: float, y: float) -> Place:
        return x - left + MARGIN_PX, top - y + MARGIN_PX

    frames = tuple(_laid_frames(picture, dict(_borders(made)), flipped))
    boxes = [_laid_box(made, box, flipped) for box in picture.boxes if not _is_plate(box)]
    boxes += [plate for frame in frames for plate in _laid_plates(picture, frame)]
    arrows = [_laid_arrow(made, place, arrow, flipped) for place, arrow in enumerate(picture.arrows)]
    width = right - left + 2 * MARGIN_PX
    return LaidPicture(
        boxes=tuple(boxes),
        frames=frames,
        arrows=tuple(_labelled(arrows, [*(box.at for box in boxes), *map(_head, frames)], width)),
        width=width,
        height=top - bottom + 2 * MARGIN_PX,
    )


def _numbers(text: str) -> list[float]:
    return [float(each) for each in re.split("[ ,]", text.strip())]


def _borders(made: Any) -> Iterator[tuple[str, list[float]]]:
    """Give where each frame that has something in it stands, by its id, the outer before the inner."""
    for each in made.subgraphs():
        if each.graph_attr["bb"]:
            yield each.name.removeprefix("cluster_"), _numbers(each.graph_attr["bb"])
        yield from _borders(each)


def _laid_box(made: Any, box: Box, flipped: Any) -> LaidBox:
    x, y = flipped(*_numbers(made.get_node(box.id).attr["pos"]))
    width, height = box_size_px(box)
    names, others = box_lines(box)
    return LaidBox(box, names + others, len(names), Rect(x - width / 2, y - height / 2, width, height))


def _laid_plates(picture: Picture, frame: LaidFrame) -> Iterator[LaidBox]:
    """Give the plates of a frame, one beneath the other under its label."""
    top = frame.at.top + 8 + len(frame.lines) * LINE_PX
    for place, box in enumerate(plates_in(picture, frame.frame)):
        at = Rect(frame.at.left + 10, top + place * PLATE_PX, plate_width_px(box), PLATE_PX - 4)
        yield LaidBox(box, (plate_line(box),), 0, at)


def _laid_frames(picture: Picture, borders: Mapping[str, Sequence[float]], flipped: Any) -> Iterator[LaidFrame]:
    known = {frame.id: frame for frame in picture.frames}
    for name, (left, bottom, right, top) in borders.items():
        x, y = flipped(left, top)
        at = Rect(x, y, right - left, top - bottom)
        yield LaidFrame(known[name], frame_lines(known[name]), at)


def _laid_arrow(made: Any, place: int, arrow: Arrow, flipped: Any) -> LaidArrow:
    told = _told(made, place, arrow)
    tip, points = _spline(told["pos"])
    points = points[::-1] if arrow.style is ArrowStyle.CARRY else points
    label_at = flipped(*_numbers(told["lp"])) if told["lp"] else None
    return LaidArrow(arrow, tuple(flipped(*each) for each in points), flipped(*tip), arrow_lines(arrow), label_at)


def _head(frame: LaidFrame) -> Rect:
    """Give where a frame's label is drawn."""
    width = max(text_width_px(line, SMALL_PX, bold=True) for line in frame.lines)
    return Rect(frame.at.left + 10, frame.at.top + 5, width, len(frame.lines) * LINE_PX)


def _told(made: Any, place: int, arrow: Arrow) -> Any:
    return made.get_edge(*_ends(arrow), key=f"e{place}").attr


def _labelled(arrows: Sequence[LaidArrow], taken: Sequence[Rect], width: float) -> Iterator[LaidArrow]:
    """Place labels that Graphviz put far from their arrows, or nowhere."""
    labels = [Label(*_size_px(each.lines), each.points, each.label_at) if each.arrow.label else None for each in arrows]
    places = iter(label_places([each for each in labels if each is not None], taken, width))
    for arrow, label in zip(arrows, labels, strict=True):
        yield arrow if label is None else replace(arrow, label_at=next(places))


def _size_px(lines: Sequence[str]) -> tuple[float, float]:
    return max(text_width_px(line, SMALL_PX) for line in lines), len(lines) * LINE_PX


def _spline(text: str) -> tuple[Place, list[Place]]:
    """Read a spline of one arrowhead, `e,x,y` at its end or `s,x,y` at its start.

    >>> _spline("e,0,9 0,0 0,2 0,4 0,6")
    ((0.0, 9.0), [(0.0, 0.0), (0.0, 2.0), (0.0, 4.0), (0.0, 6.0)])
    """
    marks, points = list[str](), list[Place]()
    for word in text.split():
        if word[0] in "es":
            marks.append(word[2:])
        else:
            x, y = _numbers(word)
            points.append((x, y))
    x, y = _numbers(marks[0]) if marks else points[-1]
    return (x, y), points
