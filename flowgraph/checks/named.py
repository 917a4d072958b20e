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


def check_names_are_unique(graph: Graph) -> Iterator[FlowError]:
    """Yield an error for each node that has no name, or the name of another node; nodes inside losses count too."""
    names = Counter(node.name for node in graph.all_nodes)
    for node in graph.all_nodes:
        if not node.name or names[node.name] > 1:
            what = f"two nodes are named {node.name}" if node.name else f"{node.op.name} has no name"
            yield LawError(what, where=str(node.at), hint="a pass that adds a node must give it a unique name")


def check_masks_are_counted(graph: Graph) -> Iterator[FlowError]:
    """Yield an error for each loss whose `counts` lack the mask of one of its terms."""
    for node in graph.nodes:
        for _, region in node.regions:
            if set(masks_of(region)) - set(region.counts):
                yield LawError.not_counted(region.name, str(region.at))


def check_no_duplicate_nodes(graph: Graph) -> Iterator[FlowError]:
    """Yield an error for each pure node that computes the same as an earlier one."""
    first = dict[object, str]()
    for node in graph.all_nodes:
        computation = computation_of(node)
        if computation is not None and first.setdefault(computation, node.name) != node.name:
            yield LawError(f"{node.name} computes the same as {first[computation]}", where=str(node.at))


def check_no_dropped_calls(graph: Graph) -> Iterator[FlowError]:
    """Yield an error for each call whose result nothing reads, and which no pass has removed and reported."""
    for call in graph.dropped:
        yield LawError(f"nothing reads {call.op.name}", where=str(call.at))


def check_calls_fit_ops(graph: Graph) -> Iterator[FlowError]:
    """Yield an error for each mismatch between a node and its op: ports, types of inputs and results, or settings."""
    for node in graph.all_nodes:
        where, values = str(node.at), dict(node.settings)
        for why in misfits(node.op, node.inputs, [port for port, _ in node.regions], node.returns):
            yield LawError(f"{node.name}: {why}", where=where)
        faults = setting_faults(node.op.settings, values, node.op.name, where)
        yield from faults
        if not faults and dict(make_settings(node.op.settings, values, node.op.name, where)) != values:
            yield LawError(f"{node.name}: a setting does not have its declared type", where=where)
