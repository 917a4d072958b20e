"""The law of rows in flight: a role that goes on with newer weights while it draws can do so, and its bound holds.

The lower bound is that of any role that samples ahead. The upper one follows from the order of tasks: the update of a
step waits for the rows of the step, so no newer weights than those that train on a row can reach it.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowgraph.analysis.placed_graph import PlacedGraph
from flowgraph.analysis.roles import Role
from flowgraph.cluster.plan import PlacedRole
from flowgraph.errors import FlowError, PlanError
from flowgraph.language.graph import Graph, Node
from flowgraph.language.values import Mask, Record, Versions, fields
from flowgraph.lowering.program import edges_read


def check_in_flight_roles(placed: PlacedGraph) -> Iterator[FlowError]:
    """Yield an error for each role with the contract `in_flight` whose responses cannot go on with newer weights.

    Such a role samples ahead of training, on devices that do not train, and never sleeps. What its nodes return says
    which version drew each token, and the update of their model reads it. No role of the plan hands out chunks. A role
    of a model that the plan does not train may have the contract: it gets no weights. Also an error: a hold without the
    contract.
    """
    for row in placed.plan.placed:
        role = placed.roles.get(row.role)
        if role is not None and row.running.contract == "in_flight":
            for why, hint in _faults(placed, row, role):
                yield PlanError.not_in_flight(placed.where, row.role, why, hint)
        elif role is not None and row.running.hold != "retract":
            what = f"{row.role}: hold={row.running.hold} has no effect: its contract is scheduled"
            yield PlanError(what, where=placed.where, hint="--contract in_flight")


def _faults(placed: PlacedGraph, row: PlacedRole, role: Role) -> Iterator[tuple[str, str]]:
    trainer = next((placing for placing in placed.plan.placed if placing.role == f"{role.param}.train"), None)
    if role.use != "sample":
        yield "only a role that samples has responses under way", ""
        return
    if trainer is None:  # such as a check of held-out rows on the copies of a run: no weights come meanwhile
        return
    if not row.ahead:
        yield "it does not work ahead of training, so no response is under way at a sync", "--depth 1"
    for sampler in placed.plan.placed:
        if sampler.chunks > 1:
            hint = "leave out chunks, or --contract scheduled"
            yield f"{sampler.role} hands out chunks of a step, which rows in flight cannot be combined with", hint
    if row.running.sleeps:
        yield "it sleeps, and what sleeps draws nothing", ""
    if trainer.pool == row.pool:
        yield f"{trainer.role} runs on the same devices, so no response is under way at a sync", "--placement split"
    nodes = [node for node in placed.graph.all_nodes if node.name in role.nodes]
    trained_on = read_by_updates(placed.graph, role.param)
    for node in nodes:
        kinds = [kind for result in node.returns if issubclass(result, Record) for kind in fields(result).values()]
        if not all(any(issubclass(kind, column) for kind in kinds) for column in (Versions, Mask)):
            yield f"what {node.name} returns does not say which version drew each token", "return a Rollout"
        if node.name not in trained_on:
            yield f"no update of {role.param} reads the rows of {node.name}, so nothing bounds its weights", ""


def read_by_updates(graph: Graph, param: str) -> frozenset[str]:
    """Return the names of the nodes whose results the updates of a model read, directly or through other nodes."""
    waiting = [node for node in graph.nodes if node.root is not None and node.root.name == param]
    names = set[str]()
    while waiting:
        for edge, _ in edges_read(waiting.pop()):
            if isinstance(edge.source, Node) and edge.source.name not in names:
                names.add(edge.source.name)
                waiting.append(edge.source)
    return frozenset(names)
