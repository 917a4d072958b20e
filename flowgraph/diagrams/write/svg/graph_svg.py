"""Write a picture of boxes and arrows as SVG: the places are Graphviz's (`layout`), every line is drawn here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot

from flowgraph.diagrams.model.labels import SIGNS, signed
from flowgraph.diagrams.model.picture import Arrow, ArrowStyle, Box, BoxKind, Frame, Picture, Status
from flowgraph.diagrams.write.palette import STATUS_INKS
from flowgraph.diagrams.write.style import SMALL_PX, WIDTHS_PX
from flowgraph.diagrams.write.svg.geometry import Rect, TextLine, heading
from flowgraph.diagrams.write.svg.label_places import Place
from flowgraph.diagrams.write.svg.layout import LINE_PX, LaidArrow, LaidBox, LaidFrame, laid_out
from flowgraph.diagrams.write.svg.svg_frame import ABOUT_CHARACTERS, ALONE, Look, framed, short
from flowgraph.diagrams.write.svg.text_width import text_width_px

TITLE_PX, LEGEND_PX = 40.0, 22.0
SHARED_INKS = (ArrowStyle.TRANSFER, ArrowStyle.STALE)  # theirs are those of what is added, and changed
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


@dataclass(frozen=True)
class LegendSign:
    """One entry of the legend: a box of a kind or a line of a style, and its name."""

    css: str
    text: str
    x: float
    y: float
    is_line: bool


def graph_svg(picture: Picture, look: Look = ALONE) -> str:
    """Draw a picture of boxes and arrows. Raises UsageError where Graphviz is not installed."""
    laid = laid_out(picture)
    signs = tuple(_legend(picture, max(laid.width, 320.0), TITLE_PX + laid.height))
    rows = len({sign.y for sign in signs})
    width = max(laid.width, 320.0, *(sign.x + 40 + text_width_px(sign.text, SMALL_PX) for sign in signs))
    return framed(
        "graph.svg.j2",
        look,
        title=picture.title,
        about=picture.about,
        width=width,
        height=TITLE_PX + laid.height + rows * LEGEND_PX + (8 if signs else 0),
        head=heading(picture.title, width),
        shift=TITLE_PX,
        frames=[_Frame.of(each, look) for each in laid.frames],
        arrows=[_Arrow.of(each, len(statuses_of(picture)) > 1) for each in laid.arrows],
        boxes=[_Box.of(each, _pool(picture, each, look)) for each in laid.boxes],
        signs=signs,
    )


def _pool(picture: Picture, laid: LaidBox, look: Look) -> str:
    """Give the class of the pool that a box stands in, by the frames around it."""
    frames, inside = {frame.id: frame for frame in picture.frames}, laid.box.inside
    while inside is not None:
        if found := look.pool(frames[inside].pool):
            return found
        inside = frames[inside].parent
    return ""


@dataclass(frozen=True)
class _Frame:
    id: str
    css: str
    at: Rect
    texts: tuple[TextLine, ...]

    @classmethod
    def of(cls, laid: LaidFrame, look: Look) -> _Frame:
        frame, at = laid.frame, laid.at
        css = _classes(f"frame frame-{frame.kind}", frame.status, look.pool(frame.pool))
        texts = (
            TextLine(at.left + 10, at.top + 17 + i * LINE_PX, line, "small strong halo")
            for i, line in enumerate(laid.lines)
        )
        return cls(frame.id, css, at, tuple(texts))


@dataclass(frozen=True)
class _Box:
    id: str
    css: str
    at: Rect
    outline: str
    about: str
    texts: tuple[TextLine, ...]

    @classmethod
    def of(cls, laid: LaidBox, pool: str) -> _Box:
        box, at = laid.box, laid.at
        first = at.middle - (len(laid.lines) - 1) * LINE_PX / 2 + 4 + (4 if box.kind == "data" else 0)
        texts = (
            TextLine(at.centre, first + i * LINE_PX, line, "on strong" if i < laid.names else "on small", "middle")
            for i, line in enumerate(laid.lines)
        )
        about = signed(box.about or ", ".join(box.label), box.status, ABOUT_CHARACTERS)
        return cls(
            box.id,
            _classes(f"box kind-{box.kind}", box.status, pool),
            laid.at,
            outline(box.kind, laid.at),
            about,
            tuple(texts),
        )


@dataclass(frozen=True)
class _Arrow:
    source: str
    target: str
    css: str
    path: str
    tip: str
    about: str
    texts: tuple[TextLine, ...]

    @classmethod
    def of(cls, laid: LaidArrow, differs: bool) -> _Arrow:
        """Give an arrow; beside what differs, one that is the same keeps to the ink of data, for others mean change."""
        arrow = laid.arrow
        style = ArrowStyle.DATA if differs and arrow.style in SHARED_INKS else arrow.style
        return cls(
            arrow.source,
            arrow.target,
            _classes(f"arrow style-{style}", arrow.status),
            curve(laid.points),
            arrowhead(laid.points[-1], laid.tip, WIDTHS_PX.get(arrow.style, 1.0)),
            signed(arrow.label, arrow.status, ABOUT_CHARACTERS),
            tuple(_label(laid)),
        )


def _label(laid: LaidArrow) -> Iterator[TextLine]:
    if laid.label_at is not None:
        x, y = laid.label_at
        for i, line in enumerate(laid.lines):
            yield TextLine(x, y + 4 + (i - (len(laid.lines) - 1) / 2) * LINE_PX, line, "small halo", "middle")


def _classes(kind: str, status: str, pool: str = "") -> str:
    """Give the classes of a thing, of which none is a user's text."""
    return " ".join(each for each in (kind, "" if status == "same" else f"status-{status}", pool) if each)


