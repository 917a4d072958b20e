"""The parts of each record that a node's body may read: those that its edges select or its ports declare."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from flowgraph.language.graph import Edge, Node
from flowgraph.language.rows import leaf_paths
from flowgraph.language.values import Context, Group, Lengths, Model, Record, Sample, Trajectory, Value
from flowgraph.lowering.program import edges_read, path_in_value, value_name

# The identity of rows and their numbers of tokens, by which a loss is cut into micro-batches whatever its nodes read.
ROWS = (Group, Sample, Trajectory, Lengths, Context)


def declared_parts(nodes: Iterable[Node]) -> dict[Edge, tuple[str, ...]]:
    """Return the names of the parts that nodes declare to read of each record, sorted, by the record's edge.

    Records that a node may read whole are left out. If a loss captures a record, the names of its row identities and
    lengths (`ROWS`) are added, because rows are grouped into micro-batches by these.
    """
    declared, whole = defaultdict[Edge, set[str]](set), set[Edge]()
    for edge, names in (read for node in nodes for read in _record_reads(node)):
        declared[edge] |= names
        whole |= set() if names else {edge}
    return {edge: tuple(sorted(names)) for edge, names in declared.items() if edge not in whole}


def _record_reads(node: Node) -> Iterator[tuple[Edge, set[str]]]:
    """Yield each edge to a record with the parts that its reader declares; an empty set if it may read all."""
    for port, edge in node.inputs:
        if issubclass(edge.type, Record):
            yield edge, {*node.op.port(port).parts}
    for _, region in node.regions:
        records = {edge for edge in region.captures if issubclass(edge.type, Record)}
        for inner in region.inner if records else ():
            for port, edge in inner.inputs:
                if edge in records:
                    names = {*inner.op.port(port).parts}
                    rows = {path for path, part in leaf_paths(edge.type) if issubclass(part, ROWS)}
                    yield edge, names | rows if names else names


def parts_needed(nodes: Iterable[Node], types: Mapping[str, type[Value]]) -> dict[str, tuple[str, ...]]:
    """Return the dotted paths of the parts that `nodes` read of each value, by the value's name, in the record's order.

    Values that are read whole are left out. A record's lengths are always included, because they tell where the tokens
    of each row end. `types` maps the names of values to their types.
    """
    nodes = list(nodes)
    declared, needed = declared_parts(nodes), defaultdict[str, set[str]](set)
    for edge in (edge for node in nodes for edge, _ in edges_read(node) if not issubclass(edge.type, Model)):
        name, base = value_name(edge), path_in_value(edge)
        for part in declared.get(edge, ("",)):
            root = f"{base}.{part}".strip(".")
            leaves = (path for path, _ in leaf_paths(types[name]))
            needed[name] |= {path for path in leaves if root in ("", path) or path.startswith(f"{root}.")}
    return {name: parts for name, read in needed.items() if (parts := parts_in_order(types[name], read))}


def parts_in_order(kind: type[Value], read: Iterable[str]) -> tuple[str, ...]:
    """Return the parts `read` of a record, and all its lengths, as dotted paths in the record's order.

    `read` contains dotted paths of parts that are not records themselves; any other path is ignored. The result is ()
    if it would be the whole record, if the record has no such parts and no lengths, and for a type that is not a
    record.
    """
    leaves, read = leaf_paths(kind), {*read}
    parts = tuple(path for path, part in leaves if path in read or issubclass(part, Lengths))
    return () if len(parts) == len(leaves) or not issubclass(kind, Record) else parts
