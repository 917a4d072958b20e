"""Draw for a terminal what is read line by line: placements, candidates, curves, and the messages of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.model.charts import Comparison, Curves, DotMark, Scatter
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.picture import MessageStyle, SequenceDiagram
from flowgraph.diagrams.model.series import known
from flowgraph.diagrams.model.ticks import number_text
from flowgraph.diagrams.write.terminal.sparkline import sparkline

_MARKS: Mapping[DotMark, str] = {"best": "★ best", "front": "on the front", "other": ""}
_ARROWS: Mapping[MessageStyle, str] = {"call": "→", "reply": "⇢", "transfer": "⇒", "sync": "⇒"}


def _table(*columns: str, rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> Table:
    """Return a table of plain text, without its empty columns."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    places = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    for place in places:
        table.add_column(Text(columns[place]), justify="right" if columns[place] in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[place]) for place in places))
    return table


def comparison_table(comparison: Comparison) -> Table:
    """List placements with their seconds a step, and how their pools divide the devices."""
    rows = list[tuple[str, ...]]()
    for strip in comparison.strips:
        name = clean(strip.label) + (" (chosen)" if strip.chosen else "")
        seconds = "-" if strip.seconds is None else number_text(strip.seconds)
        pools = [f"{clean(pool.pool)} × {pool.devices}: {', '.join(map(clean, pool.roles))}" for pool in strip.parts]
        rows.append((name, seconds, "\n".join(pools), clean(strip.why) if strip.why else ""))
    return _table("placement", "s a step", "pools", "", rows=rows, right=("s a step",))


def scatter_table(scatter: Scatter) -> Table:
    """List the candidates of a search in its order."""
    rows = list[tuple[str, ...]]()
    for rank, dot in enumerate(scatter.dots, 1):
        measures = number_text(dot.seconds), show_bytes(dot.memory_bytes)
        rows.append((str(rank), clean(dot.label), *measures, _MARKS[dot.mark], clean(dot.why) if dot.why else ""))
    heads = ("", "candidate", "s a step", "memory", "", "compared with the best")
    return _table(*heads, rows=rows, right=("", "s a step", "memory"))


def curves_table(curves: Curves) -> Table:
    """List a run's metrics, headlines first, each as a small curve with its ends and its range."""
    rows = list[tuple[str, ...]]()
    for series in sorted(curves.series, key=lambda series: not series.headline):
        name = clean(series.name) + (f" ({clean(series.unit)})" if series.unit else "")
        curve = [value for _, value in known(series)]
        values = [value for value in curve if value is not None]
        ends = (values[0], values[-1], min(values), max(values)) if values else ()
        rows.append((name, sparkline(curve), *map(number_text, ends)) if ends else (name, "no values", "", "", "", ""))
    return _table("metric", "curve", "first", "last", "least", "most", rows=rows, right=("first", "last"))


def sequence_lines(diagram: SequenceDiagram) -> Iterator[Text]:
    """Yield a numbered line for each message; one of an actor to itself has no arrow."""
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
        yield Text(f"{number:{digits}}  {names[message.source]}{arrow}: {clean(message.label)}{word}")
