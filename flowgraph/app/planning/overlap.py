"""The overlap that a request asks for, in the roles of a plan: `--depth`, `--sync-every`, `--contract`, `--chunks`."""

from __future__ import annotations

from flowgraph.analysis.roles import roles
from flowgraph.checks.placed import allowed_lag
from flowgraph.cluster.plan import Contract, PlacedRole, Plan
from flowgraph.errors import PlanError
from flowgraph.language.graph import Graph


def with_overlap(plan: Plan, graph: Graph, depth: int | None, sync_every: int | None, where: str = "plan") -> Plan:
    """Return a plan whose sampling works `depth` steps ahead of training, and gets weights every `sync_every` steps.

    A depth or sync period of None stays as it is in the plan. Only roles change that sample from a copy of weights that
    are trained elsewhere. Whether the flow allows the lag is not checked here. `where` names the plan in errors. Raises
    PlanError if the steps would overlap, but no role samples from such a copy.
    """
    trained = {placed.role.rpartition(".")[0]: placed for placed in plan.placed if placed.role.endswith(".train")}

    def changed(placed: PlacedRole) -> PlacedRole:
        param, _, use = placed.role.rpartition(".")
        source = trained.get(param)
        if use != "sample" or source is None or placed.home == source.home:
            return placed
        updates = graph.updates(param)
        ahead = placed.ahead if depth is None else depth
        every = placed.lag // max(1, updates) - placed.ahead - placed.behind + 1 if sync_every is None else sync_every
        return placed.model_copy(update={"lag": updates * (ahead + every - 1 + placed.behind), "ahead": ahead})

    rows = tuple(map(changed, plan.placed))
    if (depth or 0) + (sync_every or 1) > 1 and not any(row.lag for row in rows):
        raise PlanError.no_copy(where, plan.flow, depth or 0, sync_every or 1)
    assumed = plan.assumed and plan.assumed.model_copy(update={"staleness": None})
    return plan.model_copy(update={"placed": rows, "assumed": assumed})


def with_contract(plan: Plan, graph: Graph, contract: Contract, where: str = "plan") -> Plan:
    """Return a plan in which each role that samples ahead of training does so under a contract.

    A contract says what a copy of new weights does to responses under way: under `scheduled`, it waits for them; under
    `in_flight` and `ready`, they go on with the new weights. Under `ready`, a group may also be trained on late, by as
    many steps as the flow's bound on the age of weights allows. Raises PlanError for `in_flight` and `ready` if no role
    works ahead, and for `ready` if the bound allows no step.
    """
    ahead = [placed for placed in plan.placed if placed.ahead and placed.role.endswith(".sample")]
    if contract != "scheduled" and not ahead:
        why = "none of its roles works ahead of training, so no response is under way at a sync"
        bounds = [allowed_lag(graph, role) for role in roles(graph) if role.use == "sample"]
        at_most = max((at_most for at_most, _ in bounds), default=0)
        hint = "--depth 1" if at_most else "stale(…, at_most=1) in the flow, and --depth 1"
        raise PlanError.not_in_flight(where, plan.flow, why, hint, contract)

    def changed(placed: PlacedRole) -> PlacedRole:
        updates = graph.updates(placed.role.rpartition(".")[0])
        lag, behind = placed.lag - updates * placed.behind, 0
        if contract == "ready":
            at_most, _ = allowed_lag(graph, next(role for role in roles(graph) if role.name == placed.role))
            behind = (at_most - lag) // max(1, updates)
            if behind < 1:
                raise PlanError.none_late(where, placed.role, lag, at_most, placed.ahead, updates)
        running = placed.running.model_copy(update={"contract": contract})
        return placed.model_copy(update={"running": running, "behind": behind, "lag": lag + updates * behind})

    rows = (changed(placed) if placed in ahead else placed for placed in plan.placed)
    return plan.model_copy(update={"placed": tuple(rows)})


def with_chunks(plan: Plan, graph: Graph, chunks: int, where: str = "plan") -> Plan:
    """Return a plan whose sampling passes the groups of a step on in `chunks` chunks, as they finish.

    It applies to each role that samples with a node that can do so while other groups are still sampled; all other
    roles have one chunk. Whether its engine can, and whether anything reads the chunks, is checked with the plan and
    its program. Raises PlanError for more than one chunk if no role samples so.
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
