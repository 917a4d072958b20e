"""Draw a picture of boxes and arrows as SVG: the places are Graphviz's (`layout`), every line is drawn here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import hypot

from flowgraph.diagrams.model.labels import SIGNS, signed_label
from flowgraph.diagrams.model.picture import Arrow, ArrowStyle, Box, BoxKind, Frame, Picture, Status
from flowgraph.diagrams.write.palette import STATUS_INKS
from flowgraph.diagrams.write.style import WIDTHS_PX
from flowgraph.diagrams.write.svg.geometry import MARGIN, Point, Rect, polyline, short
from flowgraph.diagrams.write.svg.layout import LINE_PX, LaidArrow, LaidBox, lay_out
from flowgraph.diagrams.write.svg.marks import Mark, group, path, polygon, rect, text_mark
from flowgraph.diagrams.write.svg.svg_frame import ABOUT_CHARACTERS, ALONE, Entry, Look, legend, svg_document
from flowgraph.diagrams.write.svg.text_lines import Anchor, TextLine

TITLE_PX, WIDTH_MIN = 40.0, 320.0
SHARED_INKS = (ArrowStyle.TRANSFER, ArrowStyle.STALE)  # their colours are those of what was added and changed
TIP_LENGTH_PX, TIP_WIDTH_PX = 8.0, 3.5

KIND_NAMES: Mapping[BoxKind, str] = {
    "model": "model",
    "data": "data",
    "generate": "generate",
    "score": "score",
    "logprob": "log-prob",
    "advantage": "advantage",
    "update": "update",
    "host": "host",
    "result": "result",
    "device": "devices",
}
STYLE_NAMES: Mapping[ArrowStyle, str] = {
    ArrowStyle.WEIGHTS: "weights",
    ArrowStyle.STALE: "weights that may lag",
    ArrowStyle.CARRY: "next step",
    ArrowStyle.TRANSFER: "transfer",
    ArrowStyle.SYNC: "sync of weights",
}


def graph_svg(picture: Picture, look: Look = ALONE) -> str:
    """Return a picture of boxes and arrows as SVG text, laid out by Graphviz and at least 320 pixels wide.

    `look` says whether the picture is embedded in a page. Raises UsageError if Graphviz is not installed.
    """
    laid = lay_out(picture)
    things: list[Box | Frame | Arrow] = [*picture.boxes, *picture.frames, *picture.arrows]
    statuses: set[Status] = {thing.status for thing in things}
    width = max(laid.width, WIDTH_MIN)
    bottom = TITLE_PX + laid.height + 8
    kinds, styles = {box.kind for box in picture.boxes}, {arrow.style for arrow in picture.arrows}
    entries = [
        *(Entry(f"kind-{kind}", name) for kind, name in KIND_NAMES.items() if kind in kinds),
        *(Entry(f"style-{style}", name, sample="line") for style, name in STYLE_NAMES.items() if style in styles),
        *(Entry(f"kind-result status-{name}", SIGNS[name] + name) for name in STATUS_INKS if name in statuses),
    ]
    key, key_height = legend(entries, bottom, right=width - MARGIN)
    frames, names = list[Mark](), list[Mark]()
    for laid_frame in laid.frames:
        frame, area = laid_frame.frame, laid_frame.area
        classes = f"frame frame-{frame.kind} {_status(frame)} {look.pool(frame.pool)}"
        frames.append(group(classes, rect("border", area, 6), id=frame.id))
        lines = _lines(area.left + 10, area.top + 17, laid_frame.lines, "small strong halo", "start")
        names.append(group("label", *lines, id=frame.id))
    # Labels lie over all boxes and arrows.
    marks = [
        *frames,
        *(_arrow(arrow, is_diff=len(statuses) > 1) for arrow in laid.arrows),
        *(_box(box, picture, look) for box in laid.boxes),
        *names,
    ]
    for arrow in laid.arrows:
        if arrow.label_at is not None:
            x, y = arrow.label_at
            lines = _lines(x, y + 4 - (len(arrow.lines) - 1) / 2 * LINE_PX, arrow.lines, "small halo")
            marks.append(group("label", *lines, from_=arrow.arrow.source, to=arrow.arrow.target))
    shifted = Mark("g", {"transform": f"translate(0 {short(TITLE_PX)})"}, children=tuple(marks))
    return svg_document("graph", picture, [shifted, key], look, width=width, height=bottom + key_height)


def _status(thing: Box | Frame | Arrow) -> str:
    return "" if thing.status == "same" else f"status-{thing.status}"


def _lines(x: float, y: float, lines: Sequence[str], classes: str, anchor: Anchor = "middle") -> Iterator[Mark]:
    for place, text in enumerate(lines):
        yield text_mark(TextLine(x, y + place * LINE_PX, text, classes, anchor))


def _box(laid: LaidBox, picture: Picture, look: Look) -> Mark:
    box, area, names = laid.box, laid.area, laid.names
    first = area.middle - (len(laid.lines) - 1) * LINE_PX / 2 + 4 + (4 if box.kind == "data" else 0)
    pools = (look.pool(frame.pool) for frame in picture.frames_around(box.inside))
    return group(
        f"box kind-{box.kind} {_status(box)} {next(filter(None, pools), '')}",
        outline(box.kind, area),
        *_lines(area.centre, first, laid.lines[:names], "on strong"),
        *_lines(area.centre, first + names * LINE_PX, laid.lines[names:], "on small"),
        title=signed_label(box.about or ", ".join(box.label), box.status, ABOUT_CHARACTERS),
        id=box.id,
        focus=True,
    )


def _arrow(laid: LaidArrow, *, is_diff: bool) -> Mark:
    arrow = laid.arrow
    style = ArrowStyle.DATA if is_diff and arrow.style in SHARED_INKS else arrow.style
    return group(
        f"arrow style-{style} {_status(arrow)}",
        path("line", curve(laid.points)),
        polygon("tip", arrowhead(laid.points[-1], laid.tip, WIDTHS_PX.get(arrow.style, 1.0))),
        title=signed_label(arrow.label, arrow.status, ABOUT_CHARACTERS),
        focus=True,
        from_=arrow.source,
        to=arrow.target,
    )


def curve(points: Sequence[Point]) -> str:
    """Return the data of an SVG path of cubic Bézier curves; `points` are a start, then three points for each curve.

    >>> curve([(0.0, 0.0), (0.0, 2.0), (0.0, 4.0), (0.0, 6.5)])
    'M0 0C0 2 0 4 0 6.5'
    """
    first, *rest = (f"{short(x)} {short(y)}" for x, y in points)
    return f"M{first}C{' '.join(rest)}"


def arrowhead(end: Point, tip: Point, width_px: float) -> list[Point]:
    """Return the three corners of an arrowhead, its tip first; `end` is where the arrow's line ends.

    `width_px` is the width of that line; a wider line has a wider arrowhead. Coordinates are in pixels.

    >>> arrowhead((0.0, 0.0), (0.0, 10.0), 1)
    [(0.0, 10.0), (-3.5, 2.0), (3.5, 2.0)]
    """
    across, down = tip[0] - end[0], tip[1] - end[1]
    length = hypot(across, down) or 1.0
    across, down = across / length, down / length
    side = TIP_WIDTH_PX + (width_px - 1) * 0.75
    x, y = tip[0] - TIP_LENGTH_PX * across, tip[1] - TIP_LENGTH_PX * down
    return [tip, (x - side * down, y + side * across), (x + side * down, y - side * across)]


def outline(kind: BoxKind, area: Rect) -> Mark:
    """Return the outline of a box, whose shape depends on the kind of box, as a mark that fills `area`."""
    left, top, right, bottom = area.left, area.top, area.right, area.bottom
    if kind == "model":
        upper = (left, area.middle), (left + 12, top), (right - 12, top)
        lower = (right, area.middle), (right - 12, bottom), (left + 12, bottom)
        return path("shape", polyline([*upper, *lower]) + "Z")
    if kind == "data":
        arc = f"A{short(area.width / 2)} 6 0 0 1"
        upper_right, upper_left = (f"{short(x)} {short(top + 6)}" for x in (right, left))
        body = f"M{upper_left}{arc} {upper_right}V{short(bottom - 6)}{arc} {short(left)} {short(bottom - 6)}Z"
        return path("shape", f"{body}M{upper_right}{arc} {upper_left}")  # the lid turns as the body does: filled
    radius = area.height / 2 if kind in ("result", "arithmetic") else 3.0 if kind == "device" else 8.0
    return rect("shape", area, radius)
