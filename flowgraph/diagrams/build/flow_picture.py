"""Draw a flow: parameters, nodes by kind, edges by type, each loss as a frame, the carry as a way back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flowgraph.diagrams.build.node_about import node_about, param_about, result_about
from flowgraph.diagrams.model.picture import Arrow, ArrowStyle, Box, Frame, Picture
from flowgraph.diagrams.model.quantities import listed, many
from flowgraph.language.graph import Edge, Graph, Node, Param, Region
from flowgraph.language.signature import type_name
from flowgraph.language.values import Model
from flowgraph.serialize.graph_text import shown_settings

CARRY_LABEL = "next step"


@dataclass(frozen=True)
class _Loss:
    """A region, the node that has it, and the frame that is drawn around it."""

    node: Node
    region: Region
    frame: str

    def label(self) -> str:
        """Name the function and what it is a function of."""
        return f"{self.region.name}({', '.join(param.name for param in self.region.params)})"


def flow_picture(graph: Graph) -> Picture:
    """Give the picture of a named graph (`compile_graph(flow.graph())`), in the order it was written.

    A region's own parameter is drawn as the weights that its node updates, for that is what it reads.
    """
    losses = _losses(graph)
    ids: dict[object, str] = {source: f"n{i}" for i, source in enumerate([*graph.params, *graph.all_nodes])}
    boxes = [_param_box(ids[param], param) for param in graph.params]
    boxes += [_node_box(ids[node], node, _home(node, losses)) for node in graph.all_nodes]
    results = [edge for i, edge in enumerate(graph.outputs) if i not in graph.carries().values()]
    ends = {edge: f"n{len(ids) + i}" for i, edge in enumerate(dict.fromkeys(results))}
    boxes += [
        Box(end, (type_name(edge.type), "result"), "result", about=result_about(edge)) for edge, end in ends.items()
    ]
    drawn = [
        *_data_arrows(graph, losses, ids),
        *(edge_arrow(ids[edge.source], end, edge) for edge, end in ends.items()),
        *_carry_arrows(graph, ids),
    ]
    frames = tuple(Frame(loss.frame, loss.label()) for loss in losses)
    return Picture(graph.name, tuple(boxes), frames, merged(drawn), " ".join(_about(graph)))


def _losses(graph: Graph) -> list[_Loss]:
    found = [(node, region) for node in graph.nodes for _, region in node.regions]
    return [_Loss(node, region, f"f{i}") for i, (node, region) in enumerate(found)]


def _home(node: Node, losses: Sequence[_Loss]) -> _Loss | None:
    return next((loss for loss in losses if node in loss.region.inner), None)


def _param_box(name: str, param: Param) -> Box:
    return Box(name, (param.name,), "model" if issubclass(param.type, Model) else "data", about=param_about(param))


def _node_box(name: str, node: Node, home: _Loss | None) -> Box:
    inside = home.frame if home else None
    if node.op.module == "flowgraph.language.arithmetic":
        return Box(name, (_sign(node),), "arithmetic", inside, node_about(node))
    shown = node.name or node.op.name
    shown = shown.removeprefix(f"{home.node.name}.") if home else shown
    said = [] if node.op.kind == "host" or node.op.kind in shown else [node.op.kind]
    settings = [f"{setting}={value}" for setting, value in shown_settings(node.settings)]
    return Box(
        name, (shown, *said, *([", ".join(settings)] if settings else [])), node.op.kind, inside, node_about(node)
    )


def _sign(node: Node) -> str:
    """Write `add` and `scale` as in a formula."""
    settings = dict(node.settings)
    return f"× {settings['factor']:g}" if node.op.name == "scale" else "+"


def _data_arrows(graph: Graph, losses: Sequence[_Loss], ids: Mapping[object, str]) -> Iterator[Arrow]:
    weights: dict[object, Edge] = {param: _updated(loss.node) for loss in losses for param in loss.region.params}
    for node in graph.all_nodes:
        for _, edge in node.inputs:
            read = weights.get(edge.source, edge)
            yield edge_arrow(ids[read.source], ids[node], edge)
        for _, region in node.regions:
            yield edge_arrow(ids[region.output.source], ids[node], region.output)


def _updated(node: Node) -> Edge:
    """Give the weights that a node with a region updates."""
    edge = node.carried() or node.model()
    assert edge is not None, "a region is a function of a model that its node reads"
    return edge


def edge_arrow(source: str, target: str, edge: Edge) -> Arrow:
    """Draw what travels on an edge from one box to another: its type, and by how much a sampling read may lag."""
    if edge.at_most:
        late = f"≤ {edge.at_most} {'update' if edge.at_most == 1 else 'updates'} late"
        return Arrow(source, target, f"{type_name(edge.type)} {late}", ArrowStyle.STALE)
    style = ArrowStyle.WEIGHTS if issubclass(edge.type, Model) else ArrowStyle.DATA
    return Arrow(source, target, type_name(edge.type), style)


def _carry_arrows(graph: Graph, ids: Mapping[object, str]) -> Iterator[Arrow]:
    for name, place in graph.carries().items():
        param, source = graph.param(name), graph.outputs[place].source
        if param is not None and source is not param:
            yield Arrow(ids[source], ids[param], CARRY_LABEL, ArrowStyle.CARRY)


def merged(arrows: Sequence[Arrow]) -> tuple[Arrow, ...]:
    """Draw arrows of one style between the same two boxes as one, each label once.

    >>> [one.label for one in merged([Arrow("n0", "n1", each) for each in ("Mask", "LogProbs", "Mask")])]
    ['Mask, LogProbs']
    """
    labels: dict[Arrow, dict[str, None]] = {}
    for arrow in arrows:
        labels.setdefault(replace(arrow, label=""), {})[arrow.label] = None
    return tuple(replace(arrow, label=", ".join(names)) for arrow, names in labels.items())


def _about(graph: Graph) -> Iterator[str]:
    """Say what a flow reads, what its nodes are, and what is carried to the next step."""
    kinds = Counter(node.op.kind for node in graph.nodes)
    told = [f"{count} {kind}" for kind, count in kinds.items()]
    params = listed([param.name for param in graph.params])
    yield f"A step of {graph.name} reads {params or 'nothing'}."
    losses = [f"{region.name} of {node.name}" for node in graph.nodes for _, region in node.regions]
    inner = f", with a loss: {listed(losses)}" if len(losses) == 1 else ""
    inner = f", with losses: {listed(losses)}" if len(losses) > 1 else inner
    yield f"It has {many(len(graph.nodes), 'node')}: {listed(told)}{inner}."
    if carried := list(graph.carries()):
        yield f"{listed(carried)} {'goes' if len(carried) == 1 else 'go'} on to the next step."
