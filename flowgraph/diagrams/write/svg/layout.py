"""Where boxes, frames and arrows stand: sizes from their labels, places from Graphviz (layout `dot`).

Graphviz receives only sizes and generated ids, no text of a user, so that no name can be syntax to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flowgraph.diagrams.model.labels import SIGNS, clean, signed_label
from flowgraph.diagrams.model.picture import Arrow, ArrowStyle, Box, Frame, Picture
from flowgraph.diagrams.write.svg.geometry import Point, Rect
from flowgraph.diagrams.write.svg.label_places import Label, label_places
from flowgraph.diagrams.write.svg.text_lines import widest, width_of, wrapped
from flowgraph.errors import UsageError
from flowgraph.errors.distribution import install_command

if TYPE_CHECKING:
    import pygraphviz

POINTS_PER_INCH = 72
LINE_PX = 15.0  # from one line of a label to the next
BOX_ROOM_PX, ARROW_ROOM_PX, FRAME_ROOM_PX = 190.0, 120.0, 300.0  # for a line of a label
PADDING_PX = {"model": 34.0, "data": 24.0, "result": 34.0, "arithmetic": 12.0}  # of a box, left and right together
PLATE_PX = 22.0  # from one plate of devices to the next
LINES_MAX = 3
LONG_WEIGHT = "3"  # of arrows from carried state to its update: with these long ones straight, all are shorter
MARGIN_PX = 16.0
LABELLED_ARROWS_MAX = 150  # Graphviz keeps room for this many labels; 400 take it 1 s, 900 take 95 s or lose arrows
# Labels in frames that are ranked each by itself make Graphviz 14 end the process, at an assertion, or lose arrows.
WITH_LABELS: Mapping[str, str] = {"ranksep": "0.4", "newrank": "true"}
WITHOUT_LABELS: Mapping[str, str] = {"ranksep": "0.8", "nslimit": "1"}  # without a limit 500 boxes take 6 s, not 1.3

Flip = Callable[[float, float], Point]  # from Graphviz' places, upwards, to the picture's, downwards


@dataclass(frozen=True)
class LaidBox:
    """A box, the lines of its label (the first `names` are its name), and its area."""

    box: Box
    lines: tuple[str, ...]
    names: int
    area: Rect


@dataclass(frozen=True)
class LaidFrame:
    """A frame, the lines of its label, and its area."""

    frame: Frame
    lines: tuple[str, ...]
    area: Rect


@dataclass(frozen=True)
class LaidArrow:
    """An arrow as cubic curves (a first point, then three for each), its tip, and the centre of its label.

    `label_at` is None for a label without room; a viewer shows the label when you point at the arrow.
    """

    arrow: Arrow
    points: tuple[Point, ...]
    tip: Point
    lines: tuple[str, ...]
    label_at: Point | None = None


@dataclass(frozen=True)
class LaidPicture:
    """A picture with positions: boxes, frames from the outermost inwards, arrows, and its size, all in CSS pixels."""

    boxes: tuple[LaidBox, ...]
    frames: tuple[LaidFrame, ...]
    arrows: tuple[LaidArrow, ...]
    width: float
    height: float


def lay_out(picture: Picture) -> LaidPicture:
    """Return the sizes and positions of a picture's boxes, frames and arrows, in pixels, as Graphviz arranges them.

    The picture goes from top to bottom. An arrow to the next step is arranged as if it led from its target to its
    source, and so points up. Devices in a frame are listed under the frame's label. A picture without boxes, or with
    only devices in frames, is returned empty. Raises UsageError if Graphviz is not installed.
    """
    if all(_is_plate(box) for box in picture.boxes):
        return LaidPicture((), (), (), 2 * MARGIN_PX, 2 * MARGIN_PX)
    return _read(graphviz_layout(picture), picture)


def graphviz_layout(picture: Picture) -> pygraphviz.AGraph:
    """Return the Graphviz graph of a picture, in which Graphviz has stored positions, in points.

    Labels of arrows have space of their own, unless there are more than 150 arrows or Graphviz would lose an arrow.
    Raises UsageError if Graphviz is not installed.
    """
    labelled = len(picture.arrows) <= LABELLED_ARROWS_MAX
    graph = _arranged(picture, labelled)
    if labelled and not all(_edge(graph, place, arrow)["pos"] for place, arrow in enumerate(picture.arrows)):
        return _arranged(picture, labelled=False)
    return graph


def _arranged(picture: Picture, labelled: bool) -> pygraphviz.AGraph:
    try:
        import pygraphviz
    except ImportError:
        hint = f"{install_command('draw')}; -o FILE.mmd and FILE.dot need nothing"
        raise UsageError("needs Graphviz, which is not installed", where="draw", hint=hint) from None
    settings = WITH_LABELS if labelled else WITHOUT_LABELS
    graph = pygraphviz.AGraph(directed=True, strict=False, name="G", nodesep="0.22", margin="0", **settings)
    graph.node_attr.update(fixedsize="true", label="", shape="box")
    _add_frame(graph, picture, None)
    carries = {(arrow.target, arrow.source) for arrow in picture.arrows if arrow.style is ArrowStyle.CARRY}
    for place, arrow in enumerate(picture.arrows):
        attributes = dict[str, str]()
        if labelled and arrow.label:
            lines = arrow_lines(arrow)
            attributes["label"] = _room(widest(lines, "small") + 8, len(lines) * LINE_PX + 4)
        attributes |= {"dir": "back"} if arrow.style is ArrowStyle.CARRY else {}
        attributes |= {"weight": LONG_WEIGHT} if _ends(arrow) in carries else {}
        graph.add_edge(*_ends(arrow), key=f"e{place}", arrowsize="0.8", **attributes)
    graph.layout(prog="dot")
    return graph


def _add_frame(graph: Any, picture: Picture, frame: str | None) -> None:
    for box in picture.boxes_in(frame):
        if not _is_plate(box):
            width, height = (f"{side / POINTS_PER_INCH:.4f}" for side in box_size_px(box))
            outline = "ellipse" if box.kind == "arithmetic" else "box"  # where arrows end
            graph.add_node(box.id, width=width, height=height, shape=outline)
    for inner in picture.frames_in(frame):
        lines, plates = frame_lines(inner), plates_in(picture, inner)
        width_px = max([widest(lines, "small strong"), *map(plate_width_px, plates)])
        head = _room(width_px + 8, len(lines) * LINE_PX + 4 + len(plates) * PLATE_PX)
        subgraph = graph.add_subgraph(name=f"cluster_{inner.id}", label=head, labeljust="l", margin="12")
        _add_frame(subgraph, picture, inner.id)


def _ends(arrow: Arrow) -> tuple[str, str]:
    up = arrow.style is ArrowStyle.CARRY
    return (arrow.target, arrow.source) if up else (arrow.source, arrow.target)


def _room(width_px: float, height_px: float) -> str:
    size = f'FIXEDSIZE="TRUE" WIDTH="{round(width_px)}" HEIGHT="{round(height_px)}"'
    return f'<<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0" {size}><TR><TD></TD></TR></TABLE>>'


def _is_plate(box: Box) -> bool:
    return box.kind == "device" and box.inside is not None


def plates_in(picture: Picture, frame: Frame) -> list[Box]:
    """Return the device boxes directly inside a frame, which are written as lines at the top of the frame."""
    return [box for box in picture.boxes_in(frame.id) if _is_plate(box)]


def plate_line(box: Box) -> str:
    """Return the line of text by which a device box is written at the top of its frame, with the sign of its status."""
    return SIGNS[box.status] + " · ".join(clean(line) for line in box.label)


def plate_width_px(box: Box) -> float:
    """Return the width in pixels that a device box needs at the top of its frame."""
    return width_of(plate_line(box), "small") + 16


def box_lines(box: Box) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the lines of a box's label: those of its name, which are bold, and the smaller ones of its details.

    A line is at most 190 pixels wide; a name has at most 2 lines, and each detail at most 3.
    """
    name, *details = box.label
    smaller = (line for text in details for line in wrapped(text, BOX_ROOM_PX, "small", max_lines=LINES_MAX))
    return wrapped(signed_label(name, box.status), BOX_ROOM_PX, "strong", max_lines=2), tuple(smaller)


