"""The laws of a named graph: names that can be relied on, and what the passes leave behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from flowgraph.counts import masks_of
from flowgraph.errors import FlowError, LawError
from flowgraph.graph import Edge, Graph, Node
from flowgraph.passes.dedupe_nodes import same
from flowgraph.signature import make_settings
from flowgraph.values import Record, Value, fields


def every_name_once(graph: Graph) -> Iterator[FlowError]:
    """Find a node without a name, or with one that another has."""
    names = Counter(node.name for node in graph.all_nodes)
    for node in graph.all_nodes:
        if not node.name or names[node.name] > 1:
            what = f"two nodes are named {node.name}" if node.name else f"{node.op.name} has no name"
            yield LawError(what, where=str(node.at))


def every_mask_counted(graph: Graph) -> Iterator[FlowError]:
    """Find a loss that does not say which masks it is divided by the counts of."""
    for node in graph.nodes:
        for _, region in node.regions:
            if set(masks_of(region)) - set(region.counts):
                yield LawError.not_counted(region.name, str(region.at))


def nothing_twice(graph: Graph) -> Iterator[FlowError]:
    """Find a pure node that another one equals."""
    first = dict[object, str]()
    for node in graph.all_nodes:
        what = same(node)
        if what is not None and first.setdefault(what, node.name) != node.name:
            yield LawError(f"{node.name} computes what {first[what]} does", where=str(node.at))


def nothing_dropped(graph: Graph) -> Iterator[FlowError]:
    """Find a call that nothing reads and that no pass has reported."""
    for call in graph.dropped:
        yield LawError(f"nothing reads {call.op.name}", where=str(call.at))


def calls_fit(graph: Graph) -> Iterator[FlowError]:
    """Find a node whose inputs do not fit its ports, whose results are not its op's, or whose settings are refused."""
    for node in graph.all_nodes:
        why = next(_misfits(node), "")
        if why:
            yield LawError(f"{node.name}: {why}", where=str(node.at))
        try:
            make_settings(node.op.settings, dict(node.settings), node.op.name, str(node.at))
        except FlowError as error:
            yield error


def _misfits(node: Node) -> Iterator[str]:
    ports, edges = {port.name: port for port in node.op.ports}, dict(node.inputs)
    regions = dict(node.regions)
    for name in (*edges, *regions):
        if name not in ports or ports[name].region != (name in regions):
            yield f"`{name}` is no such port"
    if len(edges) + len(regions) < len(node.inputs) + len(node.regions):
        yield "a port stands twice"
    kinds = {port.type: port.value_type for port in node.op.ports}
    for name, port in ports.items():
        if name not in edges and name not in regions and not port.optional:
            yield f"lacks `{name}`"
        if name in edges:
            edge, given = edges[name], _type_at(edges[name])
            if given is not edge.type or not issubclass(edge.type, port.value_type):
                yield f"`{name}` takes {port.value_type.__name__}, not {(given or edge.type).__name__}"
            if port.kind not in (None, edge.type.kind):
                yield f"`{name}` takes {port.kind}, not {edge.type.kind}"
            kinds[port.type] = edge.type if port.type is not port.value_type else port.value_type
    if node.returns != tuple(kinds.get(each, each) for each in node.op.returns):
        yield f"does not give {', '.join(each.__name__ for each in node.returns)}"


def _type_at(edge: Edge) -> type[Value] | None:
    """Give the type of what an edge reads, by its source."""
    names = edge.port.split(".") if edge.port else []
    kinds = edge.source.returns if isinstance(edge.source, Node) else (edge.source.type,)  # type: ignore[union-attr]
    kind: type[Value] | None = kinds[0]
    if len(kinds) > 1:
        kind = kinds[int(names.pop(0))] if names and names[0].isdecimal() and int(names[0]) < len(kinds) else None
    for name in names:
        kind = fields(kind).get(name) if kind is not None and issubclass(kind, Record) else None
    return kind
