"""The state that a run carries from step to step, which is all that a checkpoint holds; read from the graph alone.

Nodes keep no state, and copies of weights are filled again from the newest version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from flowgraph.language.graph import Graph
from flowgraph.language.values import Model

StateKind = Literal["weights", "value", "data", "random"]


@dataclass(frozen=True)
class StateItem:
    """One piece of state: weights or another value that a parameter carries, a position in data, or a random stream.

    `holds` lists what must be saved. The position of a data parameter (`data`) and the random stream of a node
    (`random`) follow from the seed and the step of the run, so their `holds` is `("seed", "step")`.
    """

    kind: StateKind
    name: str
    holds: tuple[str, ...]


def carried_state(graph: Graph) -> tuple[StateItem, ...]:
    """Return the pieces of state that a run of a named graph carries from step to step; a checkpoint holds these.

    Carried parameters come first, then data parameters that are read, then nodes that use random numbers. A model that
    nothing updates is not state, because a run loads it again from its source.
    """
    carried, items = graph.carries(), list[StateItem]()
    for param in (param for param in graph.params if param.name in carried):
        if not issubclass(param.type, Model):
            items.append(StateItem("value", param.name, ("value",)))
            continue
        versions = {param, *(node for node in graph.nodes if node.root is param)}
        updates = [node for node in graph.nodes if node.op.carries is not None and node.regions and node in versions]
        optimizers = dict.fromkeys(str(getattr(node.settings, "optimizer", "its optimizer")) for node in updates)
        holds = ["weights", "version", *(f"state of {name}" for name in optimizers)]
        lags = (edge.at_most for node in graph.nodes for edge in node.edges() if edge.source in versions)
        if lag := max(lags, default=0):
            holds.append(f"weights up to {lag} versions old")
        items.append(StateItem("weights", param.name, tuple(holds)))
    read = {edge.source for edge in graph.outputs} | {edge.source for node in graph.nodes for edge in node.edges()}
    inputs = [param for param in graph.params if param in read and not issubclass(param.type, Model)]
    items += [StateItem("data", param.name, ("seed", "step")) for param in inputs if param.name not in carried]
    items += [StateItem("random", node.name, ("seed", "step")) for node in graph.nodes if node.op.key is not None]
    return tuple(items)


def state_text(items: Sequence[StateItem]) -> str:
    """Return state items as an aligned table of text: a line for each, with its kind, name and what is saved.

    >>> print(state_text([StateItem("weights", "policy", ("weights", "version"))]))
    weights  policy  weights, version
    """
    widths = [max((len(getattr(item, name)) for item in items), default=0) for name in ("kind", "name")]
    rows = ((item.kind.ljust(widths[0]), item.name.ljust(widths[1]), ", ".join(item.holds)) for item in items)
    return "\n".join("  ".join(row) for row in rows)


def state_json(items: Sequence[StateItem]) -> list[dict[str, Any]]:
    """Return state items as JSON-compatible data: a list of objects with `kind`, `name` and `holds`."""
    return [asdict(item) | {"holds": list(item.holds)} for item in items]
