"""What a call with a wrong value is told: what its port takes, and where a value that would fit is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from flowgraph.errors import FlowTypeError
from flowgraph.language.call_site import Site
from flowgraph.language.graph import Edge, Node, Op, Port, Source
from flowgraph.language.values import Kind, Record, Value, fields


def wrong_type(
    op: Op, port: Port, wanted: type[Value], value: object, others: Sequence[Value], site: Site
) -> FlowTypeError:
    """Say what a port takes and what it was given, with the part of a record in reach that would fit."""
    edge = value.edge if isinstance(value, Value) else None
    made = edge.made() if edge else ""
    hint = _hint_for(wanted, [other.edge for other in others if other.edge])
    if isinstance(value, Value) and {value.kind, port.kind or wanted.kind} == {Kind.ROW, Kind.TOKEN}:
        hint = hint or _LEVELS[value.kind]
    name = f"{op.name}({port.name}=)"
    return FlowTypeError.wrong_type(str(site), name, wanted.__name__, type(value).__name__, made, hint)


_FAR = 200  # how many nodes back a hint is looked for


def _behind(edges: Sequence[Edge]) -> Iterator[Node]:
    """Give the nodes that edges come from, and those behind them, the nearest first."""
    todo, seen = deque(edge.source for edge in edges), set[Source]()
    while todo:
        source = todo.popleft()
        if isinstance(source, Node) and source not in seen:
            seen.add(source)
            todo.extend(edge.source for edge in source.edges())
            yield source


_LEVELS = {
    Kind.TOKEN: "it has a number for each token: reduce it to one a row under its mask, in a @node",
    Kind.ROW: "it has a number for each row: spread it over the row's tokens, in a @node",
}


def _hint_for(wanted: type[Value], edges: Sequence[Edge]) -> str:
    """Name a part of a record in reach that has the wanted type."""
    for source in islice(_behind(edges), _FAR):
        returns = source.op.returns
        for record in returns:
            if isinstance(record, type) and issubclass(record, Record):
                for name, kind in fields(record).items():
                    if kind is wanted:
                        word = record.__name__.lower()
                        return f"a {word}'s {name} is `{word}.{name}`"
    return ""
