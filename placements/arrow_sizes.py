"""How many bytes travel between the places of a plan in a step, for its picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.model.arrow_sizes import ArrowSizes
from flowgraph.language.graph import Graph
from placements.step_facts import step_facts
from placements.wire import sent_number_bytes
from placements.work import Workload

if TYPE_CHECKING:
    from flowgraph.models import ModelShape


def arrow_sizes(graph: Graph, shapes: Mapping[str, ModelShape], workload: Workload, plan: Plan) -> ArrowSizes:
    """Return the bytes of each value that a node reads, and of the weights of each model.

    Every response is taken to have its most tokens. Weights that are trained are sent, in the precision of the engine
    that samples.
    """
    facts, known = step_facts(graph, shapes, workload, plan), {param.name for param in graph.params}
    values = {(each.value, each.reader): {part.name: part.size_bytes for part in each.parts} for each in facts.edges}
    weights = {name: sent_number_bytes(plan, name) * each.trained for name, each in shapes.items() if name in known}
    return ArrowSizes(values, weights)
