"""Draw a run's numbers over its steps: one SVG of small multiples, a panel a series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flowgraph.diagrams.model.series import Series, SeriesPoint, known, running_mean, sentence, step_range, thinned
from flowgraph.diagrams.model.ticks import number_text, padded, ticks, widened
from flowgraph.diagrams.write.svg.geometry import (
    TITLE_HEIGHT,
    Point,
    Rect,
    TextLine,
    cut,
    polyline,
    widest,
    width_of,
)
from flowgraph.diagrams.write.svg.marks import Mark, circle, group, line, path, words
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Look, framed

__all__ = ["Series", "curves_svg"]

SMOOTH_FROM = 12  # with fewer values a curve is not noisy
PANEL_WIDTH, PANEL_HEIGHT = 300, 190
MARGIN, PANEL_GAP = 16, 14
LEFT, RIGHT, TOP, BOTTOM = 38, 44, 30, 24  # minimum room, for tick labels, the last value, the name
UNIT_GAP, UNIT_MIN = 6.0, 24.0

Span = tuple[float, float]


@dataclass(frozen=True)
class Plot:
    """The rectangle that a curve is drawn in, and the range of data that it shows."""

    area: Rect
    steps: Span
    values: Span

    def point(self, step: float, value: float) -> Point:
        """Return the place of a value on the picture."""
        across, up = _share(step, self.steps), _share(value, self.values)
        return self.area.left + across * self.area.width, self.area.bottom - up * self.area.height


def curves_svg(
    title: str, series: Sequence[Series], *, width: int = 960, height: int | None = None, look: Look = ALONE
) -> str:
    """Draw series as one SVG, headline ones first; without a `height` it is as tall as the panels need.

    Both are in units of the picture (CSS pixels). All panels share the range of steps.
    """
    ordered = sorted(series, key=lambda metric: not metric.headline)
    columns = max(1, min(len(ordered), width // PANEL_WIDTH))
    rows = max(1, -(-len(ordered) // columns))
    tall = height if height is not None else int(TITLE_HEIGHT) + rows * (PANEL_HEIGHT + PANEL_GAP) + MARGIN
    wide = (width - 2 * MARGIN - (columns - 1) * PANEL_GAP) / columns
    high = (tall - TITLE_HEIGHT - MARGIN - (rows - 1) * PANEL_GAP) / rows
    steps = step_range(series)
    panels, sentences = list[Mark](), list[str]()
    for place, metric in enumerate(ordered):
        row, column = divmod(place, columns)
        cell = Rect(MARGIN + column * (wide + PANEL_GAP), TITLE_HEIGHT + row * (high + PANEL_GAP), wide, high)
        sentences.append(sentence(metric))
        panels.append(_panel(place, metric, cell, steps, sentences[-1]))
    about = " ".join(sentences) or "There are no curves."
    return framed("curves", panels, look, title=title, about=about, width=width, height=tall)


def _panel(place: int, series: Series, cell: Rect, steps: Span, title: str) -> Mark:
    points = known(series)
    values = [(step, value) for step, value in points if value is not None]
    numbers = [value for _, value in values]
    span = padded(min(numbers), max(numbers)) if values else (0.0, 1.0)
    marks = ticks(*span) if values else ()
    last = number_text(numbers[-1]) if values else ""
    # Room for the longest text to either side of the curve.
    left = cell.left + max(LEFT, 12 + widest(_tick_texts(marks), "small"))
    right = cell.right - max(RIGHT, 12 + width_of(last, "small strong"))
    area = Rect(left, cell.top + TOP, max(right - left, 1), max(cell.height - BOTTOM - TOP, 1))
    plot = Plot(area, widened(*steps), span)
    axis = line("axis", (area.left, area.bottom), (area.right, area.bottom))
    inner = [_name(series, cell, area), *_value_axis(plot, marks), axis]
    inner += [*_step_axis(plot, cell, steps)] if values else []
    smooth = running_mean(points) if len(values) >= SMOOTH_FROM else []
    for run in _runs(plot, thinned(points)):
        curve = path("curve pale" if smooth else "curve", polyline(run))
        inner.append(circle("point", run[0], 2) if len(run) == 1 else curve)
    inner += [path("curve", polyline(run)) for run in _runs(plot, thinned(smooth)) if len(run) > 1]
    if values:
        x, y = plot.point(*values[-1])
        inner += [circle("point", (x, y), 2.5), words(TextLine(x + 6, y + 4, last, "small strong"))]
    else:
        inner.append(words(TextLine(area.centre, area.middle, "no values", "small muted", "middle")))
    return group(f"panel{' headline' if series.headline else ''}", *inner, title=title, row=place, focus=True)


def _name(series: Series, cell: Rect, area: Rect) -> Mark:
    name = cut(series.name, cell.width, "strong") or "…"
    room = cell.width - width_of(name, "strong") - UNIT_GAP
    unit = cut(series.unit, room) if series.unit and room > UNIT_MIN else ""
    spans = [Mark("tspan", {"class": "unit", "dx": 4}, unit)] if unit else []
    return words(TextLine(cell.left, area.top - 12, name, "strong"), *spans)


def _value_axis(plot: Plot, marks: Sequence[float]) -> Iterator[Mark]:
    left, right = plot.area.left, plot.area.right
    for mark, text in zip(marks, _tick_texts(marks), strict=True):
        _, y = plot.point(plot.steps[0], mark)
        yield line("grid", (left, y), (right, y))
        yield words(TextLine(left - 6, y + 4, text, "small muted", "end"))


def _step_axis(plot: Plot, cell: Rect, steps: Span) -> Iterator[Mark]:
    """Yield the marks of the axis of steps, and its name at its end where the last number leaves room."""
    bottom = plot.area.bottom
    marks = ticks(*steps, 4, whole=True) or (steps[0],)
    step = marks[1] - marks[0] if len(marks) > 1 else 1.0
    name = TextLine(cell.right, bottom + 16, "step", "small muted", "end")
    last_px = 0.0
    for mark in marks:
        x, _ = plot.point(mark, plot.values[0])
        number = TextLine(x, bottom + 16, number_text(mark, step), "small muted", "middle")
        last_px = max(last_px, number.rect.right)
        yield line("axis", (x, bottom), (x, bottom + 4))
        yield words(number)
    if last_px + 4 < name.rect.left:
        yield words(name)


def _tick_texts(marks: Sequence[float]) -> list[str]:
    step = marks[1] - marks[0] if len(marks) > 1 else 0.0
    return [number_text(mark, step) for mark in marks]


def _runs(plot: Plot, points: Sequence[SeriesPoint]) -> Iterator[list[Point]]:
    """Yield the places of points, cut at each gap."""
    run = list[Point]()
    for step, value in [*points, (0.0, None)]:
        if value is not None:
            run.append(plot.point(step, value))
        elif run:
            yield run
            run = []


def _share(value: float, span: Span) -> float:
    return (value - span[0]) / (span[1] - span[0])
