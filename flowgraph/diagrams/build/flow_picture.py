"""Draw a flow: parameters, nodes by kind, edges by type, each loss as a frame, carried state as an arrow back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from flowgraph.diagrams.model.picture import Arrow, ArrowStyle, Box, BoxKind, Frame, Picture
from flowgraph.diagrams.model.quantities import listed, many
from flowgraph.language.graph import Edge, Graph, Node, Param, Region
from flowgraph.language.signature import type_name
from flowgraph.language.values import Model
from flowgraph.serialize.graph_text import shown_settings

CARRY_LABEL = "next step"


def flow_picture(graph: Graph) -> Picture:
    """Return the picture of a flow's graph: its parameters, nodes and results as boxes, and its losses as frames.

    The nodes must have names (`compile_graph(flow.graph())`). Boxes are in the order of the flow. Arrows of weights
    into a loss start at the weights that the node of the loss updates. State for the next step has an arrow back to its
    parameter, unless the flow returns the parameter unchanged.
    """
    losses = [(node, region) for node in graph.nodes for _, region in node.regions]
    ids: dict[object, str] = {source: f"n{place}" for place, source in enumerate([*graph.params, *graph.all_nodes])}
    boxes, frames = list[Box](), list[Frame]()
    owners = dict[Node, tuple[Node, str]]()  # of a node in a loss: the node that has the loss, and its frame
    for place, (owner, region) in enumerate(losses):
        frames.append(Frame(f"f{place}", loss_text(region)))
        for node in region.inner:
            owners.setdefault(node, (owner, f"f{place}"))
    for param in graph.params:
        kind: BoxKind = "model" if issubclass(param.type, Model) else "data"
        boxes.append(Box(ids[param], (param.name,), kind, about=param_about(param)))
    boxes += [_node_box(ids[node], node, *owners.get(node, (None, None))) for node in graph.all_nodes]
    carried = graph.carries().values()
    results = dict.fromkeys(edge for place, edge in enumerate(graph.outputs) if place not in carried)
    ends = {edge: f"n{len(ids) + place}" for place, edge in enumerate(results)}
    for edge, end in ends.items():
        boxes.append(Box(end, (type_name(edge.type), "result"), "result", about=result_about(edge)))
    arrows = [
        *_data_arrows(graph, losses, ids),
        *(edge_arrow(ids[edge.source], end, edge) for edge, end in ends.items()),
    ]
    for name, place in graph.carries().items():
        carried_param, source = graph.param(name), graph.outputs[place].source
        if carried_param is not None and source is not carried_param:
            arrows.append(Arrow(ids[source], ids[carried_param], CARRY_LABEL, ArrowStyle.CARRY))
    return Picture(graph.name, tuple(boxes), tuple(frames), merge_arrows(arrows), " ".join(_about(graph)))


def _node_box(name: str, node: Node, owner: Node | None, frame: str | None) -> Box:
    settings = dict(node.settings)
    if node.op.module == "flowgraph.language.arithmetic":
        sign = f"× {settings['factor']:g}" if node.op.name == "scale" else "+"
        return Box(name, (sign,), "arithmetic", frame, node_about(node))
    label = node.name or node.op.name
    label = label.removeprefix(f"{owner.name}.") if owner else label
    kind = [] if node.op.kind == "host" or node.op.kind in label else [node.op.kind]
    texts = ", ".join(f"{setting}={value}" for setting, value in shown_settings(node.settings))
    return Box(name, (label, *kind, *([texts] if texts else [])), node.op.kind, frame, node_about(node))


def _data_arrows(graph: Graph, losses: Sequence[tuple[Node, Region]], ids: Mapping[object, str]) -> Iterator[Arrow]:
    weights = dict[object, Edge]()  # what a node with a loss updates, by the loss's parameter
    for node, region in losses:
        updated = node.carried() or node.model()
        assert updated is not None, "a region is a function of a model that its node reads"
        weights |= dict.fromkeys(region.params, updated)
    for node in graph.all_nodes:
        for _, edge in node.inputs:
            source = weights.get(edge.source, edge).source
            yield edge_arrow(ids[source], ids[node], edge)
        for _, region in node.regions:
            yield edge_arrow(ids[region.output.source], ids[node], region.output)


def loss_text(region: Region) -> str:
    """Return the name of a loss with its parameters in parentheses, as in `loss(policy)`."""
    return f"{region.name}({', '.join(param.name for param in region.params)})"


def edge_arrow(source: str, target: str, edge: Edge) -> Arrow:
    """Return the arrow for a graph edge from box id `source` to box id `target`, labelled with the type of the value.

    If the edge carries weights that may lag, the label also has the maximum lag in updates.
    """
    if edge.at_most:
        lag = f"≤ {edge.at_most} {'update' if edge.at_most == 1 else 'updates'} late"
        return Arrow(source, target, f"{type_name(edge.type)} {lag}", ArrowStyle.STALE)
    style = ArrowStyle.WEIGHTS if issubclass(edge.type, Model) else ArrowStyle.DATA
    return Arrow(source, target, type_name(edge.type), style)


def merge_arrows(arrows: Sequence[Arrow]) -> tuple[Arrow, ...]:
    """Return the arrows with all of the same style and status from one box to another merged into one.

    A merged arrow has each label once, separated by commas. Arrows stay in the order in which they first appear.

    >>> [arrow.label for arrow in merge_arrows([Arrow("n0", "n1", label) for label in ("Mask", "LogProbs", "Mask")])]
    ['Mask, LogProbs']
    """
    labels: dict[Arrow, dict[str, None]] = {}
    for arrow in arrows:
        labels.setdefault(replace(arrow, label=""), {})[arrow.label] = None
    return tuple(replace(arrow, label=", ".join(names)) for arrow, names in labels.items())


def _about(graph: Graph) -> Iterator[str]:
    params = listed([param.name for param in graph.params])
    yield f"A step of {graph.name} reads {params or 'nothing'}."
    kinds = [f"{count} {kind}" for kind, count in Counter(node.op.kind for node in graph.nodes).items()]
    losses = [f"{region.name} of {node.name}" for node in graph.nodes for _, region in node.regions]
    inner = f", with {'a loss' if len(losses) == 1 else 'losses'}: {listed(losses)}" if losses else ""
    yield f"It has {many(len(graph.nodes), 'node')}: {listed(kinds)}{inner}."
    if carried := list(graph.carries()):
        yield f"{listed(carried)} {'is' if len(carried) == 1 else 'are'} carried to the next step."


def node_about(node: Node) -> str:
    """Return the tooltip of a node: its kind, purpose, settings, inputs, losses, result types and source line."""
    sentences = [f"{node.name or node.op.name} is a node of kind {node.op.kind}, {node.op.module}.{node.op.name}."]
    sentences += [node.op.about] if node.op.about else []
    settings = [f"{name}={value}" for name, value in shown_settings(node.settings)]
    sentences += [f"Settings: {', '.join(settings)}."] if settings else []
    reads = [f"{type_name(edge.type)} as {port}" for port, edge in node.inputs]
    sentences.append(f"It reads {listed(reads) or 'nothing'}.")
    sentences += [f"It has the loss {loss_text(region)}." for _, region in node.regions]
    sentences.append(f"It returns {listed([type_name(kind) for kind in node.returns])}. Written at {node.at}.")
    return " ".join(sentences)


def param_about(param: Param) -> str:
    """Return the tooltip of a parameter: the flow or loss that it belongs to, its type and its source line."""
    return f"{param.name} is a parameter of {param.owner}, of type {type_name(param.type)}. Written at {param.at}."


def result_about(edge: Edge) -> str:
    """Return the tooltip of a flow's result: its type and, if known, the node or parameter that it comes from."""
    source = edge.source
    name = source.name or source.op.name if isinstance(source, Node) else getattr(source, "name", "")
    return f"A result of the flow, of type {type_name(edge.type)}{f', from {name}' if name else ''}."
