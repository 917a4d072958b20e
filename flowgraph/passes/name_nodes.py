"""Name every node: `<model>.<op>` if it reads a model, else `<op>`; inside a loss below the name of the updating node.

Before: nodes without names. After: `policy.generate`, `ref.logprobs`, `score`, `policy.update.clipped`; a repeated name
gets `#2`. Names do not depend on local variables or line numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from flowgraph.language.graph import Graph, Node, Param, carried_from, rewrite


def name_nodes(graph: Graph) -> Graph:
    """Return the graph with a unique name for every node, such as `policy.generate` or `policy.update.clipped`.

    The name of a node ends with its op. Before it comes the parameter of the model of the flow that the node reads, and
    for a node in a loss first the name of the node that takes the loss: `policy.update.ref.logprobs`. A repeated name
    gets `#2`, `#3` and so on. Existing names are replaced.
    """
    names, uses = dict[int, str](), Counter[str]()

    def name(node: Node, parent: str = "", params: Sequence[Param] = ()) -> None:
        model = node.model()
        root = carried_from(model) if model is not None and model.source not in params else None
        base = f"{parent}{root.name}.{node.op.name}" if root is not None else f"{parent}{node.op.name}"
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
