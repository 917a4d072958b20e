"""Place the roles of a second flow, such as a check on held-out data, where a plan has the models that it reads."""

from __future__ import annotations

from collections.abc import Mapping

from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import Role, roles
from flowgraph.cluster.plan import PlacedRole, Plan
from flowgraph.language.graph import Graph


def follow(plan: Plan, graph: Graph, models: Mapping[str, str]) -> Plan:
    """Give the plan of `graph`, each of whose model parameters is one of the planned flow's, as `models` says.

    A role goes where the plan has the same use of that model, else to the model's first place.
    """
    placed = tuple(_placed(plan, role, models[role.param]) for role in roles(graph))
    told = {"flow": graph.name, "structure_hash": structure_hash(graph), "placed": placed, "forecast": ()}
    return plan.model_copy(update=told)


def _placed(plan: Plan, role: Role, param: str) -> PlacedRole:
    own = [each for each in plan.placed if each.role.rpartition(".")[0] == param]
    same = next((each for each in own if each.role == f"{param}.{role.use}"), own[0])
    return same.model_copy(update={"role": role.name, "memory": {}, "lag": 0})
