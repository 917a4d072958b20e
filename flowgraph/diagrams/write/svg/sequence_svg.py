"""Draw a sequence diagram as an SVG: actors from left to right, their messages from top to bottom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, product
from math import ceil

from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.picture import Actor, MessageStyle, SequenceDiagram
from flowgraph.diagrams.write.svg.geometry import MARGIN, TITLE_HEIGHT, Rect, short
from flowgraph.diagrams.write.svg.marks import Mark, group, line, path, polygon, rect, text_mark
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Entry, Look, legend, svg_document
from flowgraph.diagrams.write.svg.text_lines import LINE, TextLine, baseline, clean_and_cut, widest, width_of

NAME_MAX, LABEL_MAX = 150.0, 230.0
BOX_PADDING, BOX_MIN, BOX_GAP = 9.0, 76.0, 26.0
POOL_HEIGHT, POOL_PADDING = 20.0, 7.0
ROW_HEIGHT, LOOP_WIDTH, LOOP_HEIGHT = 34.0, 26.0, 16.0
LABEL_GAP = 12.0  # between a label and each end of its arrow
WIDTH_MIN = 420.0
REPEATED_FROM = 12  # messages: with more, actors are named at the foot too
NAMES: Mapping[MessageStyle, str] = {
    "call": "call",
    "reply": "reply",
    "transfer": "transfer of data",
    "sync": "weight sync",
}


@dataclass(frozen=True)
class Sheet:
    """The layout of a sequence diagram in pixels: actors' boxes by centre and width, and the heights of the lifelines.

    Boxes begin at `box_top`; lifelines end at `foot`.
    """

    width: float
    legend: Mark
    centres: tuple[float, ...]
    widths: tuple[float, ...]
    box_top: float
    box_height: float
    foot: float

    @property
    def line_top(self) -> float:
        """Return the y coordinate at which lifelines begin, in pixels."""
        return self.box_top + self.box_height

    def box(self, place: int, top: float) -> Rect:
        """Return the rectangle of actor number `place`, from 0, with its upper edge at `top`."""
        return Rect(self.centres[place] - self.widths[place] / 2, top, self.widths[place], self.box_height)


def sequence_svg(diagram: SequenceDiagram, look: Look = ALONE) -> str:
    """Return a sequence diagram as SVG text, as wide as its actors and labels need, and at least 420 pixels.

    `look` says whether the picture is embedded in a page. With 12 or more messages, actors are named at the bottom too.
    """
    actors = diagram.actors
    sheet = _sheet(diagram)
    repeated = len(diagram.messages) >= REPEATED_FROM
    tops = [sheet.box_top, *([sheet.foot] if repeated else [])]
    bottom = sheet.foot + (sheet.box_height if repeated else 0.0)
    marks = [sheet.legend, *_actors(actors, sheet, tops, bottom, look), *_messages(diagram, sheet, look)]
    return svg_document("sequence", diagram, marks, look, width=sheet.width, height=bottom + POOL_PADDING + MARGIN)


def _sheet(diagram: SequenceDiagram) -> Sheet:
    places = {actor.id: place for place, actor in enumerate(diagram.actors)}
    widths = list[float]()
    for actor in diagram.actors:
        names = widest((clean_and_cut(text, NAME_MAX, "strong") for text in actor.label[:1]), "strong")
        details = widest((clean_and_cut(text, NAME_MAX, "small") for text in actor.label[1:]), "small")
        widths.append(max(names, details, BOX_MIN - 18) + 18)
    gaps = [(left + right) / 2 + BOX_GAP for left, right in pairwise(widths)] + [0.0] * bool(widths)
    for message in sorted(diagram.messages, key=lambda message: abs(places[message.source] - places[message.target])):
        first, last = sorted((places[message.source], places[message.target]))
        need = width_of(clean_and_cut(message.label, LABEL_MAX, "small"), "small") + 2 * LABEL_GAP
        if first == last:
            gaps[first] = max(gaps[first], need + LOOP_WIDTH)
        elif (missing := need - sum(gaps[first:last])) > 0:
            gaps[first:last] = [gap + missing / (last - first) for gap in gaps[first:last]]
    centres, right = list[float](), 0.0
    for place, width in enumerate(widths):
        centres.append(centres[-1] + gaps[place - 1] if centres else MARGIN + POOL_PADDING + width / 2)
        loops = gaps[place] if place == len(widths) - 1 else 0.0
        right = max(right, centres[-1] + max(width / 2, loops))
    total = float(ceil(max(right + MARGIN + POOL_PADDING, WIDTH_MIN)))
    styles = {message.style for message in diagram.messages}
    entries = [Entry(f"style-{style}", name, sample="line") for style, name in NAMES.items() if style in styles]
    key, key_height = legend(entries, TITLE_HEIGHT, right=total - MARGIN)
    pools = POOL_HEIGHT if any(actor.pool for actor in diagram.actors) else 0.0
    top = TITLE_HEIGHT + key_height + pools
    height = max((len(actor.label) for actor in diagram.actors), default=0) * LINE + 2 * BOX_PADDING - 4
    foot = top + height + ROW_HEIGHT * len(diagram.messages) + 18
    return Sheet(total, key, tuple(centres), tuple(widths), top, height, foot)


def _actors(actors: Sequence[Actor], sheet: Sheet, tops: Sequence[float], bottom: float, look: Look) -> Iterator[Mark]:
    for pool, run in groupby(range(len(actors)), key=lambda place: actors[place].pool):
        places = list(run)
        if pool:
            left = sheet.box(places[0], 0).left - POOL_PADDING
            right = sheet.box(places[-1], 0).right + POOL_PADDING
            top = sheet.box_top - POOL_HEIGHT
            area = Rect(left, top, right - left, bottom + POOL_PADDING - top)
            name = clean_and_cut(pool, area.width - 2 * POOL_PADDING, "small muted")
            named = text_mark(TextLine(left + POOL_PADDING, top + 14, name, "small muted"))
            yield group(f"around-pool {look.pool(pool)}", rect("band", area, 5), named)
    for actor, x in zip(actors, sheet.centres, strict=True):
        yield line(f"axis lifeline {look.pool(actor.pool)}".strip(), (x, sheet.line_top), (x, sheet.foot))
    for top, (place, actor) in product(tops, enumerate(actors)):
        area, lines = sheet.box(place, top), list[Mark]()
        first = area.top + (area.height - LINE * len(actor.label)) / 2 + LINE / 2
        for row, text in enumerate(actor.label):
            style = "on small" if row else "on strong"
            y = baseline(first + LINE * row, style)
            lines.append(text_mark(TextLine(area.centre, y, clean_and_cut(text, NAME_MAX, style), style, "middle")))
        kind, radius = ("data", 0) if actor.kind == "driver" else ("model", 7)
        where = f" in {clean(actor.pool)}" if actor.pool else ""
        classes, title = f"actor kind-{kind} {look.pool(actor.pool)}", f"{', '.join(map(clean, actor.label))}{where}"
        yield group(classes, rect("shape", area, radius), *lines, title=title)


def _messages(diagram: SequenceDiagram, sheet: Sheet, look: Look) -> Iterator[Mark]:
    places = {actor.id: place for place, actor in enumerate(diagram.actors)}
    for row, message in enumerate(diagram.messages):
        y = sheet.line_top + ROW_HEIGHT * (row + 1) - 6
        ends = places[message.source], places[message.target]
        actors = [diagram.actors[place] for place in ends]
        pools = " ".join(dict.fromkeys(look.pool(actor.pool) for actor in actors))
        names = dict.fromkeys(clean(actor.label[0] if actor.label else "") for actor in actors)
        start, end = (sheet.centres[place] for place in ends)
        if start == end:
            side, right, top = -1, start + LOOP_WIDTH, y - LOOP_HEIGHT
            label = clean_and_cut(message.label, LABEL_MAX, "small")
            text = TextLine(right + 6, baseline(y - LOOP_HEIGHT / 2, "small"), label, "small halo")
            data = f"M{short(start)} {short(top)}H{short(right)}V{short(y)}H{short(start + 7)}"
        else:
            side = 1 if end > start else -1
            label = clean_and_cut(message.label, abs(end - start) - 2 * LABEL_GAP, "small")
            text = TextLine((start + end) / 2, y - 6, label, "small halo", "middle")
            data = f"M{short(start)} {short(y)}H{short(end - 7 * side)}"
        back = end - 9 * side
        yield group(
            f"message style-{message.style} {pools}",
            path("line", data),
            polygon("tip", [(end, y), (back, y - 4.5), (back, y + 4.5)]),
            text_mark(text),
            title=f"{' → '.join(names)}: {clean(message.label, 400)}",
            row=row,
            focus=True,
        )
