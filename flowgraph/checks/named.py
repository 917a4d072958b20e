"""The laws of a named graph: names that can be relied on, and what the passes leave behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from flowgraph.checks.fits import misfits
from flowgraph.errors import FlowError, LawError
from flowgraph.language.graph import Graph
from flowgraph.language.mask_counts import masks_of
from flowgraph.language.signature import make_settings, setting_faults
from flowgraph.passes.dedupe_nodes import same


def every_name_once(graph: Graph) -> Iterator[FlowError]:
    """Find a node without a name, or with one that another has."""
    names = Counter(node.name for node in graph.all_nodes)
    for node in graph.all_nodes:
        if not node.name or names[node.name] > 1:
            what = f"two nodes are named {node.name}" if node.name else f"{node.op.name} has no name"
            yield LawError(what, where=str(node.at), hint="a pass that adds a node gives it a name of its own")


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
        regions = [port for port, _ in node.regions]
        for why in misfits(node.op, node.inputs, regions, node.returns):
            yield LawError(f"{node.name}: {why}", where=str(node.at))
        values, where = dict(node.settings), str(node.at)
        faults = setting_faults(node.op.settings, values, node.op.name, where)
        yield from faults
        if not faults and dict(make_settings(node.op.settings, values, node.op.name, where)) != values:
            yield LawError(f"{node.name}: a setting is not of its own type", where=where)
