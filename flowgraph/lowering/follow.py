"""Place the roles of a second flow, such as an evaluation, on the pools where a plan has placed its models."""

from __future__ import annotations

from collections.abc import Mapping

from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import roles
from flowgraph.cluster.plan import PlacedRole, Plan
from flowgraph.language.graph import Graph


def plan_second_flow(plan: Plan, graph: Graph, models: Mapping[str, str]) -> Plan:
    """Return a plan for `graph`, a second flow, that uses the pools of `plan`.

    `models` maps every model parameter of `graph` to a parameter that `plan` places. A role, one use of a model,
    is placed where `plan` places the same use of its model, or else where `plan` first places that model. Lags and
    steps ahead become 0, and chunks 1. Memory forecasts are dropped; `step` and `assumed` stay those of `plan`.
    """
    placed = list[PlacedRole]()
    for role in roles(graph):
        param = models[role.param]
        uses = {place.role: place for place in plan.placed if place.role.rpartition(".")[0] == param}
        place = uses.get(f"{param}.{role.use}") or next(iter(uses.values()))
        placed.append(place.model_copy(update={"role": role.name, "memory": {}, "lag": 0, "ahead": 0, "chunks": 1}))
    changes = {"flow": graph.name, "structure_hash": structure_hash(graph), "placed": tuple(placed), "forecast": ()}
    return plan.model_copy(update=changes)
