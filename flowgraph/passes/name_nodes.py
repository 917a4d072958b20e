"""Name every node: `<model>.<op>` if it reads a model, else `<op>`; inside a loss below the name of the updating node.

Before: nodes without names. After: `policy.generate`, `ref.logprobs`, `score`, `policy.update.clipped`; a repeated name
gets `#2`. A name that the flow gives takes the place of the op's: `score(rollout, name="format")` is `format`, and a
factor of a named value is `NAME.scale`. Names do not depend on local variables or line numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from flowgraph.language import arithmetic
from flowgraph.language.flow import op_of
from flowgraph.language.graph import Graph, Node, Param, carried_from, rewrite

SCALE = op_of(arithmetic.scale)


def name_nodes(graph: Graph) -> Graph:
    """Return the graph with a unique name for every node, such as `policy.generate` or `policy.update.clipped`.

    The name of a node ends with its label, or with its op if it has none. Before it comes the parameter of the model of
    the flow that the node reads, and for a node in a loss first the name of the node that takes the loss:
    `policy.update.ref.logprobs`. A repeated name gets `#2`, `#3` and so on. Existing names are replaced.
    """
    names, uses = dict[int, str](), Counter[str]()

    def name(node: Node, parent: str = "", params: Sequence[Param] = ()) -> None:
        model = node.model()
        root = carried_from(model) if model is not None and model.source not in params else None
        base = f"{parent}{own_name(node)}" if root is None else f"{parent}{root.name}.{own_name(node)}"
        uses[base] += 1
        names[node.stamp] = base if uses[base] == 1 else f"{base}#{uses[base]}"

    for node in graph.nodes:
        name(node)
    for node in graph.nodes:
        for _, region in node.regions:
            for inner in region.inner:
                name(inner, f"{names[node.stamp]}.", region.params)

    def change(node: Node) -> Node:
        return node if node.name == names[node.stamp] else replace(node, name=names[node.stamp])

    return rewrite(graph, change)


def own_name(node: Node) -> str:
    """Return the last part of a node's name: its label, `LABEL.scale` for a factor of a labelled value, or its op."""
    if not node.label and node.op is SCALE:
        scaled = node.inputs[0][1].source
        if isinstance(scaled, Node) and scaled.label:
            return f"{scaled.label}.{node.op.name}"
    return node.label or node.op.name
