"""The laws of a named graph: unique names, fitting calls, and nothing that a pass should have removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from flowgraph.checks.fits import misfits
from flowgraph.errors import FlowError, LawError
from flowgraph.language.graph import Graph
from flowgraph.language.mask_counts import masks_of
from flowgraph.language.signature import make_settings, setting_faults
from flowgraph.passes.dedupe_nodes import computation_of


def every_name_once(graph: Graph) -> Iterator[FlowError]:
    """Find a node without a name, or with the name of another node."""
    names = Counter(node.name for node in graph.all_nodes)
    for node in graph.all_nodes:
        if not node.name or names[node.name] > 1:
            what = f"two nodes are named {node.name}" if node.name else f"{node.op.name} has no name"
            yield LawError(what, where=str(node.at), hint="a pass that adds a node must give it a unique name")


def every_mask_counted(graph: Graph) -> Iterator[FlowError]:
    """Find a loss that does not count the mask of one of its terms."""
    for node in graph.nodes:
        for _, region in node.regions:
            if set(masks_of(region)) - set(region.counts):
                yield LawError.not_counted(region.name, str(region.at))


def nothing_twice(graph: Graph) -> Iterator[FlowError]:
    """Find a pure node that computes the same as another."""
    first = dict[object, str]()
    for node in graph.all_nodes:
        computation = computation_of(node)
        if computation is not None and first.setdefault(computation, node.name) != node.name:
            yield LawError(f"{node.name} computes the same as {first[computation]}", where=str(node.at))


def nothing_dropped(graph: Graph) -> Iterator[FlowError]:
    """Find a call that nothing reads and that no pass has reported."""
    for call in graph.dropped:
        yield LawError(f"nothing reads {call.op.name}", where=str(call.at))


def calls_fit(graph: Graph) -> Iterator[FlowError]:
    """Find a node whose inputs do not fit its ports, whose results are not its op's, or whose settings are refused."""
    for node in graph.all_nodes:
        where, values = str(node.at), dict(node.settings)
        for why in misfits(node.op, node.inputs, [port for port, _ in node.regions], node.returns):
            yield LawError(f"{node.name}: {why}", where=where)
        faults = setting_faults(node.op.settings, values, node.op.name, where)
        yield from faults
        if not faults and dict(make_settings(node.op.settings, values, node.op.name, where)) != values:
            yield LawError(f"{node.name}: a setting does not have its declared type", where=where)
