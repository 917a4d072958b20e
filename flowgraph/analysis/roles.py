"""Roles: what a plan places. A role is a model parameter of a flow and a use of it, read from the graph alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from flowgraph.language.graph import Edge, Graph, Node, Param, carried_from
from flowgraph.language.values import Model

Use = Literal["train", "sample", "infer"]
USES: tuple[Use, ...] = ("train", "sample", "infer")


@dataclass(frozen=True)
class Role:
    """One use of one model: `policy.train`, with the names of the nodes that it runs."""

    name: str
    param: str
    use: Use
    nodes: tuple[str, ...]


@lru_cache(maxsize=64)
def roles(graph: Graph) -> tuple[Role, ...]:
    """Return the roles of a named graph: models in the order of the flow's parameters, each with train, sample, infer.

    A model whose next version is made by an update is trained: its log-probs, inside a loss or outside, run in its
    train role. Sampling is a role of its own; what else reads a model is `infer`, and so is what moves it without an
    update, as an average does: no gradient is taken, and no optimizer kept. Such a model has `infer` first: the first
    role of a model that moves is always the one that has its newest version. Nodes that read no model have no role. A
    node that reads several models stands in a role of each, and runs in that of the first.
    """
    carried = [(root, _updates(node)) for node in graph.nodes if (root := _moves(node)) is not None]
    trained = {root for root, updated in carried if updated}
    moved = {root for root, _ in carried} - trained
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
    keys = sorted(found, key=lambda key: (order[key[0]], key[0] in moved and key[1] != "infer", USES.index(key[1])))
    return tuple(Role(f"{param.name}.{use}", param.name, use, tuple(found[param, use])) for param, use in keys)


def models_read(node: Node) -> Iterator[Edge]:
    """Give the edges of the models that a node reads by itself, those that only its regions read apart."""
    return (edge for _, edge in node.inputs if issubclass(edge.type, Model))


def _moves(node: Node) -> Param | None:
    """Give the model parameter whose next version this node makes, if it makes one."""
    edge = node.carried()
    return node.root if edge is not None and issubclass(edge.type, Model) else None


def _updates(node: Node) -> bool:
    """Say whether a node descends a loss, and so takes gradients and steps an optimizer."""
    return node.op.kind == "update" or bool(node.regions)


def _root(node: Node) -> Param | None:
    """Give the model parameter that a region's own parameter stands for: what the node trains, else what it reads."""
    model = node.model()
    return _moves(node) or (carried_from(model) if model is not None else None)


def _use(node: Node, trained: bool) -> Use:
    if node.op.kind == "generate":
        return "sample"
    return "train" if trained else "infer"
