"""Whether edges fit the ports that they are on: for graphs that were read from a file, or changed by a user's pass."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeVar

from flowgraph.language.graph import Const, Edge, Node, Op, Source
from flowgraph.language.values import Record, Value, fields


def type_at(source: Source, part: str) -> type[Value] | None:
    """Give the type of a part of what a source gives, None if there is no such part."""
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


def kinds_of(op: Op, inputs: Sequence[tuple[str, Edge]]) -> dict[Any, type[Value]]:
    """Give what each type of an op's ports stands for in a call: a TypeVar, for the type of what is given."""
    kinds: dict[Any, type[Value]] = {port.type: port.value_type for port in op.ports}
    given = dict(inputs)
    for port in op.ports:
        if isinstance(port.type, TypeVar) and port.name in given:
            kinds[port.type] = given[port.name].type
    return kinds


def misfits(
    op: Op, inputs: Sequence[tuple[str, Edge]], regions: Collection[str], returns: Sequence[type[Value]]
) -> Iterator[str]:
    """Say what of a call does not fit its op: ports, types of edges, late reads, results."""
    names, known, kinds = [port for port, _ in inputs], {port.name: port for port in op.ports}, kinds_of(op, inputs)
    for name in (*names, *regions):
        if name not in known or known[name].region != (name in regions) or [*names, *regions].count(name) > 1:
            yield f"{op.name} takes {', '.join(known)}; see `{name}`"
            return
    for name, port in known.items():
        if not port.optional and name not in names and name not in regions:
            yield f"{op.name} takes {', '.join(known)}; see `{name}`"
    for name, edge in inputs:
        port = known[name]
        wanted = kinds[port.type] if isinstance(port.type, TypeVar) else port.value_type
        fits = issubclass(edge.type, wanted) and issubclass(edge.type, port.value_type)
        if not fits or port.kind not in (None, edge.type.kind) or type_at(edge.source, edge.port) is not edge.type:
            yield f"{op.name}({name}=) takes {wanted.__name__}, not {edge.type.__name__}"
        if edge.at_most and op.kind != "generate":
            yield f"{op.name} reads {edge} late; only sampling may"
    if tuple(returns) != tuple(kinds.get(each, each) for each in op.returns):
        yield f"{op.name} does not give {', '.join(each.__name__ for each in returns)}"
