"""The laws of a described graph: what belongs to it, and how versions of state go through it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flowgraph.analysis.node_order import blocked_reader
from flowgraph.errors import FlowError, LawError
from flowgraph.language.graph import Const, Edge, Graph, Node, Param, Region, carried_from, how_late, newest
from flowgraph.language.values import State


def consumed_once(graph: Graph) -> Iterator[FlowError]:
    """Find a version of state that two ops consume: weights are updated in place, so there is no fork."""
    consumers = _consumers(graph)
    for node in graph.nodes:
        edge = node.carried()
        if edge is None:
            continue
        first = consumers[edge]
        if first is not node:
            yield LawError(
                f"{node.op.name} consumes a version of {edge} that {first.op.name} at {first.at} has consumed already",
                where=str(node.at),
                hint="give the second the model that the first returned",
            )


def one_flow(graph: Graph) -> Iterator[FlowError]:
    """Find values that belong to another flow or to a loss, or that are real."""
    regions = [region for node in graph.nodes for _, region in node.regions]
    homes: dict[Any, Region] = {each: region for region in regions for each in (*region.params, *region.inner)}
    start = min((param.stamp for param in graph.params), default=0)  # what is older belongs to another flow
    readers = [(node, node.edges(), f"{node.op.name} uses", node.at) for node in graph.all_nodes if node.stamp > start]
    for reader, edges, uses, at in (*readers, (None, graph.outputs, f"flow {graph.name} returns", graph.at)):
        for edge in edges:
            why = _misplaced(graph, edge, start, homes, homes.get(reader))
            if why:
                hint = "" if "loss" in why else "make it a parameter"
                yield LawError(f"{uses} {edge}, which {why}", where=str(at), notes=[edge.made()], hint=hint)


def _misplaced(graph: Graph, edge: Edge, start: int, homes: Mapping[Any, Region], home: Region | None) -> str:
    """Say why an edge cannot be read in the region `home` (None: in the flow itself), or return nothing."""
    source = edge.source
    if isinstance(source, Const):
        return "is real data"
    if source in homes:
        return "" if homes[source] is home else "lives in a loss only"
    if source.stamp < start or (isinstance(source, Param) and source not in graph.params):
        loose = isinstance(source, Param) and source.owner.startswith("the loss ")
        return "lives in a loss only" if loose else f"belongs to another flow than {graph.name}"
    return ""


def readers_come_first(graph: Graph) -> Iterator[FlowError]:
    """Find a reader of a version that can only run after the update that consumes it."""
    found = blocked_reader(graph)
    if found is not None:
        reader, consumer = found
        yield LawError(
            f"{reader.op.name} reads weights that {consumer.op.name} at {consumer.at} has replaced by then",
            where=str(reader.at),
            notes=["it depends on that update's result"],
            hint=f"give it the model that {consumer.op.name} returned",
        )


def state_comes_out(graph: Graph) -> Iterator[FlowError]:
    """Find state that comes out but was never a parameter, comes out at an old version, or is updated and lost."""
    where, consumers = str(graph.at), _consumers(graph)
    for edge in graph.outputs:
        if not issubclass(edge.type, State):
            continue
        consumer = consumers.get(newest(edge))
        if carried_from(edge) is None and not _lacks_carry(edge):
            yield LawError(f"flow {graph.name} returns state that is the next version of no parameter", where=where)
        elif edge.at_most:
            what = f"flow {graph.name} returns {edge} {how_late(edge.at_most)}; only sampling may read it so"
            yield LawError(what, where=where, hint="return the model that is not stale")
        elif consumer is not None:
            what = f"flow {graph.name} returns {edge}, which {consumer.op.name} at {consumer.at} has replaced"
            yield LawError(what, where=where, hint=f"return what {consumer.op.name} returned")
    carried = graph.carries()
    last = {carried_from(edge): consumer for edge, consumer in consumers.items()}
    for param, consumer in last.items():
        if param in graph.params and param.name not in carried:
            yield LawError(
                f"flow {graph.name} does not return `{param.name}`, which {consumer.op.name} at {consumer.at} replaces",
                where=where,
                hint="return its next version, so that the next step can take it",
            )
    for call in graph.dropped:
        if call.op.carries is not None:
            root = f" to `{call.root.name}`" if call.root is not None else ""
            what = f"the result of {call.op.name} is dropped, so what it does{root} would be lost"
            yield LawError(what, where=str(call.at), hint=f"return it, or leave {call.op.name} out")


def _lacks_carry(edge: Edge) -> bool:
    """Say whether a call without the state that it carries is behind this, which is a fault of that call."""
    while isinstance(edge.source, Node) and edge.source.op.carries is not None:
        before = edge.source.carried()
        if before is None:
            return True
        edge = before
    return False


def _consumers(graph: Graph) -> dict[Edge, Node]:
    """Map each version of state to the first node that consumes it."""
    consumers: dict[Edge, Node] = {}
    for node in graph.nodes:
        consumed = node.carried()
        if consumed is not None:
            consumers.setdefault(consumed, node)
    return consumers