def box_size_px(box: Box) -> tuple[float, float]:
    """Return the width and height in pixels that a box needs for its label and its shape."""
    names, details = box_lines(box)
    width = max(widest(names, "strong"), widest(details, "small")) + PADDING_PX.get(box.kind, 20.0)
    height = (len(names) + len(details)) * LINE_PX + 14
    if box.kind == "arithmetic":
        side = max(width, height)
        return side, side
    return max(width, 64.0), height + (8 if box.kind == "data" else 0)


def arrow_lines(arrow: Arrow) -> tuple[str, ...]:
    """Return the lines of an arrow's label with the sign of its status: at most 4 lines of at most 120 pixels."""
    return wrapped(signed_label(arrow.label, arrow.status), ARROW_ROOM_PX, "small", max_lines=4)


def frame_lines(frame: Frame) -> tuple[str, ...]:
    """Return the lines of a frame's label with the sign of its status: at most 2 lines of at most 300 pixels."""
    return wrapped(signed_label(frame.label, frame.status), FRAME_ROOM_PX, "small strong", max_lines=2)


# ---------------------------------------------------------------------------------------- what Graphviz answers


def _read(graph: Any, picture: Picture) -> LaidPicture:
    left, bottom, right, top = _numbers(graph.graph_attr["bb"])

    def flipped(x: float, y: float) -> Point:
        return x - left + MARGIN_PX, top - y + MARGIN_PX

    boxes, arrows, labels = list[LaidBox](), list[LaidArrow](), list[Label]()
    for box in picture.boxes:
        if not _is_plate(box):
            x, y = flipped(*_numbers(graph.get_node(box.id).attr["pos"]))
            (names, details), (width, height) = box_lines(box), box_size_px(box)
            boxes.append(LaidBox(box, names + details, len(names), Rect(x - width / 2, y - height / 2, width, height)))
    frames = tuple(_laid_frames(graph, picture, flipped))
    for frame in frames:  # its plates, one beneath the other under its label
        plates_top = frame.area.top + 8 + len(frame.lines) * LINE_PX
        for place, box in enumerate(plates_in(picture, frame.frame)):
            area = Rect(frame.area.left + 10, plates_top + place * PLATE_PX, plate_width_px(box), PLATE_PX - 4)
            boxes.append(LaidBox(box, (plate_line(box),), 0, area))
    for place, arrow in enumerate(picture.arrows):
        edge, lines = _edge(graph, place, arrow), arrow_lines(arrow)
        tip, points = _spline(edge["pos"])
        points = points[::-1] if arrow.style is ArrowStyle.CARRY else points
        curves = tuple(flipped(*point) for point in points)
        arrows.append(LaidArrow(arrow, curves, flipped(*tip), lines))
        if arrow.label:
            room = flipped(*_numbers(edge["lp"])) if edge["lp"] else None
            labels.append(Label(widest(lines, "small"), len(lines) * LINE_PX, curves, room))
    width = right - left + 2 * MARGIN_PX
    occupied = [box.area for box in boxes]
    for frame in frames:  # their labels
        size_px = widest(frame.lines, "small strong"), len(frame.lines) * LINE_PX
        occupied.append(Rect(frame.area.left + 10, frame.area.top + 5, *size_px))
    places = iter(label_places(labels, occupied, width))
    labelled = tuple(replace(laid, label_at=next(places)) if laid.arrow.label else laid for laid in arrows)
    return LaidPicture(tuple(boxes), frames, labelled, width, top - bottom + 2 * MARGIN_PX)


