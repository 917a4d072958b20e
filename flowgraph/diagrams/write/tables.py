"""What a picture says, as a table: for those who do not see it, to copy from, and to sort."""

from __future__ import annotations

from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.model.charts import Comparison, Curves, Lanes, MemoryChart, PoolShare, Scatter
from flowgraph.diagrams.model.drawing import Drawing
from flowgraph.diagrams.model.labels import SIGNS
from flowgraph.diagrams.model.picture import Box, Picture
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.diagrams.model.sequence import SequenceDiagram
from flowgraph.diagrams.model.series import known
from flowgraph.diagrams.model.ticks import number_text
from flowgraph.diagrams.write.page import PageTable, TableCell

Row = tuple[TableCell, ...]


def table_of(drawing: Drawing) -> PageTable:
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


def _boxes(picture: Picture) -> PageTable:
    names = {box.id: box.label[0] for box in picture.boxes}
    frames = {frame.id: frame.label for frame in picture.frames}
    read: dict[str, list[str]] = {box.id: [] for box in picture.boxes}
    for arrow in picture.arrows:
        read[arrow.target].append(f"{SIGNS[arrow.status]}{arrow.label} from {names[arrow.source]}")
    rows = tuple(
        _texts(box.label[0], box.kind, frames.get(box.inside or "", ""), "; ".join(read[box.id]), _more(box))
        for box in picture.boxes
    )
    return PageTable(("name", "kind", "in", "reads", "more"), rows)


def _more(box: Box) -> str:
    return ", ".join([*box.label[1:], *([] if box.status == "same" else [box.status])])


def _lanes(lanes: Lanes) -> PageTable:
    rows, pools = list[Row](), list[str]()
    for lane in lanes.lanes:
        for bar in lane.bars:
            told = _texts(lane.label, "measured" if lane.measured else "forecast", bar.label, bar.kind)
            rows.append(
                (*told, TableCell(str(bar.step), bar.step), _seconds(bar.start_s), _seconds(bar.end_s - bar.start_s))
            )
            pools.append(lane.pool)
    heads = ("pool", "from", "task", "kind", "step", "begins at", "takes")
    return PageTable(heads, tuple(rows), numeric=(4, 5, 6), pools=tuple(pools))


def _memory(chart: MemoryChart) -> PageTable:
    rows, pools = list[Row](), list[str]()
    for store in chart.stores:
        for phase in store.phases:
            share = phase.size_bytes / store.capacity_bytes if store.capacity_bytes else 0.0
            held = ", ".join(f"{name} {show_bytes(size)}" for name, size in phase.held if size)
            measured = TableCell("") if phase.measured_bytes is None else _bytes(phase.measured_bytes)
            told = (
                TableCell(store.label),
                TableCell(phase.label),
                _bytes(phase.size_bytes),
                TableCell(f"{share:.0%}", share),
                measured,
            )
            rows.append((*told, TableCell(held)))
            pools.append(store.pool)
    heads = ("pool", "phase", "each device holds", "of it", "measured", "who holds it")
    return PageTable(heads, tuple(rows), numeric=(2, 3, 4), pools=tuple(pools))


def _comparison(comparison: Comparison) -> PageTable:
    rows = tuple(
        (
            TableCell(strip.label),
            TableCell("") if strip.seconds is None else _seconds(strip.seconds),
            TableCell(" | ".join(map(_part, strip.parts))),
            TableCell(strip.why),
        )
        for strip in comparison.strips
    )
    return PageTable(("placement", "a step takes", "pools", "why"), rows, numeric=(1,))


def _part(part: PoolShare) -> str:
    return f"{' + '.join(part.roles)} on {part.devices}"


def _scatter(scatter: Scatter) -> PageTable:
    rows = tuple(
        (
            TableCell(str(rank), rank),
            TableCell(dot.label),
            TableCell(dot.about),
            _seconds(dot.seconds),
            _bytes(dot.memory_bytes),
            TableCell({"best": "the best", "front": "on the front", "other": ""}[dot.mark]),
            TableCell(dot.why),
        )
        for rank, dot in enumerate(scatter.dots, 1)
    )
    heads = ("rank", "candidate", "pools", "a step takes", "fullest device", "mark", "beside the best")
    return PageTable(heads, rows, numeric=(0, 3, 4), shown=True)


def _sequence(diagram: SequenceDiagram) -> PageTable:
    names = {actor.id: actor.label[0] for actor in diagram.actors}
    rows = tuple(
        (TableCell(str(place), place), *_texts(names[each.source], names[each.target], each.style, each.label))
        for place, each in enumerate(diagram.messages, 1)
    )
    return PageTable(("no.", "from", "to", "how", "what"), rows, numeric=(0,))


def _curves(curves: Curves) -> PageTable:
    rows = list[Row]()
    for series in curves.series:
        values = [value for _, value in known(series) if value is not None]
        told = (values[0], values[-1], min(values), max(values)) if values else ()
        rows.append(
            (TableCell(series.name), TableCell(series.unit), *(TableCell(number_text(value), value) for value in told))
        )
        rows[-1] += (TableCell(""),) * (6 - len(rows[-1]))
    return PageTable(("metric", "unit", "first", "last", "least", "most"), tuple(rows), numeric=(2, 3, 4, 5))


def _texts(*texts: str) -> Row:
    return tuple(map(TableCell, texts))


def _bytes(count: int) -> TableCell:
    return TableCell(show_bytes(count), count)


def _seconds(seconds: float) -> TableCell:
    return TableCell(show_s(seconds), seconds)
