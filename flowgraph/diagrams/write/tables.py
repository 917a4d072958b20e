"""A picture's data as a table: for screen readers, to copy from, and to sort."""

from __future__ import annotations

from collections.abc import Iterator

from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.model.charts import Comparison, Curves, DotMark, Lanes, MemoryChart, Scatter
from flowgraph.diagrams.model.drawing import Drawing
from flowgraph.diagrams.model.labels import SIGNS
from flowgraph.diagrams.model.picture import Picture, SequenceDiagram
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.diagrams.model.series import Series, known
from flowgraph.diagrams.model.ticks import number_text
from flowgraph.diagrams.write.page import PageTable, TableCell

Row = tuple[TableCell, ...]

MARKS: dict[DotMark, str] = {"best": "the best", "front": "on the front", "other": ""}


def table_of(drawing: Drawing) -> PageTable:
    """Return a picture as a table, in the picture's order."""
    heads: tuple[str, ...]
    match drawing:
        case Lanes(lanes=lanes):
            heads = ("pool", "from", "task", "kind", "step", "begins at", "takes")
            pools = tuple(lane.pool for lane in lanes for _ in lane.bars)
            return PageTable(heads, tuple(_bars(drawing)), numeric=(4, 5, 6), pools=pools)
        case MemoryChart(stores=stores):
            heads = ("pool", "phase", "each device", "share", "measured", "parts")
            pools = tuple(store.pool for store in stores for _ in store.phases)
            return PageTable(heads, tuple(_phases(drawing)), numeric=(2, 3, 4), pools=pools)
        case Comparison():
            return PageTable(("placement", "a step takes", "pools", "why"), tuple(_strips(drawing)), numeric=(1,))
        case Scatter():
            heads = ("rank", "candidate", "pools", "a step takes", "fullest device", "mark", "compared with the best")
            return PageTable(heads, tuple(_dots(drawing)), numeric=(0, 3, 4), shown=True)
        case SequenceDiagram():
            return PageTable(("no.", "from", "to", "how", "what"), tuple(_messages(drawing)), numeric=(0,))
        case Curves(series=series):
            heads = ("metric", "unit", "first", "last", "least", "most")
            return PageTable(heads, tuple(map(_series, series)), numeric=(2, 3, 4, 5))
        case Picture():
            return PageTable(("name", "kind", "in", "reads", "more"), tuple(_boxes(drawing)))


def _boxes(picture: Picture) -> Iterator[Row]:
    names = {box.id: box.label[0] for box in picture.boxes}
    frames = {frame.id: frame.label for frame in picture.frames}
    reads: dict[str, list[str]] = {box.id: [] for box in picture.boxes}
    for arrow in picture.arrows:
        reads[arrow.target].append(f"{SIGNS[arrow.status]}{arrow.label} from {names[arrow.source]}")
    for box in picture.boxes:
        more = ", ".join([*box.label[1:], *([] if box.status == "same" else [box.status])])
        yield _texts(box.label[0], box.kind, frames.get(box.inside or "", ""), "; ".join(reads[box.id]), more)


def _bars(lanes: Lanes) -> Iterator[Row]:
    for lane in lanes.lanes:
        for bar in lane.bars:
            texts = _texts(lane.label, "measured" if lane.measured else "forecast", bar.label, bar.kind)
            step = TableCell(str(bar.step), bar.step)
            yield *texts, step, _seconds(bar.start_s), _seconds(bar.end_s - bar.start_s)


def _phases(chart: MemoryChart) -> Iterator[Row]:
    for store in chart.stores:
        for phase in store.phases:
            share = phase.size_bytes / store.capacity_bytes if store.capacity_bytes else 0.0
            measured = TableCell("") if phase.measured_bytes is None else _bytes(phase.measured_bytes)
            parts = ", ".join(f"{role} {show_bytes(size)}" for role, size in phase.held if size)
            sizes = _bytes(phase.size_bytes), TableCell(f"{share:.0%}", share), measured
            yield *_texts(store.label, phase.label), *sizes, TableCell(parts)


def _strips(comparison: Comparison) -> Iterator[Row]:
    for strip in comparison.strips:
        seconds = TableCell("") if strip.seconds is None else _seconds(strip.seconds)
        pools = " | ".join(f"{' + '.join(pool.roles)} on {pool.devices}" for pool in strip.parts)
        yield TableCell(strip.label), seconds, *_texts(pools, strip.why)


def _dots(scatter: Scatter) -> Iterator[Row]:
    for rank, dot in enumerate(scatter.dots, 1):
        measures = _seconds(dot.seconds), _bytes(dot.memory_bytes)
        yield TableCell(str(rank), rank), *_texts(dot.label, dot.about), *measures, *_texts(MARKS[dot.mark], dot.why)


def _messages(diagram: SequenceDiagram) -> Iterator[Row]:
    names = {actor.id: actor.label[0] for actor in diagram.actors}
    for number, message in enumerate(diagram.messages, 1):
        texts = _texts(names[message.source], names[message.target], message.style, message.label)
        yield TableCell(str(number), number), *texts


def _series(series: Series) -> Row:
    values = [value for _, value in known(series) if value is not None]
    summary = (values[0], values[-1], min(values), max(values)) if values else ()
    numbers = [TableCell(number_text(value), value) for value in summary] or [TableCell("")] * 4
    return *_texts(series.name, series.unit), *numbers


def _texts(*texts: str) -> Row:
    return tuple(map(TableCell, texts))


def _bytes(count: int) -> TableCell:
    return TableCell(show_bytes(count), count)


def _seconds(seconds: float) -> TableCell:
    return TableCell(show_s(seconds), seconds)
