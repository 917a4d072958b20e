"""Draw for a terminal time and memory as bars, and placements, candidates, curves and messages line by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.model.charts import (
    Comparison,
    Curves,
    DotMark,
    Lane,
    Lanes,
    MemoryChart,
    Scatter,
)
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.picture import MessageStyle, SequenceDiagram
from flowgraph.diagrams.model.series import drawable_points
from flowgraph.diagrams.model.ticks import number_text
from flowgraph.diagrams.write.palette import BAR_INKS, STATUS_INKS, TEXT
from flowgraph.diagrams.write.terminal.sparkline import sparkline

IDLE, FULL, FREE = "·", "█", "·"
COLUMNS_MIN = 10  # of bars: fewer show nothing
_BAR_COLUMNS_MAX = 40  # of memory: its words need the rest
_TOO_MUCH = STATUS_INKS["removed"]
_MARKS: Mapping[DotMark, str] = {"best": "★ best", "front": "on the front", "other": ""}
_ARROWS: Mapping[MessageStyle, str] = {"call": "→", "reply": "⇢", "transfer": "⇒", "sync": "⇒"}


def lane_lines(lanes: Lanes, width: int) -> Iterator[RenderableType]:
    """Yield the parts of a timeline: each lane to scale, an axis, and then the busy and idle shares of each lane.

    `width` is the number of columns. A bar ends with `│`, and idle time is dots. A label that is too long for its bar
    is cut, and a bar of less than a column takes one if there is room. Idle times are sums by reason, longest first.
    """
    labels = [clean(lane.label) + (" (measured)" if lane.measured else "") for lane in lanes.lanes]
    margin = max(map(cell_len, labels), default=0)
    columns = max(width - margin - 1, COLUMNS_MIN)
    for label, lane in zip(labels, lanes.lanes, strict=True):
        yield Text.assemble(set_cell_size(label, margin), " ", _lane(lane, lanes.end_s, columns))
    yield Text(" " * (margin + 1) + _scale(lanes.end_s, columns))
    for label, lane in zip(labels, lanes.lanes, strict=True):
        waits_s = dict[str, float]()
        for bar in (bar for bar in lane.bars if bar.kind == "idle"):
            why = clean(bar.label if bar.label != "idle" else bar.about) if bar.about else ""
            waits_s[why] = waits_s.get(why, 0.0) + bar.end_s - bar.start_s
        total_s = lanes.end_s if lanes.end_s > 0 else 1.0
        yield Text(f"{set_cell_size(label, margin)}  busy {1 - sum(waits_s.values()) / total_s:6.1%}")
        for why, seconds in sorted(waits_s.items(), key=lambda wait: -wait[1]):  # the longest first
            share = f"{' ' * margin}  idle {seconds / total_s:6.1%}  {number_text(seconds)} s  "
            yield _hanging(share, Text(why))


def _hanging(head: str, text: Text) -> RenderableType:
    """Return a line whose text, where it is too long, goes on under its own beginning and not under its head."""
    line = Table.grid()
    line.add_column(width=cell_len(head), no_wrap=True)
    line.add_column(overflow="fold")
    line.add_row(Text(head), text)
    return line


def _lane(lane: Lane, end_s: float, columns: int) -> Text:
    columns_per_s, text = columns / end_s if end_s > 0 else 0.0, Text()
    for bar in (bar for bar in lane.bars if bar.kind != "idle"):
        start = max(text.cell_len, min(columns, round(bar.start_s * columns_per_s)))
        stop = min(columns, max(start + 1, round(bar.end_s * columns_per_s)))
        text.append(IDLE * (start - text.cell_len))
        label, room = clean(bar.label), stop - start - 1  # the last column of a bar is its end
        if room > 0:
            label = set_cell_size(label, room) if cell_len(label) >= room else label + "─" * (room - cell_len(label))
            label += "│"
        elif room == 0:
            label = label[:1] if cell_len(label[:1]) == 1 else "│"
        if room >= 0:
            text.append(label, f"{TEXT} on {BAR_INKS[bar.kind].fill}")
    return text.append(IDLE * (columns - text.cell_len))


def _scale(end_s: float, columns: int) -> str:
    """Write the first, the last and, if there is room, the middle second under their columns.

    >>> _scale(12.0, 30)
    '0                         12 s'
    """
    middle, last = number_text(end_s / 2) if columns > 40 else "", f"{number_text(end_s)} s"
    line = "0".ljust(max(2, columns // 2 - len(middle) // 2)) + middle
    return line.ljust(max(len(line) + 1, columns - len(last))) + last


def memory_lines(chart: MemoryChart, width: int) -> Iterator[Text]:
    """Yield the lines of a memory chart: for each pool a heading, then a bar for each phase, up to the capacity.

    `width` is the number of columns. Below a bar are the bytes that do not fit, or that exceed what a plan may fill,
    and the bytes of each part if there are several.
    """
    for store in chart.stores:
        room = f", {show_bytes(store.room_bytes)} for a plan" if store.room_bytes != store.capacity_bytes else ""
        yield Text.assemble((clean(store.label), "bold"), f"  {show_bytes(store.capacity_bytes)} a device{room}")
        labels = [("→ " if phase.transition else "  ") + clean(phase.label) for phase in store.phases]
        margin = max(map(cell_len, labels), default=0)
        columns = min(_BAR_COLUMNS_MAX, max(width - margin - 30, COLUMNS_MIN))
        for label, phase in zip(labels, store.phases, strict=True):
            share = phase.size_bytes / store.capacity_bytes if store.capacity_bytes else 1.0
            full = min(columns, round(share * columns))
            texts = [f" {share:4.0%}  {show_bytes(phase.size_bytes)}", *(["on the way"] if phase.transition else [])]
            texts += [f"measured {show_bytes(phase.measured_bytes)}"] if phase.measured_bytes is not None else []
            bar = (FULL * full, _TOO_MUCH if share > 1 else BAR_INKS["logprob"].border)
            rest = FREE * (columns - full) + ("▶" if share > 1 else "│") + ", ".join(texts)
            yield Text.assemble(set_cell_size(label, margin), " ", bar, rest)
            indent, excess_bytes = " " * (margin + 1), phase.size_bytes - store.capacity_bytes
            if excess_bytes > 0:
                yield Text(f"{indent}does not fit: {show_bytes(excess_bytes)} too much", _TOO_MUCH)
            elif phase.size_bytes > store.room_bytes:
                yield Text(f"{indent}{show_bytes(phase.size_bytes - store.room_bytes)} more than a plan may fill")
            parts = [f"{clean(role)} {show_bytes(size)}" for role, size in phase.held if size]
            if len(parts) > 1:
                yield Text(indent + " · ".join(parts), "dim")


def _table(*columns: str, rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    places = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    for place in places:
        table.add_column(Text(columns[place]), justify="right" if columns[place] in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[place]) for place in places))
    return table


def comparison_table(comparison: Comparison) -> Table:
    """Return a table of placements with their seconds a step ("-" if unknown), pools, and difference from the best.

    A pool is written with its number of devices and its roles.
    """
    rows = list[tuple[str, ...]]()
    for strip in comparison.strips:
        name = clean(strip.label) + (" (chosen)" if strip.chosen else "")
        seconds = "-" if strip.seconds is None else number_text(strip.seconds)
        pools = [f"{clean(pool.pool)} × {pool.devices}: {', '.join(map(clean, pool.roles))}" for pool in strip.parts]
        rows.append((name, seconds, "\n".join(pools), clean(strip.why) if strip.why else ""))
    return _table("placement", "s a step", "pools", "", rows=rows, right=("s a step",))


def scatter_table(scatter: Scatter) -> Table:
    """Return a table of the candidates of a search, in the search's order, with seconds a step and memory.

    The memory is that of the fullest device. Each candidate is also compared with the best one.
    """
    rows = list[tuple[str, ...]]()
    for rank, dot in enumerate(scatter.dots, 1):
        measures = number_text(dot.seconds), show_bytes(dot.memory_bytes)
        rows.append((str(rank), clean(dot.label), *measures, _MARKS[dot.mark], clean(dot.why) if dot.why else ""))
    heads = ("", "candidate", "s a step", "memory", "", "compared with the best")
    return _table(*heads, rows=rows, right=("", "s a step", "memory"))


def curves_table(curves: Curves) -> Table:
    """Return a table of a run's metrics, headlines first: a small curve, and the first, last, lowest and highest value.

    A metric without values has the text "no values" instead.
    """
    rows = list[tuple[str, ...]]()
    for series in sorted(curves.series, key=lambda series: not series.headline):
        name = clean(series.name) + (f" ({clean(series.unit)})" if series.unit else "")
        curve = [value for _, value in drawable_points(series)]
        values = [value for value in curve if value is not None]
        ends = (values[0], values[-1], min(values), max(values)) if values else ()
        rows.append((name, sparkline(curve), *map(number_text, ends)) if ends else (name, "no values", "", "", "", ""))
    return _table("metric", "curve", "first", "last", "least", "most", rows=rows, right=("first", "last"))


def sequence_lines(diagram: SequenceDiagram) -> Iterator[RenderableType]:
    """Yield a numbered line for each message of a sequence diagram; a message of an actor to itself has no arrow.

    An actor is called by the first line of its label, followed by details in parentheses if other actors have it too.
    """
    counts = Counter(clean(actor.label[0] if actor.label else "") for actor in diagram.actors)
    names = dict[str, str]()  # an actor's first line; if another has that line too, with its pool and all of its label
    for actor in diagram.actors:
        first, *details = [clean(line) for line in actor.label] or ["?"]
        details += [clean(actor.pool)] if actor.pool else []
        names[actor.id] = f"{first} ({', '.join(details)})" if details and counts[first] > 1 else first
    digits = len(str(len(diagram.messages)))
    for number, message in enumerate(diagram.messages, 1):
        style = message.style
        word = f" ({style})" if style in ("transfer", "sync") and style not in message.label else ""
        arrow = f" {_ARROWS[style]} {names[message.target]}" if message.source != message.target else ""
        yield _hanging(f"{number:{digits}}  ", Text(f"{names[message.source]}{arrow}: {clean(message.label)}{word}"))
