"""Roles: what a plan places. A role is a model parameter of a flow and a use of it, read from the graph alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from flowgraph.graph import Edge, Graph, Node, Param, carried_from
from flowgraph.values import Model

Use = Literal["train", "sample", "infer"]
USES: tuple[Use, ...] = ("train", "sample", "infer")


@dataclass(frozen=True)
class Role:
    """One use of one model: `policy.train`, with the names of the nodes that it runs."""

    name: str
    param: str
    use: Use
    nodes: tuple[str, ...]


def roles(graph: Graph) -> tuple[Role, ...]:
    """Give the roles of a named graph: models in the order of the flow's parameters, each with train, sample, infer.

    A model that a node carries to its next version is trained: its log-probs, inside a loss or outside, run in its
    train role. Sampling is a role of its own; what else reads a model is `infer`. Host nodes, which read no model, have
    no role. A node that reads several models stands in a role of each, and runs in that of the first.
    """
    trained = {root for node in graph.nodes if (root := _trains(node)) is not None}
    regional = {param: _root(node) for node in graph.nodes for _, region in node.regions for param in region.params}
    found: dict[tuple[Param, Use], list[str]] = {}
    for node in graph.all_nodes:
        for edge in dict.fromkeys(models_read(node)):
            root = carried_from(edge)
            root = regional[root] if root is not None and root in regional else root
            if root is not None:
                names = found.setdefault((root, _use(node, root in trained)), [])
                names += [node.name] if node.name not in names else []
    order = {param: place for place, param in enumerate(graph.params)}
    keys = sorted(found, key=lambda key: (order[key[0]], USES.index(key[1])))
    return tuple(Role(f"{param.name}.{use}", param.name, use, tuple(found[param, use])) for param, use in keys)


def models_read(node: Node) -> Iterator[Edge]:
    """Give the edges of the models that a node reads by itself, those that only its regions read apart."""
    return (edge for _, edge in node.inputs if issubclass(edge.type, Model))


def _trains(node: Node) -> Param | None:
    """Give the model parameter whose next version this node makes, if it makes one."""
    edge = node.carried()
    return node.root if edge is not None and issubclass(edge.type, Model) else None


def _root(node: Node) -> Param | None:
    """Give the model parameter that a region's own parameter stands for: what the node trains, else what it reads."""
    model = node.model()
    return _trains(node) or (carried_from(model) if model is not None else None)


def _use(node: Node, trained: bool) -> Use:
    if node.op.kind == "generate":
        return "sample"
    return "train" if trained else "infer"
