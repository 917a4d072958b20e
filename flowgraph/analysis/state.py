"""What a run carries from step to step: the list of state that a checkpoint must hold, and all that it need hold.

Read from the graph alone. Nodes keep nothing, and copies of weights are filled again from the newest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from flowgraph.language.graph import Graph, Node, Param
from flowgraph.language.values import Model

StateKind = Literal["weights", "value", "data", "random"]


@dataclass(frozen=True)
class StateItem:
    """One piece of state: carried weights or another carried value by parameter, or what says where a run stands.

    `holds` lists what has to be kept. `data` is the position of a data parameter, `random` the stream of a node: both
    follow from the run's seed and the step, so those two are all that they hold.
    """

    kind: StateKind
    name: str
    holds: tuple[str, ...]


def state_of(graph: Graph) -> tuple[StateItem, ...]:
    """Give the state of a named graph: carried parameters, data parameters, then nodes that draw, each in order.

    A model that nothing updates is no state: a run loads it again from where it came from.
    """
    carried = graph.carries()
    read = {edge.source for edge in graph.outputs} | {edge.source for node in graph.nodes for edge in node.edges()}
    given = [param for param in graph.params if param in read]
    data = [param for param in given if param.name not in carried and not issubclass(param.type, Model)]
    return (
        *(_carried(graph, param) for param in graph.params if param.name in carried),
        *(StateItem("data", param.name, ("seed", "step")) for param in data),
        *(StateItem("random", node.name, ("seed", "step")) for node in graph.nodes if node.op.key is not None),
    )


def _carried(graph: Graph, param: Param) -> StateItem:
    if not issubclass(param.type, Model):
        return StateItem("value", param.name, ("value",))
    rules = dict.fromkeys(rule for node in graph.nodes for rule in _optimizers(node, param))
    late = max((edge.at_most for node in graph.nodes for edge in node.edges() if _is_of(edge.source, param)), default=0)
    versions = (f"weights of up to {late} versions before",) if late else ()
    return StateItem("weights", param.name, ("weights", "version", *(f"state of {rule}" for rule in rules), *versions))


def _optimizers(node: Node, param: Param) -> Iterator[str]:
    """Name the optimizers of a node that descends a loss to this parameter's next version."""
    if node.op.carries is not None and node.regions and _is_of(node, param):
        yield str(getattr(node.settings, "optimizer", "its optimizer"))


def _is_of(source: object, param: Param) -> bool:
    """Say whether something is the parameter, or makes a later version of it."""
    return source is param or (isinstance(source, Node) and source.root is param)


def state_text(items: Sequence[StateItem]) -> str:
    """Print state, one piece a line.

    >>> print(state_text([StateItem("weights", "policy", ("weights", "version"))]))
    weights  policy  weights, version
    """
    widths = [max((len(getattr(item, name)) for item in items), default=0) for name in ("kind", "name")]
    rows = ((item.kind.ljust(widths[0]), item.name.ljust(widths[1]), ", ".join(item.holds)) for item in items)
    return "\n".join("  ".join(row) for row in rows)


def state_json(items: Sequence[StateItem]) -> list[dict[str, Any]]:
    """Give state as JSON does: a list of objects with `kind`, `name` and `holds`."""
    return [asdict(item) | {"holds": list(item.holds)} for item in items]
