"""What is told of a node, a parameter or a result when it is pointed at: in sentences, all that is known of it."""

from __future__ import annotations

from collections.abc import Iterator

from flowgraph.diagrams.model.quantities import listed
from flowgraph.language.graph import Edge, Node, Param
from flowgraph.language.signature import type_name
from flowgraph.serialize.graph_text import shown_settings


def node_about(node: Node) -> str:
    """Say what a node does, its kind, settings, what it reads and gives, and where it is written."""
    return " ".join(_told(node))


def _told(node: Node) -> Iterator[str]:
    yield f"{node.name or node.op.name} is a node of kind {node.op.kind}, {node.op.module}.{node.op.name}."
    if node.op.about:
        yield node.op.about
    settings = [f"{name}={value}" for name, value in shown_settings(node.settings)]
    if settings:
        yield f"Settings: {', '.join(settings)}."
    reads = [f"{type_name(edge.type)} as {port}" for port, edge in node.inputs]
    yield f"It reads {listed(reads)}." if reads else "It reads nothing."
    for _, region in node.regions:
        yield f"It has the loss {region.name}({', '.join(param.name for param in region.params)})."
    yield f"It gives {listed([type_name(kind) for kind in node.returns])}. Written at {node.at}."


def param_about(param: Param) -> str:
    """Say what a parameter is and where it is written."""
    return f"{param.name} is a parameter of {param.owner}, of type {type_name(param.type)}. Written at {param.at}."


def result_about(edge: Edge) -> str:
    """Say what a result is and who gives it."""
    source = edge.source
    name = source.name or source.op.name if isinstance(source, Node) else getattr(source, "name", "")
    return f"A result of the flow, of type {type_name(edge.type)}{f', from {name}' if name else ''}."
