"""Draw a sequence diagram as an SVG: actors from left to right, what they tell each other from top to bottom.

The geometry is here; `templates/sequence.svg.j2` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import ceil

from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.sequence import Actor, Message, MessageStyle, SequenceDiagram
from flowgraph.diagrams.write.svg.geometry import (
    LINE,
    MARGIN,
    TITLE_HEIGHT,
    Rect,
    TextLine,
    baseline,
    cut,
    heading,
    widest,
    width_of,
)
from flowgraph.diagrams.write.svg.legend import Entry, Legend, legend
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Look, framed, short

NAME_AT_MOST, LABEL_AT_MOST = 150.0, 230.0
BOX_PADDING, BOX_AT_LEAST, BOX_GAP = 9.0, 76.0, 26.0
POOL_HEIGHT, POOL_PADDING = 20.0, 7.0
ROW_HEIGHT, LOOP_WIDTH, LOOP_HEIGHT = 34.0, 26.0, 16.0
LABEL_GAP = 12.0  # beside a label, at each end of its arrow
WIDTH_AT_LEAST = 420.0
REPEATED_FROM = 12  # messages: a reader of more has lost sight of the actors at the top
NAMES: dict[MessageStyle, str] = {
    "call": "call",
    "reply": "reply",
    "transfer": "transfer of data",
    "sync": "weight sync",
}


@dataclass(frozen=True)
class Head:
    """An actor's box: one at the top of its line, and one at the foot of a tall picture."""

    kind: str
    pool: str
    rect: Rect
    lines: tuple[TextLine, ...]
    told: str


@dataclass(frozen=True)
class Lifeline:
    """The line below an actor's box."""

    pool: str
    x: float
    top: float
    bottom: float


@dataclass(frozen=True)
class Band:
    """What is around the actors of one pool, with its name at the top."""

    pool: str
    rect: Rect
    name: TextLine


@dataclass(frozen=True)
class DrawnMessage:
    """A message on the picture: the data of its path, the corners of its tip, its label."""

    style: MessageStyle
    pools: str
    path: str
    tip: str
    label: TextLine
    told: str


@dataclass(frozen=True)
class Sheet:
    """Where everything is: the middle and the width of each actor's box, the heights between which lines run."""

    centres: tuple[float, ...]
    widths: tuple[float, ...]
    box_top: float
    box_height: float
    foot: float

    @property
    def line_top(self) -> float:
        """Give where lifelines begin."""
        return self.box_top + self.box_height

    def box(self, at: int, top: float) -> Rect:
        """Give an actor's box at a height."""
        return Rect(self.centres[at] - self.widths[at] / 2, top, self.widths[at], self.box_height)


def sequence_svg(diagram: SequenceDiagram, look: Look = ALONE) -> str:
    """Draw a sequence diagram as one SVG, as wide as its actors and labels need."""
    sheet, width = _sheet(diagram)
    places = {actor.id: at for at, actor in enumerate(diagram.actors)}
    repeated = len(diagram.messages) >= REPEATED_FROM
    tops = [sheet.box_top, *([sheet.foot] if repeated else [])]
    bottom = sheet.foot + (sheet.box_height if repeated else 0.0)
    return framed(
        "sequence.svg.j2",
        look,
        title=diagram.title,
        about=diagram.about,
        width=width,
        height=bottom + POOL_PADDING + MARGIN,
        heading=heading(diagram.title, width),
        legend=_key(diagram, width),
        bands=tuple(_bands(diagram.actors, sheet, bottom, look)),
        lifelines=tuple(_lifelines(diagram.actors, sheet, look)),
        heads=tuple(_head(actor, sheet.box(at, top), look) for top in tops for at, actor in enumerate(diagram.actors)),
        messages=tuple(_messages(diagram, sheet, places, look)),
    )


def _key(diagram: SequenceDiagram, width: float) -> Legend:
    used = {message.style for message in diagram.messages}
    entries = [Entry(f"style-{style}", name, sample="line") for style, name in NAMES.items() if style in used]
    return legend(entries, TITLE_HEIGHT, right=width - MARGIN)


def _sheet(diagram: SequenceDiagram) -> tuple[Sheet, float]:
    """Lay actors out: as far apart as their boxes and the labels between them need."""
    widths = tuple(map(_box_width, diagram.actors))
    places = {actor.id: at for at, actor in enumerate(diagram.actors)}
    gaps = _gaps(diagram.messages, places, widths)
    centres = list[float]()
    for at, width in enumerate(widths):
        centres.append(centres[-1] + gaps[at - 1] if centres else MARGIN + POOL_PADDING + width / 2)
    right = max([*(x + _reach(at, widths, gaps) for at, x in enumerate(centres))], default=0.0)
    whole = float(ceil(max(right + MARGIN + POOL_PADDING, WIDTH_AT_LEAST)))
    pools = POOL_HEIGHT if any(actor.pool for actor in diagram.actors) else 0.0
    top = TITLE_HEIGHT + _key(diagram, whole).height + pools
    height = max((len(actor.label) for actor in diagram.actors), default=0) * LINE + 2 * BOX_PADDING - 4
    foot = top + height + ROW_HEIGHT * len(diagram.messages) + 18
    return Sheet(tuple(centres), widths, top, height, foot), whole


def _reach(at: int, widths: Sequence[float], gaps: Sequence[float]) -> float:
    """Give how far right of an actor's middle it needs room: the last one for its loops too."""
    return max(widths[at] / 2, gaps[at] if at == len(widths) - 1 else 0.0)


