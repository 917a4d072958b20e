"""The chunks that a request asks for, `--chunks`, in the roles of a plan."""

from __future__ import annotations

from flowgraph.analysis.roles import roles
from flowgraph.cluster.plan import PlacedRole, Plan
from flowgraph.errors import PlanError
from flowgraph.language.graph import Graph


def with_chunks(plan: Plan, graph: Graph, chunks: int, where: str = "plan") -> Plan:
    """Return a plan whose sampling hands out the groups of a step in `chunks` chunks, as they finish.

    It applies to each role that samples with a node that can do so. Whether its engine can, and whether anything reads
    the chunks, is checked with the plan and its program. Raises PlanError if no role samples so.
    """
    early = {
        role.name: role.use == "sample"
        and any(node.op.hands_out for node in graph.all_nodes if node.name in role.nodes)
        for role in roles(graph)
    }

    def changed(placed: PlacedRole) -> PlacedRole:
        return placed.model_copy(update={"chunks": chunks if early.get(placed.role) else 1})

    if chunks > 1 and not any(early.values()):
        sampling = next((name for name in early if name.endswith(".sample")), plan.flow)
        raise PlanError.no_chunks(where, sampling, chunks, "no node that samples hands out groups as they finish")
    return plan.model_copy(update={"placed": tuple(map(changed, plan.placed))})