def _numbers(text: str) -> list[float]:
    return [float(number) for number in re.split("[ ,]", text.strip())]


def _laid_frames(graph: Any, picture: Picture, flipped: Flip) -> Iterator[LaidFrame]:
    frames = {frame.id: frame for frame in picture.frames}
    for subgraph in graph.subgraphs():
        if subgraph.graph_attr["bb"]:
            frame = frames[subgraph.name.removeprefix("cluster_")]
            left, bottom, right, top = _numbers(subgraph.graph_attr["bb"])
            yield LaidFrame(frame, frame_lines(frame), Rect(*flipped(left, top), right - left, top - bottom))
        yield from _laid_frames(subgraph, picture, flipped)


def _edge(graph: Any, place: int, arrow: Arrow) -> Any:
    return graph.get_edge(*_ends(arrow), key=f"e{place}").attr


def _spline(text: str) -> tuple[Point, list[Point]]:
    """Read a spline of one arrowhead, `e,x,y` at its end or `s,x,y` at its start.

    >>> _spline("e,0,9 0,0 0,2 0,4 0,6")
    ((0.0, 9.0), [(0.0, 0.0), (0.0, 2.0), (0.0, 4.0), (0.0, 6.0)])
    """
    tips, points = list[Point](), list[Point]()
    for word in text.split():
        x, y = _numbers(word[2:] if word[0] in "es" else word)
        (tips if word[0] in "es" else points).append((x, y))
    return tips[0] if tips else points[-1], points
