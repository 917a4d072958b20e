"""The laws of a described graph: its nodes are its own, and versions of state go through it in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flowgraph.analysis.node_order import blocked_reader
from flowgraph.errors import FlowError, LawError
from flowgraph.language.graph import Const, Edge, Graph, Node, Param, Region, carried_from, lag_text, newest
from flowgraph.language.values import State


def check_versions_are_consumed_once(graph: Graph) -> Iterator[FlowError]:
    """Yield an error for each node that updates a version of state which an earlier node has already updated.

    Weights are updated in place, so only one update can consume each version.
    """
    consumers = _consumers(graph)
    for node in graph.nodes:
        edge = node.carried()
        if edge is not None and (first := consumers[edge]) is not node:
            before = f"{first.op.name} at {first.at} has already consumed"
            what = f"{node.op.name} consumes a version of {edge} that {before}"
            yield LawError(what, where=str(node.at), hint="give the second the model that the first returned")


def check_values_belong_to_flow(graph: Graph) -> Iterator[FlowError]:
    """Yield an error for each value that a flow reads or returns although it is real data, or of another flow or loss.

    A value that is made inside a loss can only be read there.
    """
    regions = [region for node in graph.nodes for _, region in node.regions]
    homes: dict[Any, Region] = {source: region for region in regions for source in (*region.params, *region.inner)}
    start = min((param.stamp for param in graph.params), default=0)  # older sources belong to another flow
    readers = [(node, node.edges(), f"{node.op.name} uses", node.at) for node in graph.all_nodes if node.stamp > start]
    for reader, edges, uses, at in (*readers, (None, graph.outputs, f"flow {graph.name} returns", graph.at)):
        for edge in edges:
            why = _misplaced(graph, edge, start, homes, homes.get(reader))
            if why:
                hint = "" if "loss" in why else "make it a parameter"
                yield LawError(f"{uses} {edge}, which {why}", where=str(at), notes=[edge.made()], hint=hint)


def _misplaced(graph: Graph, edge: Edge, start: int, homes: Mapping[Any, Region], home: Region | None) -> str:
    source = edge.source
    if isinstance(source, Const):
        return "is real data"
    if source in homes:
        return "" if homes[source] is home else "exists only in a loss"
    if source.stamp < start or (isinstance(source, Param) and source not in graph.params):
        of_loss = isinstance(source, Param) and source.owner.startswith("the loss ")
        return "exists only in a loss" if of_loss else f"belongs to another flow than {graph.name}"
    return ""


def check_readers_can_run_first(graph: Graph) -> Iterator[FlowError]:
    """Yield an error if a node reads weights that an update replaces, but also needs the result of that update.

    Such a node can run neither before the update nor after it. Only the first such pair of nodes is reported.
    """
    blocked = blocked_reader(graph)
    if blocked is not None:
        reader, consumer = blocked
        what = f"{reader.op.name} reads weights that {consumer.op.name} at {consumer.at} has already replaced"
        hint = f"give it the model that {consumer.op.name} returned"
        yield LawError(what, where=str(reader.at), notes=["it depends on that update's result"], hint=hint)


def check_state_is_returned(graph: Graph) -> Iterator[FlowError]:
    """Yield an error for each state, such as a model's weights, that a flow does not return correctly.

    A flow must return the newest version of every state parameter that it updates. Errors: a returned state does not
    come from a parameter, is stale, or has been replaced by a later update; an updated parameter is not returned; the
    result of a call that updates state is not used.
    """
    where, consumers = str(graph.at), _consumers(graph)
    for edge in graph.outputs:
        if not issubclass(edge.type, State):
            continue
        consumer = consumers.get(newest(edge))
        first: Edge | None = edge
        while first is not None and isinstance(first.source, Node) and first.source.op.carries is not None:
            first = first.source.carried()  # None if a call lacks the state that it carries, a fault of that call
        if carried_from(edge) is None and first is not None:
            yield LawError(f"flow {graph.name} returns state that is not the next version of a parameter", where=where)
        elif edge.at_most:
            what = f"flow {graph.name} returns {edge} {lag_text(edge.at_most)}; only generate nodes may read it"
            yield LawError(what, where=where, hint="return the model that is not stale")
        elif consumer is not None:
            what = f"flow {graph.name} returns {edge}, which {consumer.op.name} at {consumer.at} has replaced"
            yield LawError(what, where=where, hint=f"return what {consumer.op.name} returned")
    carried = graph.carries()
    last = {carried_from(edge): consumer for edge, consumer in consumers.items()}
    for param, consumer in last.items():
        if param in graph.params and param.name not in carried:
            before = f"{consumer.op.name} at {consumer.at} replaces"
            what = f"flow {graph.name} does not return `{param.name}`, which {before}"
            yield LawError(what, where=where, hint="return its next version, so that the next step can take it")
    for call in graph.dropped:
        if call.op.carries is not None:
            root = f" to `{call.root.name}`" if call.root is not None else ""
            what = f"the result of {call.op.name} is dropped, so what it does{root} would be lost"
            yield LawError(what, where=str(call.at), hint=f"return it, or leave {call.op.name} out")


def _consumers(graph: Graph) -> dict[Edge, Node]:
    consumers: dict[Edge, Node] = {}
    for node in graph.nodes:
        consumed = node.carried()
        if consumed is not None:
            consumers.setdefault(consumed, node)
    return consumers
