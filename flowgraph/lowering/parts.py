"""Which parts of the records that it reads a node's body may read: those of its edges, and those that ports declare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from flowgraph.language.graph import Edge, Node
from flowgraph.language.rows import leaf_paths
from flowgraph.language.values import Context, Group, Lengths, Model, Record, Sample, Trajectory, Value
from flowgraph.lowering.program import path_in_value, read_by, value_name

# Which rows a record has and how many tokens: what a loss is cut by, whatever its nodes read.
ROWS = (Group, Sample, Trajectory, Lengths, Context)


def declared_parts(nodes: Iterable[Node]) -> dict[Edge, tuple[str, ...]]:
    """Give the parts that nodes declare of each record that they read; one that a node may read whole is not in.

    A record that a loss captures also has the parts that say which rows it has.
    """
    found = dict[Edge, set[str] | None]()
    for edge, names in (each for node in nodes for each in _reads(node)):
        before = found.get(edge, set[str]())
        found[edge] = None if before is None or not names else before | names
    return {edge: tuple(sorted(names)) for edge, names in found.items() if names is not None}


def _reads(node: Node) -> Iterator[tuple[Edge, set[str]]]:
    """Give each edge to a record with the parts that its reader declares, none if it may read all."""
    for port, edge in node.inputs:
        if issubclass(edge.type, Record):
            yield edge, {*node.op.port(port).parts}
    for _, region in node.regions:
        records = {edge for edge in region.captures if issubclass(edge.type, Record)}
        for inner in region.inner if records else ():
            for port, edge in inner.inputs:
                if edge in records:
                    names = {*inner.op.port(port).parts}
                    yield edge, names | {*_row_parts(edge.type)} if names else names


def _row_parts(kind: type[Value]) -> Iterator[str]:
    return (path for path, part in leaf_paths(kind) if issubclass(part, ROWS))


def parts_needed(nodes: Iterable[Node], types: Mapping[str, type[Value]]) -> dict[str, tuple[str, ...]]:
    """Give the parts of each record that nodes read, by the value's name, in its order; a value read whole is not in.

    Lengths go with any part: they say where the tokens of a row end. `types` are those of the values by name.
    """
    nodes = list(nodes)
    declared, found = declared_parts(nodes), dict[str, set[str]]()
    for edge in (edge for node in nodes for edge, _ in read_by(node) if not issubclass(edge.type, Model)):
        name, base = value_name(edge), path_in_value(edge)
        wanted = [f"{base}.{part}".strip(".") for part in declared.get(edge, ("",))]
        leaves = (path for path, _ in leaf_paths(types[name]))
        read = {path for path in leaves if any(each in ("", path) or path.startswith(f"{each}.") for each in wanted)}
        found[name] = found.get(name, set[str]()) | read
    return {name: parts for name, read in found.items() if (parts := in_order(types[name], read))}


def in_order(kind: type[Value], read: Iterable[str]) -> tuple[str, ...]:
    """Give the parts of a record that are read, and its lengths, in its order; none if that is the whole value."""
    leaves, read = leaf_paths(kind), {*read}
    parts = tuple(path for path, part in leaves if path in read or issubclass(part, Lengths))
    return () if len(parts) == len(leaves) or not issubclass(kind, Record) else parts
