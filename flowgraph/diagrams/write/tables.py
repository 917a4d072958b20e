"""A picture's data as a table: for screen readers, to copy from, and to sort."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import singledispatch
from typing import Any

from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.model.charts import Comparison, Curves, DotMark, Drawing, Lanes, MemoryChart, Scatter
from flowgraph.diagrams.model.labels import SIGNS
from flowgraph.diagrams.model.picture import Picture, SequenceDiagram
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.diagrams.model.series import drawable_points
from flowgraph.diagrams.model.ticks import number_text
from flowgraph.diagrams.write.page import PageTable, TableCell

Cell = str | TableCell

MARKS: dict[DotMark, str] = {"best": "the best", "front": "on the front", "other": ""}


def _table(heads: str, rows: Iterable[tuple[Cell, ...]], **settings: Any) -> PageTable:
    cells = (tuple(TableCell(cell) if isinstance(cell, str) else cell for cell in row) for row in rows)
    return PageTable(tuple(heads.split(", ")), tuple(cells), **settings)


def _count(number: int) -> Cell:
    return TableCell(str(number), number)


def _bytes(count: int | None) -> Cell:
    return "" if count is None else TableCell(show_bytes(count), count)


def _seconds(seconds: float | None) -> Cell:
    return "" if seconds is None else TableCell(show_s(seconds), seconds)


@singledispatch
def picture_table(drawing: Drawing) -> PageTable:
    """Return the data of a picture as a table, with a row for each box, bar, phase, placement, dot, message or curve.

    Rows are in the order of the picture. Raises AssertionError for an object that is not a picture.
    """
    raise AssertionError(f"each kind of picture has a table: {type(drawing)}")


@picture_table.register
def _(picture: Picture) -> PageTable:
    names = {box.id: box.label[0] for box in picture.boxes}
    frames = {frame.id: frame.label for frame in picture.frames}
    reads, rows = defaultdict[str, list[str]](list), list[tuple[Cell, ...]]()
    for arrow in picture.arrows:
        reads[arrow.target].append(f"{SIGNS[arrow.status]}{arrow.label} from {names[arrow.source]}")
    for box in picture.boxes:
        details = ", ".join([*box.label[1:], *([] if box.status == "same" else [box.status])])
        rows.append((box.label[0], box.kind, frames.get(box.inside or "", ""), "; ".join(reads[box.id]), details))
    return _table("name, kind, in, reads, more", rows)


@picture_table.register
def _(lanes: Lanes) -> PageTable:
    rows, pools = list[tuple[Cell, ...]](), list[str]()
    for lane in lanes.lanes:
        for bar in lane.bars:
            texts = lane.label, "measured" if lane.measured else "forecast", bar.label, bar.kind
            rows.append((*texts, _count(bar.step), _seconds(bar.start_s), _seconds(bar.end_s - bar.start_s)))
            pools.append(lane.pool)
    heads = "pool, from, task, kind, step, begins at, takes"
    return _table(heads, rows, numeric=(4, 5, 6), pools=tuple(pools))


@picture_table.register
def _(chart: MemoryChart) -> PageTable:
    rows, pools = list[tuple[Cell, ...]](), list[str]()
    for store in chart.stores:
        for phase in store.phases:
            share = phase.size_bytes / store.capacity_bytes if store.capacity_bytes else 0.0
            parts = ", ".join(f"{role} {show_bytes(size)}" for role, size in phase.held if size)
            sizes = _bytes(phase.size_bytes), TableCell(f"{share:.0%}", share), _bytes(phase.measured_bytes)
            rows.append((store.label, phase.label, *sizes, parts))
            pools.append(store.pool)
    heads = "pool, phase, each device, share, measured, parts"
    return _table(heads, rows, numeric=(2, 3, 4), pools=tuple(pools))


@picture_table.register
def _(comparison: Comparison) -> PageTable:
    rows = list[tuple[Cell, ...]]()
    for strip in comparison.strips:
        pools = " | ".join(f"{' + '.join(pool.roles)} on {pool.devices}" for pool in strip.parts)
        rows.append((strip.label, _seconds(strip.seconds), pools, strip.why))
    return _table("placement, a step takes, pools, why", rows, numeric=(1,))


@picture_table.register
def _(scatter: Scatter) -> PageTable:
    rows = [
        (_count(rank), dot.label, dot.about, _seconds(dot.seconds), _bytes(dot.memory_bytes), MARKS[dot.mark], dot.why)
        for rank, dot in enumerate(scatter.dots, 1)
    ]
    heads = "rank, candidate, pools, a step takes, fullest device, mark, compared with the best"
    return _table(heads, rows, numeric=(0, 3, 4), shown=True)


@picture_table.register
def _(diagram: SequenceDiagram) -> PageTable:
    names = {actor.id: actor.label[0] for actor in diagram.actors}
    rows = [
        (_count(number), names[message.source], names[message.target], message.style, message.label)
        for number, message in enumerate(diagram.messages, 1)
    ]
    return _table("no., from, to, how, what", rows, numeric=(0,))


@picture_table.register
def _(curves: Curves) -> PageTable:
    rows = list[tuple[Cell, ...]]()
    for series in curves.series:
        values = [value for _, value in drawable_points(series) if value is not None]
        summary = (values[0], values[-1], min(values), max(values)) if values else ()
        numbers = [TableCell(number_text(value), value) for value in summary] or [TableCell("")] * 4
        rows.append((series.name, series.unit, *numbers))
    return _table("metric, unit, first, last, least, most", rows, numeric=(2, 3, 4, 5))
