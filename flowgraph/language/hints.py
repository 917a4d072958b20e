"""The error of a call with a value of the wrong type, which names a value in reach that would fit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from flowgraph.errors import FlowTypeError
from flowgraph.language.call_site import Site
from flowgraph.language.graph import Edge, Node, Op, Port, Source
from flowgraph.language.values import Kind, Record, Value, fields


def wrong_type(
    op: Op, port: Port, expected: type[Value], value: object, arguments: Iterable[object], site: Site
) -> FlowTypeError:
    """Return the error for a port that got a value of another type than `expected`.

    `arguments` are all values of the call, and `site` is its line. If one of the 200 nearest nodes on which the
    arguments depend returns a record with a part of the expected type, the hint names the nearest such part. Otherwise
    it says how to convert if one type is per row and the other per token, and else is "".
    """
    edge = value.edge if isinstance(value, Value) else None
    origin = edge.made() if edge else ""
    hint = _fitting_part(expected, [other.edge for other in arguments if isinstance(other, Value) and other.edge])
    if isinstance(value, Value) and {value.kind, port.kind or expected.kind} == {Kind.ROW, Kind.TOKEN}:
        hint = hint or _LEVELS[value.kind]
    name = f"{op.name}({port.name}=)"
    return FlowTypeError.wrong_type(str(site), name, expected.__name__, type(value).__name__, origin, hint)


_LEVELS = {
    Kind.TOKEN: "it has a number for each token: reduce it to one per row under its mask, in a @node",
    Kind.ROW: "it has a number for each row: spread it over the row's tokens, in a @node",
}
_NODES_AT_MOST = 200  # how many nodes back a hint may lie


def _fitting_part(expected: type[Value], edges: Sequence[Edge]) -> str:
    todo, seen = deque(edge.source for edge in edges), set[Source]()
    while todo and len(seen) < _NODES_AT_MOST:
        source = todo.popleft()
        if not isinstance(source, Node) or source in seen:
            continue
        seen.add(source)
        todo.extend(edge.source for edge in source.edges())
        for record in source.op.returns:
            if isinstance(record, type) and issubclass(record, Record):
                part = next((name for name, kind in fields(record).items() if kind is expected), None)
                if part is not None:
                    word = record.__name__.lower()
                    return f"a {word}'s {part} is `{word}.{part}`"
    return ""