def curve(points: Sequence[Place]) -> str:
    """Write cubic curves as the data of an SVG path.

    >>> curve([(0.0, 0.0), (0.0, 2.0), (0.0, 4.0), (0.0, 6.5)])
    'M0 0C0 2 0 4 0 6.5'
    """
    first, *others = (f"{short(x)} {short(y)}" for x, y in points)
    return f"M{first}C{' '.join(others)}"


def arrowhead(end: Place, tip: Place, width_px: float) -> str:
    """Give the corners of an arrow's head, wider for a wider line.

    >>> arrowhead((0.0, 0.0), (0.0, 10.0), 1)
    '0,10 -3.5,2 3.5,2'
    """
    across, down = tip[0] - end[0], tip[1] - end[1]
    length = hypot(across, down) or 1.0
    across, down = across / length, down / length
    back, side = TIP_LENGTH_PX, TIP_WIDTH_PX + (width_px - 1) * 0.75
    base = tip[0] - back * across, tip[1] - back * down
    corners = tip, (base[0] - side * down, base[1] + side * across), (base[0] + side * down, base[1] - side * across)
    return " ".join(f"{short(x)},{short(y)}" for x, y in corners)


def outline(kind: BoxKind, at: Rect) -> str:
    """Give the outline of a box as the data of an SVG path: each family of kinds has a shape of its own."""
    left, top, right, bottom = at.left, at.top, at.left + at.width, at.top + at.height
    middle = (top + bottom) / 2
    if kind == "model":
        corners = ((left + 12, top), (right - 12, top), (right, middle), (right - 12, bottom), (left + 12, bottom))
        return "M" + "L".join(f"{short(x)} {short(y)}" for x, y in (*corners, (left, middle))) + "Z"
    if kind == "data":
        arc = f"A{short(at.width / 2)} 6 0 0"
        body = f"M{short(left)} {short(top + 6)}{arc} 1 {short(right)} {short(top + 6)}V{short(bottom - 6)}"
        lid = (
            f"M{short(right)} {short(top + 6)}{arc} 1 {short(left)} {short(top + 6)}"  # turns as the body does: filled
        )
        return f"{body}{arc} 1 {short(left)} {short(bottom - 6)}Z{lid}"
    round_px = at.height / 2 if kind in ("result", "arithmetic") else 3.0 if kind == "device" else 8.0
    return _rounded(left, top, right, bottom, round_px)


def _rounded(left: float, top: float, right: float, bottom: float, round_px: float) -> str:
    turn = f"A{short(round_px)} {short(round_px)} 0 0 1"
    return (
        f"M{short(left + round_px)} {short(top)}H{short(right - round_px)}"
        f"{turn} {short(right)} {short(top + round_px)}V{short(bottom - round_px)}"
        f"{turn} {short(right - round_px)} {short(bottom)}H{short(left + round_px)}"
        f"{turn} {short(left)} {short(bottom - round_px)}V{short(top + round_px)}"
        f"{turn} {short(left + round_px)} {short(top)}Z"
    )


def statuses_of(picture: Picture) -> set[Status]:
    """Give what became of things in a picture; "same" alone where it is no comparison."""
    things: tuple[Box | Frame | Arrow, ...] = (*picture.boxes, *picture.frames, *picture.arrows)
    return {each.status for each in things}


def _legend(picture: Picture, width: float, top: float) -> Iterator[LegendSign]:
    """Give the legend: kinds of boxes, styles of arrows and statuses that occur, in rows as wide as the picture."""
    kinds, styles = {box.kind for box in picture.boxes}, {arrow.style for arrow in picture.arrows}
    statuses = statuses_of(picture)
    entries = [(f"kind-{kind}", name, False) for kind, name in KIND_NAMES.items() if kind in kinds]
    entries += [(f"style-{style}", name, True) for style, name in STYLE_NAMES.items() if style in styles]
    entries += [(f"kind-result status-{each}", SIGNS[each] + each, False) for each in STATUS_INKS if each in statuses]
    x, y = 16.0, top + 8
    for css, name, is_line in entries:
        wide = 28 + text_width_px(name, SMALL_PX) + 16
        if x + wide > width and x > 16:
            x, y = 16.0, y + LEGEND_PX
        yield LegendSign(css, name, x, y, is_line)
        x += wide
