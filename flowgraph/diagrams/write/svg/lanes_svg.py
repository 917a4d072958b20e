"""Draw a timeline as an SVG: a lane for each pool, measured lanes under their forecast.

The page's script zooms it by the data attributes of bars and ticks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from flowgraph.diagrams.model.charts import Bar, BarKind, Lane, Lanes
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.diagrams.model.ticks import time_ticks, time_unit
from flowgraph.diagrams.write.svg.geometry import MARGIN, TITLE_HEIGHT, WIDTH, LinearScale, Rect
from flowgraph.diagrams.write.svg.marks import Mark, group, line, rect, stripes, text_mark
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Entry, Look, legend, svg_document
from flowgraph.diagrams.write.svg.text_lines import LINE, TextLine, baseline, clean_and_cut, widest, width_of

BAR_HEIGHT, BAR_GAP, LANE_GAP, POOL_GAP = 24.0, 2.0, 5.0, 14.0
NAME_MAX = 190.0
BAR_PADDING = 5.0
BAR_MIN = 1.0  # a narrower bar would not be seen
LETTERS_MIN = 4  # of a label that is cut: fewer say nothing
AXIS_HEIGHT = 26.0

# The letter in a bar that is too narrow for its label, and in the legend.
KEYS: Mapping[BarKind, str] = {
    "generate": "G",
    "score": "S",
    "logprob": "L",
    "advantage": "A",
    "update": "U",
    "host": "H",
    "sync": "Y",
    "transfer": "T",
    "offload": "O",
    "idle": "–",
}
NAMES: Mapping[BarKind, str] = {"logprob": "log-prob", "sync": "weight sync"}


def lanes_svg(lanes: Lanes, look: Look = ALONE) -> str:
    """Return a timeline as SVG text, 960 pixels wide; `look` says whether the picture is embedded in a page.

    The measured lane of a pool is below its forecast lane. If there are several steps, their starts are named.
    """
    ordered = by_pool(lanes.lanes)
    bars = [bar for lane in ordered for bar in lane.bars]
    kinds = {bar.kind for bar in bars}
    key, key_height = legend(
        [
            Entry(f"bar-{kind}", NAMES.get(kind, kind), letter, "stripes" if kind == "idle" else "box")
            for kind, letter in KEYS.items()
            if kind in kinds
        ],
        TITLE_HEIGHT,
    )
    names = widest((clean_and_cut(lane.label, NAME_MAX, "strong") for lane in ordered), "strong")
    sources = width_of("measured", "small") + 12 if any(lane.measured for lane in ordered) else 0.0
    end_s = max([lanes.end_s, *(bar.end_s for bar in bars)]) or 1.0
    scale = LinearScale(MARGIN + max(names, 40.0) + 12 + sources, WIDTH - MARGIN - 18, 0.0, end_s)
    starts_s = dict[int, float]()
    for bar in (bar for bar in bars if bar.kind != "idle"):
        starts_s[bar.step] = min(starts_s.get(bar.step, bar.start_s), bar.start_s)
    if len(starts_s) == 1:  # steps are named where there are several
        starts_s.clear()
    top = TITLE_HEIGHT + key_height + (LINE + 4 if starts_s else 0.0)
    bands, tracks = _tracks(ordered, scale, top, look)
    bottom = (bands[-1].bottom if bands else top + BAR_HEIGHT) + LANE_GAP
    unit = time_unit(end_s)
    zoomed = group(
        "zoomed",
        *_times(scale, starts_s, top, TITLE_HEIGHT + key_height + LINE - 3, bottom),
        *(bar for lane, band in zip(ordered, bands, strict=True) for bar in _bars(lane, band, scale, look)),
        left=scale.start,
        right=scale.end,
        end=str(end_s),
        unit=unit.name,
        unit_seconds=str(unit.seconds),
    )
    axis = line("axis", (scale.start, bottom), (scale.end, bottom))
    marks = [key, *tracks, axis, zoomed]
    return svg_document("lanes", lanes, marks, look, height=bottom + AXIS_HEIGHT + MARGIN / 2)


def by_pool(lanes: Sequence[Lane]) -> list[Lane]:
    """Return lanes grouped by pool, in the order in which pools first appear; in a pool, measured lanes come last.

    >>> lanes = [Lane("a", "a", ()), Lane("b", "b", ()), Lane("a", "a", (), measured=True)]
    >>> [(lane.label, lane.measured) for lane in by_pool(lanes)]
    [('a', False), ('a', True), ('b', False)]
    """
    pools = list(dict.fromkeys(lane.pool for lane in lanes))
    return sorted(lanes, key=lambda lane: (pools.index(lane.pool), lane.measured))


def bar_rows(lane: Lane) -> list[tuple[Bar, int]]:
    """Return the bars of a lane sorted by start, then by end, each with the row, from 0, in which it is drawn.

    Overlapping bars are in different rows, each in the lowest free one; without overlaps, every row is 0.

    >>> lane = Lane("a", "a", tuple(Bar(start, start + 2, "a", "update") for start in range(3)))
    >>> [row for _, row in bar_rows(lane)]
    [0, 1, 0]
    """
    ends_s, rows = list[float](), list[tuple[Bar, int]]()
    for bar in sorted(lane.bars, key=lambda bar: (bar.start_s, bar.end_s)):
        slack_s = 1e-6 * bar.end_s
        row = next((place for place, end_s in enumerate(ends_s) if bar.start_s >= end_s - slack_s), len(ends_s))
        ends_s[row : row + 1] = [bar.end_s]
        rows.append((bar, row))
    return rows


def _tracks(lanes: Sequence[Lane], scale: LinearScale, top: float, look: Look) -> tuple[list[Rect], list[Mark]]:
    bands, tracks, compares = list[Rect](), list[Mark](), any(lane.measured for lane in lanes)
    for previous, lane, following in zip([None, *lanes], lanes, [*lanes[1:], None], strict=False):
        rows = max((row for _, row in bar_rows(lane)), default=0) + 1
        band = Rect(scale.start, top, scale.end - scale.start, rows * (BAR_HEIGHT + BAR_GAP) - BAR_GAP)
        bands.append(band)
        top = band.bottom + (LANE_GAP if following is not None and following.pool == lane.pool else POOL_GAP)
        source, y = "measured" if lane.measured else "forecast", baseline(band.top + BAR_HEIGHT / 2)
        repeats = previous is not None and (previous.pool, previous.label) == (lane.pool, lane.label)
        name = TextLine(MARGIN, y, clean_and_cut(lane.label, NAME_MAX, "strong"), "strong")
        track = group(
            f"lane {look.pool(lane.pool)}",
            None if repeats else text_mark(name),
            text_mark(TextLine(band.left - 10, y, source, "small muted", "end")) if compares else None,
            rect("band", band),
            title=f"{clean(lane.label)}, {source}",
        )
        tracks.append(track)
    return bands, tracks


def _bars(lane: Lane, band: Rect, scale: LinearScale, look: Look) -> list[Mark]:
    marks = list[tuple[float, Mark]]()
    for bar, row in bar_rows(lane):
        left, right = scale.at(bar.start_s), scale.at(bar.end_s)
        area = Rect(left, band.top + row * (BAR_HEIGHT + BAR_GAP), max(right - left, BAR_MIN), BAR_HEIGHT)
        label, classes, key = clean(bar.label), "on small", KEYS[bar.kind]
        fitting = clean_and_cut(label, area.width - 2 * BAR_PADDING, classes)
        text = TextLine(left + BAR_PADDING, baseline(area.middle, classes), fitting, classes)
        if fitting != label and len(fitting) <= LETTERS_MIN:
            letter = key if width_of(key, classes) + 2 <= area.width else ""
            text = replace(text, x=area.centre, text=letter, anchor="middle")
        seconds = f"{show_s(bar.end_s - bar.start_s)}, from {show_s(bar.start_s)}"
        mark = group(
            f"bar bar-{bar.kind} {look.pool(lane.pool)}",
            rect("shape", area),
            stripes(area) if bar.kind == "idle" else None,
            text_mark(text),
            title=f"{clean(bar.about, 400) if bar.about else label} ({seconds})",
            start=str(bar.start_s),
            end=str(bar.end_s),
            label=label,
            key=key,
            focus=True,
        )
        marks.append((area.width, mark))
    return [mark for _, mark in sorted(marks, key=lambda wide: wide[0] <= BAR_MIN)]


def _times(
    scale: LinearScale, starts_s: Mapping[int, float], top: float, names_y: float, bottom: float
) -> Iterator[Mark]:
    """Yield the ticks, then a line where each step begins, with its name where that does not meet the one before it."""
    for seconds, text in time_ticks(scale.high):
        x = scale.at(seconds)
        yield group(
            "tick",
            line("grid", (x, top), (x, bottom)),
            line("axis", (x, bottom), (x, bottom + 4)),
            text_mark(TextLine(x, bottom + 17, text, "small muted", "middle")),
            at=str(seconds),
        )
    free = scale.start
    for step, seconds in sorted(starts_s.items()):
        x = scale.at(seconds)
        name = TextLine(x + 4, names_y, f"step {step}", "small muted")
        fits = free <= name.x and name.rect.right <= WIDTH - MARGIN / 2
        free = name.rect.right + 4 if fits else free
        label = text_mark(name if fits else replace(name, text=""))
        yield group("step-edge", line("edge", (x, names_y - 10), (x, bottom)), label, at=str(seconds))
