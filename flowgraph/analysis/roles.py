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
    """One use of one model parameter, such as `policy.train`, with the names of the nodes that run in this role."""

    name: str
    param: str
    use: Use
    nodes: tuple[str, ...]


@lru_cache(maxsize=64)
def roles(graph: Graph) -> tuple[Role, ...]:
    """Return the roles of a named graph, each one use of one model, in the order of the flow's parameters.

    The roles of one model are in the order train, sample, infer. A model is trained if an update makes its next
    version; its log-probs, inside a loss or outside, run in its train role. Sampling is a role of its own. All other
    nodes that read a model run in `infer`, and so does a node that makes a model's next version without an update, such
    as an average. Such a model has `infer` first, because the first role of a model holds its newest version. A node
    that reads several models is listed in a role of each, and runs in the role of the first; a node that reads none has
    no role. Cached.
    """
    moves = {node: root for node in graph.nodes if (root := _moves(node)) is not None}
    trained = {root for node, root in moves.items() if node.op.kind == "update" or node.regions}
    moved = {*moves.values()} - trained
    # The model of a region's parameter: the one that its node moves, else reads.
    regional = dict[Param, Param | None]()
    for node in graph.nodes:
        model = node.model()
        root = _moves(node) or (carried_from(model) if model is not None else None)
        regional |= {param: root for _, region in node.regions for param in region.params}
    readers: dict[tuple[Param, Use], dict[str, None]] = {}
    for node in graph.all_nodes:
        for edge in models_read(node):
            root = carried_from(edge)
            root = regional.get(root, root) if root is not None else None
            if root is not None:
                use: Use = "sample" if node.op.kind == "generate" else "train" if root in trained else "infer"
                readers.setdefault((root, use), {})[node.name] = None
    order = {param: place for place, param in enumerate(graph.params)}
    keys = sorted(readers, key=lambda key: (order[key[0]], key[0] in moved and key[1] != "infer", USES.index(key[1])))
    return tuple(Role(f"{param.name}.{use}", param.name, use, tuple(readers[param, use])) for param, use in keys)


def models_read(node: Node) -> Iterator[Edge]:
    """Yield the edge of each model among a node's own inputs; models that only its losses capture are left out."""
    return (edge for _, edge in node.inputs if issubclass(edge.type, Model))


def _moves(node: Node) -> Param | None:
    edge = node.carried()
    return node.root if edge is not None and issubclass(edge.type, Model) else None
