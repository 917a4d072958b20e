"""Draw a run's numbers over its steps: one SVG of small multiples, a panel a series.

The geometry is here as data; `templates/curves.svg.j2` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flowgraph.diagrams.model.series import Point, Series, known, running_mean, sentence, step_range, thinned
from flowgraph.diagrams.model.ticks import number_text, padded, ticks, widened
from flowgraph.diagrams.write.svg.geometry import TITLE_HEIGHT, TextLine, cut, heading, widest, width_of
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Look, framed, short

__all__ = ["Series", "curves_svg"]

Place = tuple[float, float]  # on the picture

SMOOTH_FROM = 12  # fewer values than this are no noisy curve
PANEL_WIDTH, PANEL_HEIGHT = 300, 190
MARGIN, PANEL_GAP = 16, 14
LEFT, RIGHT, TOP, BOTTOM = 38, 44, 30, 24  # room at least, for tick labels, the last value, the name
UNIT_GAP, UNIT_AT_LEAST = 6.0, 24.0


@dataclass(frozen=True)
class CurveTick:
    """A mark on an axis: where, and its text."""

    at: float
    text: str


@dataclass(frozen=True)
class PanelCell:
    """The rectangle that a panel has to itself."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class Area:
    """The rectangle that a curve is drawn in, and the range of data it shows."""

    left: float
    top: float
    right: float
    bottom: float
    steps: tuple[float, float]
    values: tuple[float, float]

    def place(self, step: float, value: float) -> Place:
        """Give the place of a point on the picture."""
        across, up = _share(step, self.steps), _share(value, self.values)
        return self.left + across * (self.right - self.left), self.bottom - up * (self.bottom - self.top)


@dataclass(frozen=True)
class CurvePanel:
    """Everything the template writes for one series; `raw` and `smooth` are runs of places without a gap."""

    name: str
    unit: str
    headline: bool
    cell: PanelCell
    area: Area
    step_ticks: tuple[CurveTick, ...]
    step_name: TextLine | None
    value_ticks: tuple[CurveTick, ...]
    raw: tuple[tuple[Place, ...], ...]
    smooth: tuple[tuple[Place, ...], ...]
    last: tuple[Place, str] | None
    about: str


def curves_svg(
    title: str, series: Sequence[Series], *, width: int = 960, height: int | None = None, look: Look = ALONE
) -> str:
    """Draw series as one SVG, headline ones first; `height` is as tall as the panels need unless given.

    Both are in units of the picture (CSS pixels). All panels share the range of steps.
    """
    ordered = sorted(series, key=lambda each: not each.headline)
    columns = max(1, min(len(ordered), width // PANEL_WIDTH))
    rows = -(-len(ordered) // columns)
    tall = height if height is not None else int(TITLE_HEIGHT) + max(1, rows) * (PANEL_HEIGHT + PANEL_GAP) + MARGIN
    steps = step_range(series)
    panels = [_panel(each, _cell(place, columns, rows, width, tall), steps) for place, each in enumerate(ordered)]
    about = " ".join(panel.about for panel in panels) or "There are no curves."
    return framed(
        "curves.svg.j2",
        look,
        title=title,
        about=about,
        width=width,
        height=tall,
        heading=heading(title, width),
        panels=panels,
        path=path,
    )


def _cell(place: int, columns: int, rows: int, width: int, height: int) -> PanelCell:
    wide = (width - 2 * MARGIN - (columns - 1) * PANEL_GAP) / columns
    high = (height - TITLE_HEIGHT - MARGIN - (rows - 1) * PANEL_GAP) / rows
    left = MARGIN + (place % columns) * (wide + PANEL_GAP)
    return PanelCell(left, TITLE_HEIGHT + (place // columns) * (high + PANEL_GAP), wide, high)


def _panel(series: Series, cell: PanelCell, steps: tuple[float, float]) -> CurvePanel:
    points = known(series)
    found = [(step, value) for step, value in points if value is not None]
    values = [value for _, value in found]
    shown = padded(min(values), max(values)) if found else (0.0, 1.0)
    marks = ticks(*shown) if found else ()
    last = number_text(values[-1]) if found else ""
    area = _area(cell, _tick_texts(marks), last, widened(*steps), shown)
    name = cut(series.name, cell.width, "strong") or "…"
    room = cell.width - width_of(name, "strong") - UNIT_GAP
    marked = _step_ticks(area, steps) if found else ()
    return CurvePanel(
        name=name,
        unit=cut(series.unit, room) if series.unit and room > UNIT_AT_LEAST else "",
        headline=series.headline,
        cell=cell,
        area=area,
        step_ticks=marked,
        step_name=_step_name(cell, area, marked),
        value_ticks=_value_ticks(area, marks),
        raw=tuple(_runs(area, thinned(points))),
        smooth=tuple(_runs(area, thinned(running_mean(points)))) if len(found) >= SMOOTH_FROM else (),
        last=(area.place(*found[-1]), last) if found else None,
        about=sentence(series, found),
    )


def _area(
    cell: PanelCell, texts: Sequence[str], last: str, steps: tuple[float, float], values: tuple[float, float]
) -> Area:
    """Give the rectangle of a curve inside its cell, with room for the longest text to either side."""
    left = cell.left + max(LEFT, 12 + widest(texts, "small"))
    right = cell.left + cell.width - max(RIGHT, 12 + width_of(last, "small strong"))
    top, bottom = cell.top + TOP, cell.top + cell.height - BOTTOM
    return Area(left, top, max(right, left + 1), max(bottom, top + 1), steps, values)


def _step_ticks(area: Area, steps: tuple[float, float]) -> tuple[CurveTick, ...]:
    marks = ticks(*steps, 4, whole=True) or (steps[0],)
    gap = marks[1] - marks[0] if len(marks) > 1 else 1.0
    return tuple(CurveTick(area.place(mark, area.values[0])[0], number_text(mark, gap)) for mark in marks)


def _step_name(cell: PanelCell, area: Area, marks: Sequence[CurveTick]) -> TextLine | None:
    """Name the axis of steps at its end, where its last number leaves room."""
    words = TextLine(cell.left + cell.width, area.bottom + 16, "step", "small muted", "end")
    numbers = [TextLine(mark.at, area.bottom + 16, mark.text, "small muted", "middle").rect.right for mark in marks]
    return words if numbers and max(numbers) + 4 < words.rect.left else None


def _value_ticks(area: Area, marks: Sequence[float]) -> tuple[CurveTick, ...]:
    places = [area.place(area.steps[0], mark)[1] for mark in marks]
    return tuple(CurveTick(at, text) for at, text in zip(places, _tick_texts(marks), strict=True))


def _tick_texts(marks: Sequence[float]) -> list[str]:
    gap = marks[1] - marks[0] if len(marks) > 1 else 0.0
    return [number_text(mark, gap) for mark in marks]


def _runs(area: Area, points: Sequence[Point]) -> Iterator[tuple[Place, ...]]:
    """Give the places of points, cut at each gap."""
    run: list[Place] = []
    for step, value in [*points, (0.0, None)]:
        if value is not None:
            run.append(area.place(step, value))
        elif run:
            yield tuple(run)
            run = []


def _share(value: float, span: tuple[float, float]) -> float:
    return (value - span[0]) / (span[1] - span[0])


def path(run: Sequence[Place]) -> str:
    """Write places as the data of an SVG path.

    >>> path([(1.0, 2.0), (3.25, 4.0)])
    'M1 2L3.25 4'
    """
    return "M" + "L".join(f"{short(x)} {short(y)}" for x, y in run)
