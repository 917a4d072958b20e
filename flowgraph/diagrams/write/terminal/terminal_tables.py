"""Draw for a terminal what is read line by line: placements, candidates, curves, and who tells whom what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.model.charts import Comparison, Curves, DotMark, PoolShare, Scatter, Strip
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.sequence import Actor, Message, MessageStyle, SequenceDiagram
from flowgraph.diagrams.model.series import Series, known
from flowgraph.diagrams.model.ticks import number_text
from flowgraph.diagrams.write.terminal.sparkline import sparkline

_MARKS: Mapping[DotMark, str] = {"best": "★ best", "front": "on the front", "other": ""}
_ARROWS: Mapping[MessageStyle, str] = {"call": "→", "reply": "⇢", "transfer": "⇒", "sync": "⇒"}


def _table(*columns: str, rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> Table:
    """Give a table of plain text, columns without a word in any line left out."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    kept = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    for place in kept:
        table.add_column(Text(columns[place]), justify="right" if columns[place] in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[place]) for place in kept))
    return table


def comparison_table(comparison: Comparison) -> Table:
    """List placements with their seconds a step, and how their pools share out the devices."""
    rows = [_strip(strip) for strip in comparison.strips]
    return _table("placement", "s a step", "pools", "", rows=rows, right=("s a step",))


def _strip(strip: Strip) -> tuple[str, ...]:
    name = clean(strip.label) + (" (chosen)" if strip.chosen else "")
    seconds = "-" if strip.seconds is None else number_text(strip.seconds)
    return name, seconds, "\n".join(map(_part, strip.parts)), clean(strip.why) if strip.why else ""


def _part(part: PoolShare) -> str:
    return f"{clean(part.pool)} × {part.devices}: {', '.join(clean(role) for role in part.roles)}"


def scatter_table(scatter: Scatter) -> Table:
    """List the candidates of a search as it ranks them."""
    rows = [
        (
            str(number),
            clean(dot.label),
            number_text(dot.seconds),
            show_bytes(dot.memory_bytes),
            _MARKS[dot.mark],
            clean(dot.why) if dot.why else "",
        )
        for number, dot in enumerate(scatter.dots, 1)
    ]
    head = ("", "candidate", "s a step", "memory", "", "beside the best")
    return _table(*head, rows=rows, right=("", "s a step", "memory"))


def curves_table(curves: Curves) -> Table:
    """List a run's numbers, those of the headline first, each as a small curve with its ends and its range."""
    ranked = sorted(curves.series, key=lambda series: not series.headline)
    rows = [_series(series) for series in ranked]
    return _table("metric", "curve", "first", "last", "least", "most", rows=rows, right=("first", "last"))


def _series(series: Series) -> tuple[str, ...]:
    name = clean(series.name) + (f" ({clean(series.unit)})" if series.unit else "")
    values = [value for _, value in known(series)]
    found = [value for value in values if value is not None]
    if not found:
        return name, "no values", "", "", "", ""
    told = (found[0], found[-1], min(found), max(found))
    return name, sparkline(values), *(number_text(value) for value in told)


def sequence_lines(diagram: SequenceDiagram) -> Iterator[Text]:
    """Write a numbered line for each message; what an actor does by itself has no arrow."""
    names = _names(diagram.actors)
    wide = len(str(len(diagram.messages)))
    for number, message in enumerate(diagram.messages, 1):
        yield Text(f"{number:{wide}}  {_told(message, names)}")


def _told(message: Message, names: Mapping[str, str]) -> str:
    word = f" ({message.style})" if message.style in ("transfer", "sync") and message.style not in message.label else ""
    if message.source == message.target:
        return f"{names[message.source]}: {clean(message.label)}{word}"
    arrow = _ARROWS[message.style]
    return f"{names[message.source]} {arrow} {names[message.target]}: {clean(message.label)}{word}"


def _names(actors: Sequence[Actor]) -> dict[str, str]:
    """Name each actor, by its pool and all of its label where its first line is another's too."""
    counts = Counter(clean(actor.label[0] if actor.label else "") for actor in actors)
    names = dict[str, str]()
    for actor in actors:
        first, *more = [clean(line) for line in actor.label] or ["?"]
        more += [clean(actor.pool)] if actor.pool else []
        names[actor.id] = f"{first} ({', '.join(more)})" if more and counts[first] > 1 else first
    return names
