"""Name every node: `<model>.<op>` for one that reads a model, else `<op>`; inside a loss under the updating node.

Before: nodes without names. After: `policy.generate`, `ref.logprobs`, `score`, `policy.update.clipped`; a repeat of a
name gets `#2`. Names do not depend on local variables or line numbers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from flowgraph.language.graph import Edge, Graph, Node, carried_from, rewrite


def name_nodes(graph: Graph) -> Graph:
    """Give every node its name."""
    names, seen = dict[int, str](), defaultdict[str, int](int)
    for node in graph.nodes:
        names[node.stamp] = _fresh(seen, f"{_root(node.model())}{node.op.name}")
    for node in graph.nodes:
        for _, region in node.regions:
            for inner in region.inner:
                outside = inner.model()
                other = "" if outside is None or outside.source in region.params else _root(outside)
                names[inner.stamp] = _fresh(seen, f"{names[node.stamp]}.{other}{inner.op.name}")
    return rewrite(graph, lambda node: _named(node, names[node.stamp]))


def _named(node: Node, name: str) -> Node:
    return node if node.name == name else replace(node, name=name)


def _fresh(seen: defaultdict[str, int], base: str) -> str:
    seen[base] += 1
    return base if seen[base] == 1 else f"{base}#{seen[base]}"


def _root(model: Edge | None) -> str:
    if model is None:
        return ""
    param = carried_from(model)
    return f"{param.name}." if param is not None else ""
