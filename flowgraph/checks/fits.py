"""Whether edges fit their ports, in graphs that were read from a file or changed by a user's pass."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeVar

from flowgraph.language.graph import Const, Edge, Node, Op, Source
from flowgraph.language.values import Record, Value, fields


def part_type(source: Source, part: str) -> type[Value] | None:
    """Return the type of a result of `source`, or of a part of that result; None if the part does not exist.

    `part` is a dotted path, such as `mask`; "" selects the whole result. For a node with several results, the path must
    begin with the index of one, such as `0.mask`.
    """
    names = part.split(".") if part else []
    if isinstance(source, Const):
        kinds: tuple[type[Value], ...] = (type(source.value),)
    else:
        kinds = source.returns if isinstance(source, Node) else (source.type,)
    kind: type[Value] | None = kinds[0] if len(kinds) == 1 else None
    if len(kinds) > 1 and names and names[0].isdecimal() and int(names[0]) < len(kinds):
        kind = kinds[int(names.pop(0))]
    for name in names:
        kind = fields(kind).get(name) if kind is not None and issubclass(kind, Record) else None
    return kind


def port_types(op: Op, inputs: Sequence[tuple[str, Edge]]) -> dict[Any, type[Value]]:
    """Return, by the declared type of each port of an op, the type that values on the port must have in one call.

    A class maps to itself. A TypeVar maps to the type of the input on its port (the last, if several ports have this
    TypeVar), or to its bound if none has an input.
    """
    kinds: dict[Any, type[Value]] = {port.type: port.value_type for port in op.ports}
    edges = dict(inputs)
    bound = {port.type: edges[port.name].type for port in op.ports if port.name in edges}
    return kinds | {variable: kind for variable, kind in bound.items() if isinstance(variable, TypeVar)}


def misfits(
    op: Op, inputs: Sequence[tuple[str, Edge]], regions: Collection[str], returns: Sequence[type[Value]]
) -> Iterator[str]:
    """Yield a sentence for each mismatch between a call and the signature of its op.

    `inputs` are (port, edge) pairs, `regions` the ports that take a loss, `returns` the types of the results.
    Mismatches are an unknown, repeated or missing port, a loss on a port for values or the reverse, a value whose type
    is not that of the port or of the edge's source, a stale read by a node that does not sample, and the wrong types of
    results. Nothing more is reported after a port that is unknown, repeated or confused with a loss.
    """
    ports, kinds = {port.name: port for port in op.ports}, port_types(op, inputs)
    names = [*(name for name, _ in inputs), *regions]
    for name in names:
        if name not in ports or ports[name].region != (name in regions) or names.count(name) > 1:
            yield f"{op.name} takes {', '.join(ports)}; see `{name}`"
            return
    for name, port in ports.items():
        if not port.optional and name not in names:
            yield f"{op.name} takes {', '.join(ports)}; see `{name}`"
    for name, edge in inputs:
        port = ports[name]
        kind = kinds[port.type]
        fits = issubclass(edge.type, kind) and issubclass(edge.type, port.value_type)
        if not fits or port.kind not in (None, edge.type.kind) or part_type(edge.source, edge.port) is not edge.type:
            yield f"{op.name}({name}=) takes {kind.__name__}, not {edge.type.__name__}"
        if edge.at_most and op.kind != "generate":
            yield f"{op.name} reads {edge} late; only generate nodes may do so"
    if tuple(returns) != tuple(kinds.get(hint, hint) for hint in op.returns):
        yield f"{op.name} does not return {', '.join(kind.__name__ for kind in returns)}"
