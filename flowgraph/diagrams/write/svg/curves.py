"""Draw a run's numbers over its steps: one SVG of small multiples, a panel a series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flowgraph.diagrams.model.charts import Curves
from flowgraph.diagrams.model.series import (
    Series,
    SeriesPoint,
    drawable_points,
    running_mean,
    series_sentence,
    step_range,
    thin_points,
)
from flowgraph.diagrams.model.ticks import labelled_ticks, number_text, pad_range, widen_constant
from flowgraph.diagrams.write.svg.geometry import MARGIN, TITLE_HEIGHT, WIDTH, LinearScale, Point, Rect, polyline
from flowgraph.diagrams.write.svg.marks import Mark, circle, group, line, path, text_mark
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Look, svg_document
from flowgraph.diagrams.write.svg.text_lines import TextLine, clean_and_cut, widest, width_of

SMOOTH_FROM = 12  # with fewer values a curve is not noisy
COLUMNS_MAX, PANEL_HEIGHT, PANEL_GAP = 3, 190, 14
LEFT, RIGHT, TOP, BOTTOM = 38, 44, 30, 24  # minimum room, for tick labels, the last value, the name
UNIT_GAP, UNIT_MIN = 6.0, 24.0

Span = tuple[float, float]


def curves_svg(curves: Curves, look: Look = ALONE) -> str:
    """Return a run's metrics as SVG text, 960 pixels wide: a panel for each series, headline series first.

    `look` says whether the picture is embedded in a page. All panels have the same range of steps. A series of 12 or
    more values is drawn pale, with its moving average.
    """
    ordered = sorted(curves.series, key=lambda metric: not metric.headline)
    columns = max(1, min(len(ordered), COLUMNS_MAX))
    rows = max(1, -(-len(ordered) // columns))
    wide = (WIDTH - 2 * MARGIN - (columns - 1) * PANEL_GAP) / columns
    high = PANEL_HEIGHT + PANEL_GAP / rows
    steps = step_range(ordered)
    panels = list[Mark]()
    for place, metric in enumerate(ordered):
        row, column = divmod(place, columns)
        cell = Rect(MARGIN + column * (wide + PANEL_GAP), TITLE_HEIGHT + row * (high + PANEL_GAP), wide, high)
        panels.append(_panel(place, metric, cell, steps))
    about = " ".join(map(series_sentence, ordered)) or "No curves to draw."
    height = TITLE_HEIGHT + rows * (PANEL_HEIGHT + PANEL_GAP) + MARGIN
    return svg_document("curves", replace(curves, about=about), panels, look, height=height)


def _panel(place: int, series: Series, cell: Rect, steps: Span) -> Mark:
    points = drawable_points(series)
    values = [(step, value) for step, value in points if value is not None]
    numbers = [value for _, value in values]
    span = pad_range(min(numbers), max(numbers)) if values else (0.0, 1.0)
    marks = labelled_ticks(*span) if values else ()
    last = number_text(numbers[-1]) if values else ""
    # Room for the longest text to either side of the curve.
    left = cell.left + max(LEFT, 12 + widest((text for _, text in marks), "small"))
    right = cell.right - max(RIGHT, 12 + width_of(last, "small strong"))
    area = Rect(left, cell.top + TOP, max(right - left, 1), max(cell.height - BOTTOM - TOP, 1))
    across, up = LinearScale(area.left, area.right, *widen_constant(*steps)), LinearScale(area.bottom, area.top, *span)
    name = clean_and_cut(series.name, cell.width, "strong") or "…"
    unit_px = cell.width - width_of(name, "strong") - UNIT_GAP
    unit = clean_and_cut(series.unit, unit_px) if series.unit and unit_px > UNIT_MIN else ""
    spans = [Mark("tspan", {"class": "unit", "dx": 4}, unit)] if unit else []
    inner = [text_mark(TextLine(cell.left, area.top - 12, name, "strong"), *spans)]
    for mark, text in marks:
        y = up.at(mark)
        inner.append(line("grid", (area.left, y), (area.right, y)))
        inner.append(text_mark(TextLine(area.left - 6, y + 4, text, "small muted", "end")))
    inner.append(line("axis", (area.left, area.bottom), (area.right, area.bottom)))
    inner += [*_step_axis(across, area.bottom, cell.right, steps)] if values else []
    smooth = running_mean(points) if len(values) >= SMOOTH_FROM else []
    for run in _runs(across, up, points):
        curve = path("curve pale" if smooth else "curve", polyline(run))
        inner.append(circle("point", run[0], 2) if len(run) == 1 else curve)
    inner += [path("curve", polyline(run)) for run in _runs(across, up, smooth) if len(run) > 1]
    if values:
        x, y = across.at(values[-1][0]), up.at(numbers[-1])
        inner += [circle("point", (x, y), 2.5), text_mark(TextLine(x + 6, y + 4, last, "small strong"))]
    else:
        inner.append(text_mark(TextLine(area.centre, area.middle, "no values", "small muted", "middle")))
    classes = f"panel{' headline' if series.headline else ''}"
    return group(classes, *inner, title=series_sentence(series), row=place, focus=True)


def _step_axis(across: LinearScale, bottom: float, right: float, steps: Span) -> Iterator[Mark]:
    name = TextLine(right, bottom + 16, "step", "small muted", "end")
    last_px = 0.0
    for mark, text in labelled_ticks(*steps, integers=True) or [(steps[0], number_text(steps[0], 1.0))]:
        x = across.at(mark)
        number = TextLine(x, bottom + 16, text, "small muted", "middle")
        last_px = max(last_px, number.rect.right)
        yield line("axis", (x, bottom), (x, bottom + 4))
        yield text_mark(number)
    if last_px + 4 < name.rect.left:
        yield text_mark(name)


def _runs(across: LinearScale, up: LinearScale, points: Sequence[SeriesPoint]) -> Iterator[list[Point]]:
    run = list[Point]()
    for step, value in [*thin_points(points), (0.0, None)]:
        if value is not None:
            run.append((across.at(step), up.at(value)))
        elif run:
            yield run
            run = []
