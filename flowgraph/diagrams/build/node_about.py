"""The sentences that describe a node, a parameter or a result when you point at it."""

from __future__ import annotations

from flowgraph.diagrams.model.quantities import listed
from flowgraph.language.graph import Edge, Node, Param
from flowgraph.language.signature import type_name
from flowgraph.serialize.graph_text import shown_settings


def node_about(node: Node) -> str:
    """Return a node's kind, what it does, its settings, inputs, losses and outputs, and where it is written."""
    sentences = [f"{node.name or node.op.name} is a node of kind {node.op.kind}, {node.op.module}.{node.op.name}."]
    sentences += [node.op.about] if node.op.about else []
    settings = [f"{name}={value}" for name, value in shown_settings(node.settings)]
    sentences += [f"Settings: {', '.join(settings)}."] if settings else []
    reads = [f"{type_name(edge.type)} as {port}" for port, edge in node.inputs]
    sentences.append(f"It reads {listed(reads) or 'nothing'}.")
    for _, region in node.regions:
        sentences.append(f"It has the loss {region.name}({', '.join(param.name for param in region.params)}).")
    sentences.append(f"It gives {listed([type_name(kind) for kind in node.returns])}. Written at {node.at}.")
    return " ".join(sentences)


def param_about(param: Param) -> str:
    """Return what a parameter is and where it is written."""
    return f"{param.name} is a parameter of {param.owner}, of type {type_name(param.type)}. Written at {param.at}."


def result_about(edge: Edge) -> str:
    """Return what a result is and which node returns it."""
    source = edge.source
    name = source.name or source.op.name if isinstance(source, Node) else getattr(source, "name", "")
    return f"A result of the flow, of type {type_name(edge.type)}{f', from {name}' if name else ''}."
