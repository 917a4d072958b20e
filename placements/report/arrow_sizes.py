"""The bytes that move between the places of a plan in a step, for its picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.model.arrow_sizes import ArrowSizes
from flowgraph.language.graph import Graph
from placements.workload.graph_workload import StepWorkload
from placements.workload.step_facts import step_facts
from placements.workload.value_bytes import sent_number_bytes

if TYPE_CHECKING:
    from flowgraph.models import ModelShape


def arrow_sizes(graph: Graph, shapes: Mapping[str, ModelShape], workload: StepWorkload, plan: Plan) -> ArrowSizes:
    """Return the bytes of each value that a node reads, and of the weights of each model.

    Responses are assumed to have their maximum length. Trained weights are sent in the precision of the sampling
    engine.
    """
    facts, params = step_facts(graph, shapes, workload, plan), {param.name for param in graph.params}
    values = {(edge.value, edge.reader): {part.name: part.size_bytes for part in edge.parts} for edge in facts.edges}
    weights = {name: sent_number_bytes(plan, name) * shape.trained for name, shape in shapes.items() if name in params}
    return ArrowSizes(values, weights)
