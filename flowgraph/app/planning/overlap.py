"""The overlap that a request asks for, `--depth`, `--sync-every` and `--contract`, in the roles of a plan."""

from __future__ import annotations

from flowgraph.cluster.plan import Contract, PlacedRole, Plan
from flowgraph.errors import PlanError
from flowgraph.language.graph import Graph


def with_overlap(plan: Plan, graph: Graph, depth: int, sync_every: int, where: str = "plan") -> Plan:
    """Return a plan whose sampling works `depth` steps ahead of training, and gets weights every `sync_every` steps.

    Only roles change that sample from a copy of weights that are trained elsewhere. Whether the flow allows the lag is
    not checked here. `where` names the plan in errors. Raises PlanError if the steps would overlap, but no role samples
    from such a copy.
    """
    trained = {placed.role.rpartition(".")[0]: placed for placed in plan.placed if placed.role.endswith(".train")}

    def changed(placed: PlacedRole) -> PlacedRole:
        param, _, use = placed.role.rpartition(".")
        source = trained.get(param)
        if use != "sample" or source is None or placed.home == source.home:
            return placed
        return placed.model_copy(update={"lag": graph.updates(param) * (depth + sync_every - 1), "ahead": depth})

    rows = tuple(map(changed, plan.placed))
    if depth + sync_every > 1 and not any(row.lag for row in rows):
        raise PlanError.no_copy(where, plan.flow, depth, sync_every)
    assumed = plan.assumed and plan.assumed.model_copy(update={"staleness": None})
    return plan.model_copy(update={"placed": rows, "assumed": assumed})


def with_contract(plan: Plan, contract: Contract, where: str = "plan") -> Plan:
    """Return a plan in which each role that samples ahead of training does so under a contract.

    Raises PlanError for `in_flight` if no role works ahead.
    """
    ahead = [placed.role for placed in plan.placed if placed.ahead and placed.role.endswith(".sample")]
    if contract == "in_flight" and not ahead:
        why = "none of its roles works ahead of training, so no response is under way at a sync"
        raise PlanError.not_in_flight(where, plan.flow, why, "--depth 1")

    def changed(placed: PlacedRole) -> PlacedRole:
        running = placed.running.model_copy(update={"contract": contract})
        return placed.model_copy(update={"running": running}) if placed.role in ahead else placed

    return plan.model_copy(update={"placed": tuple(map(changed, plan.placed))})