def _box_width(actor: Actor) -> float:
    first, rest = actor.label[:1], actor.label[1:]
    lines = widest((cut(text, NAME_AT_MOST, "strong") for text in first), "strong")
    return max(lines, widest((cut(text, NAME_AT_MOST, "small") for text in rest), "small"), BOX_AT_LEAST - 18) + 18


def _gaps(messages: Sequence[Message], places: dict[str, int], widths: Sequence[float]) -> list[float]:
    """Give how far each actor is from the next, and how far the last one's loops reach, 0 without any.

    What lies between two actors that are not neighbours is widened evenly, the short ways first.
    """
    gaps = [(one + other) / 2 + BOX_GAP for one, other in pairwise(widths)] + [0.0] * bool(widths)
    for message in sorted(messages, key=lambda message: abs(places[message.source] - places[message.target])):
        first, last = sorted((places[message.source], places[message.target]))
        need = width_of(cut(message.label, LABEL_AT_MOST, "small"), "small") + 2 * LABEL_GAP
        if first == last:
            gaps[first] = max(gaps[first], need + LOOP_WIDTH)
        elif (short_of := need - sum(gaps[first:last])) > 0:
            gaps[first:last] = [gap + short_of / (last - first) for gap in gaps[first:last]]
    return gaps


def _bands(actors: Sequence[Actor], sheet: Sheet, bottom: float, look: Look) -> Iterator[Band]:
    """Give each run of neighbours in one pool its band."""
    for pool, run in groupby(range(len(actors)), key=lambda at: actors[at].pool):
        here = list(run)
        if not pool:
            continue
        left = sheet.box(here[0], 0).left - POOL_PADDING
        right = sheet.box(here[-1], 0).right + POOL_PADDING
        rect = Rect(
            left, sheet.box_top - POOL_HEIGHT, right - left, bottom + POOL_PADDING - sheet.box_top + POOL_HEIGHT
        )
        shown = cut(pool, rect.width - 2 * POOL_PADDING, "small muted")
        yield Band(look.pool(pool), rect, TextLine(left + POOL_PADDING, rect.top + 14, shown, "small muted"))


def _lifelines(actors: Sequence[Actor], sheet: Sheet, look: Look) -> Iterator[Lifeline]:
    for actor, x in zip(actors, sheet.centres, strict=True):
        yield Lifeline(look.pool(actor.pool), x, sheet.line_top, sheet.foot)


def _head(actor: Actor, rect: Rect, look: Look) -> Head:
    first = rect.top + (rect.height - LINE * len(actor.label)) / 2 + LINE / 2
    styles = ["on strong", *["on small"] * len(actor.label)]
    lines = tuple(
        TextLine(rect.centre, baseline(first + LINE * at, style), cut(text, NAME_AT_MOST, style), style, "middle")
        for at, (text, style) in enumerate(zip(actor.label, styles, strict=False))
    )
    kind = "data" if actor.kind == "driver" else "model"
    pool = f" in {clean(actor.pool)}" if actor.pool else ""
    return Head(kind, look.pool(actor.pool), rect, lines, f"{', '.join(map(clean, actor.label))}{pool}")


def _messages(diagram: SequenceDiagram, sheet: Sheet, places: dict[str, int], look: Look) -> Iterator[DrawnMessage]:
    for row, message in enumerate(diagram.messages):
        y = sheet.line_top + ROW_HEIGHT * (row + 1) - 6
        source, target = places[message.source], places[message.target]
        ends = (diagram.actors[source], diagram.actors[target])
        pools = " ".join(dict.fromkeys(look.pool(actor.pool) for actor in ends))
        names = [clean(actor.label[0] if actor.label else "") for actor in ends]
        told = f"{' → '.join(dict.fromkeys(names))}: {clean(message.label, 400)}"
        yield (_loop if source == target else _arrow)(message, sheet, (source, target), y, pools, told)


def _arrow(message: Message, sheet: Sheet, ends: tuple[int, int], y: float, pools: str, told: str) -> DrawnMessage:
    start, end = sheet.centres[ends[0]], sheet.centres[ends[1]]
    side = 1 if end > start else -1
    label = cut(message.label, abs(end - start) - 2 * LABEL_GAP, "small")
    words = TextLine((start + end) / 2, y - 6, label, "small halo", "middle")
    tip = _tip(end, y, side)
    return DrawnMessage(message.style, pools, f"M{short(start)} {short(y)}H{short(end - 7 * side)}", tip, words, told)


def _loop(message: Message, sheet: Sheet, ends: tuple[int, int], y: float, pools: str, told: str) -> DrawnMessage:
    x, right, top = sheet.centres[ends[0]], sheet.centres[ends[0]] + LOOP_WIDTH, y - LOOP_HEIGHT
    label = cut(message.label, LABEL_AT_MOST, "small")
    words = TextLine(right + 6, baseline(y - LOOP_HEIGHT / 2, "small"), label, "small halo")
    path = f"M{short(x)} {short(top)}H{short(right)}V{short(y)}H{short(x + 7)}"
    return DrawnMessage(message.style, pools, path, _tip(x, y, -1), words, told)


def _tip(x: float, y: float, side: int) -> str:
    """Give the corners of an arrow's tip that points to a place from one side."""
    back = short(x - 9 * side)
    return f"{short(x)},{short(y)} {back},{short(y - 4.5)} {back},{short(y + 4.5)}"
