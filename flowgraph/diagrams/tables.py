"""What a picture says, as a table: for those who do not see it, to copy from, and to sort."""

from __future__ import annotations

from flowgraph.cluster import show_bytes
from flowgraph.diagrams.amounts import show_s
from flowgraph.diagrams.charts import Comparison, Curves, Lanes, MemoryChart, Part, Scatter
from flowgraph.diagrams.drawing import Drawing
from flowgraph.diagrams.labels import SIGNS
from flowgraph.diagrams.page import Cell, Table
from flowgraph.diagrams.picture import Box, Picture
from flowgraph.diagrams.sequence import SequenceDiagram
from flowgraph.diagrams.series import known
from flowgraph.diagrams.ticks import number_text

Row = tuple[Cell, ...]


def table_of(drawing: Drawing) -> Table:
    """Give a picture as a table, in the picture's order."""
    if isinstance(drawing, Lanes):
        return _lanes(drawing)
    if isinstance(drawing, MemoryChart):
        return _memory(drawing)
    if isinstance(drawing, Comparison):
        return _comparison(drawing)
    if isinstance(drawing, Scatter):
        return _scatter(drawing)
    if isinstance(drawing, SequenceDiagram):
        return _sequence(drawing)
    if isinstance(drawing, Curves):
        return _curves(drawing)
    return _boxes(drawing)


def _boxes(picture: Picture) -> Table:
    names = {box.id: box.label[0] for box in picture.boxes}
    frames = {frame.id: frame.label for frame in picture.frames}
    read: dict[str, list[str]] = {box.id: [] for box in picture.boxes}
    for arrow in picture.arrows:
        read[arrow.target].append(f"{SIGNS[arrow.status]}{arrow.label} from {names[arrow.source]}")
    rows = tuple(
        _texts(box.label[0], box.kind, frames.get(box.inside or "", ""), "; ".join(read[box.id]), _more(box))
        for box in picture.boxes
    )
    return Table(("name", "kind", "in", "reads", "more"), rows)


def _more(box: Box) -> str:
    return ", ".join([*box.label[1:], *([] if box.status == "same" else [box.status])])


def _lanes(lanes: Lanes) -> Table:
    rows, pools = list[Row](), list[str]()
    for lane in lanes.lanes:
        for bar in lane.bars:
            told = _texts(lane.label, "measured" if lane.measured else "forecast", bar.label, bar.kind)
            rows.append(
                (*told, Cell(str(bar.step), bar.step), _seconds(bar.start_s), _seconds(bar.end_s - bar.start_s))
            )
            pools.append(lane.pool)
    heads = ("pool", "from", "task", "kind", "step", "begins at", "takes")
    return Table(heads, tuple(rows), numeric=(4, 5, 6), pools=tuple(pools))


def _memory(chart: MemoryChart) -> Table:
    rows, pools = list[Row](), list[str]()
    for store in chart.stores:
        for phase in store.phases:
            share = phase.size_bytes / store.capacity_bytes if store.capacity_bytes else 0.0
            held = ", ".join(f"{name} {show_bytes(size)}" for name, size in phase.held if size)
            measured = Cell("") if phase.measured_bytes is None else _bytes(phase.measured_bytes)
            told = (
                Cell(store.label),
                Cell(phase.label),
                _bytes(phase.size_bytes),
                Cell(f"{share:.0%}", share),
                measured,
            )
            rows.append((*told, Cell(held)))
            pools.append(store.pool)
    heads = ("pool", "phase", "each device holds", "of it", "measured", "who holds it")
    return Table(heads, tuple(rows), numeric=(2, 3, 4), pools=tuple(pools))


def _comparison(comparison: Comparison) -> Table:
    rows = tuple(
        (
            Cell(strip.label),
            Cell("") if strip.seconds is None else _seconds(strip.seconds),
            Cell(" | ".join(map(_part, strip.parts))),
            Cell(strip.why),
        )
        for strip in comparison.strips
    )
    return Table(("placement", "a step takes", "pools", "why"), rows, numeric=(1,))


def _part(part: Part) -> str:
    return f"{' + '.join(part.roles)} on {part.devices}"


def _scatter(scatter: Scatter) -> Table:
    rows = tuple(
        (
            Cell(str(rank), rank),
            Cell(dot.label),
            Cell(dot.about),
            _seconds(dot.seconds),
            _bytes(dot.memory_bytes),
            Cell({"best": "the best", "front": "on the front", "other": ""}[dot.mark]),
            Cell(dot.why),
        )
        for rank, dot in enumerate(scatter.dots, 1)
    )
    heads = ("rank", "candidate", "pools", "a step takes", "fullest device", "mark", "beside the best")
    return Table(heads, rows, numeric=(0, 3, 4), shown=True)


def _sequence(diagram: SequenceDiagram) -> Table:
    names = {actor.id: actor.label[0] for actor in diagram.actors}
    rows = tuple(
        (Cell(str(place), place), *_texts(names[each.source], names[each.target], each.style, each.label))
        for place, each in enumerate(diagram.messages, 1)
    )
    return Table(("no.", "from", "to", "how", "what"), rows, numeric=(0,))


def _curves(curves: Curves) -> Table:
    rows = list[Row]()
    for series in curves.series:
        values = [value for _, value in known(series) if value is not None]
        told = (values[0], values[-1], min(values), max(values)) if values else ()
        rows.append((Cell(series.name), Cell(series.unit), *(Cell(number_text(value), value) for value in told)))
        rows[-1] += (Cell(""),) * (6 - len(rows[-1]))
    return Table(("metric", "unit", "first", "last", "least", "most"), tuple(rows), numeric=(2, 3, 4, 5))


def _texts(*texts: str) -> Row:
    return tuple(map(Cell, texts))


def _bytes(count: int) -> Cell:
    return Cell(show_bytes(count), count)


def _seconds(seconds: float) -> Cell:
    return Cell(show_s(seconds), seconds)
