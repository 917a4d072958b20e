"""The laws of the contracts `in_flight` and `ready`: a role can go on with newer weights, and its bound holds.

The lower bound is that of any role that samples ahead. The upper one follows from the order of tasks: the update of a
step waits for the rows of the step, so no newer weights than those that train on a row can reach it.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowgraph.analysis.placed_graph import PlacedGraph
from flowgraph.analysis.roles import Role
from flowgraph.cluster.plan import PlacedRole
from flowgraph.engines.table import ENGINES, is_server
from flowgraph.errors import FlowError, LawError, PlanError
from flowgraph.language.graph import Graph, Node, Param
from flowgraph.language.rows import leaf_paths
from flowgraph.language.values import Group, Mask, Model, Record, State, Versions, fields
from flowgraph.lowering.program import Program, Run, Take, edges_read


def check_in_flight_roles(placed: PlacedGraph) -> Iterator[FlowError]:
    """Yield an error for each role in flight (`in_flight` or `ready`) whose responses cannot go on with newer weights.

    Such a role samples ahead of training, on devices that do not train, and never sleeps. What its nodes return says
    which version of the weights sampled each token, and the update of their model reads it. No role of the plan passes
    groups on in chunks. A role of a model that the plan does not train may have the contract: it gets no weights. Also
    an error: a role under the contract `scheduled` whose `hold` is not the default.
    """
    for row in placed.plan.placed:
        role = placed.roles.get(row.role)
        contract = row.running.contract
        if role is not None and contract != "scheduled":
            for why, hint in _faults(placed, row, role):
                yield PlanError.not_in_flight(placed.where, row.role, why, hint, contract)
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


def check_ready_roles(placed: PlacedGraph) -> Iterator[FlowError]:
    """Yield an error for each role with the contract `ready` whose groups cannot be trained on as they finish.

    One node of such a role samples, from the rows of one data parameter, and passes its groups on as they finish, from
    one rank or an inference server. No other role works ahead, and no node reads rows of other data, whose order would
    stay that of the data. The plan says by how many steps a group may be `behind`. Roles of models that the flow does
    not update are not checked. Also an error: `behind` for a role with another contract.
    """
    for row in placed.plan.placed:
        role = placed.roles.get(row.role)
        if role is None:
            continue
        ready, trained = row.running.contract == "ready", placed.graph.updates(role.param) > 0
        if row.behind and not ready:
            what = f"{row.role}: behind={row.behind} has no effect: its contract is {row.running.contract}"
            yield PlanError(what, where=placed.where, hint="--contract ready")
        elif ready and trained:
            for why, hint in _late_faults(placed, row, role):
                yield PlanError.not_in_flight(placed.where, row.role, why, hint, "ready")


def _late_faults(placed: PlacedGraph, row: PlacedRole, role: Role) -> Iterator[tuple[str, str]]:
    engine, updates = ENGINES.get(row.engine), placed.graph.updates(role.param)
    if not row.behind:
        yield "no group may be trained on later than in its own step", "behind=1, and lag larger by as many steps"
    elif row.lag < updates * (row.ahead + row.behind):
        age = updates * (row.ahead + row.behind)
        fewer = row.lag // updates - row.ahead
        hint = f"behind={fewer}, or lag={age} if the flow allows it" if fewer > 0 else f"lag={age}"
        yield f"ahead={row.ahead} behind={row.behind} makes its weights {age} updates old, not {row.lag}", hint
    if engine is not None and not engine.hands_out:
        engines = ", ".join(name for name, capable in ENGINES.items() if capable.hands_out)
        yield f"the engine `{row.engine}` returns all responses of a step at once", f"these hand out groups: {engines}"
    if row.layout.data > 1 and not is_server(row.engine):
        yield f"its groups finish on {row.layout.data} ranks", "place it with data=1, or on an inference server"
    for placing in placed.plan.placed:
        if placing.ahead and placing.role != row.role:
            yield f"{placing.role} works ahead, and reads rows of a step before they are chosen", "ahead=0 for it"
    nodes = [node for node in placed.graph.all_nodes if node.name in role.nodes]
    if len(nodes) > 1:
        yield f"its nodes {', '.join(node.name for node in nodes)} would finish in different orders", ""
        return
    (node,) = nodes
    if not node.op.hands_out:
        yield f"{node.name} returns all its rows at once", "@node(hands_out=True) for a node of your own: docs/own.md"
    data = {param.name: param for param in placed.graph.params if not issubclass(param.type, Model | State)}
    read = [edge.source for edge, _ in edges_read(node) if not issubclass(edge.type, Model)]
    if len(read) != 1 or not isinstance(read[0], Param) or not _has_groups(read[0]):
        yield f"{node.name} does not sample from the rows of one data set alone", ""
    elif len(data) > 1:
        unordered = ", ".join(f"`{name}`" for name in data if name != read[0].name)
        yield f"the rows of {unordered} would stay in the order of the data", ""


def _has_groups(param: Param) -> bool:
    return any(part is Group for _, part in leaf_paths(param.type))


def check_groups_are_taken_once(program: Program) -> Iterator[FlowError]:
    """Yield an error if the tasks that take finished groups do not match the runs that sample by group, or the plan.

    Such a task (Take) replaces the rows of a step by those of groups that have finished. Errors: there is not one for
    each run, in the same order, and then nothing else is checked; the plan lets groups be late, but none are taken; a
    task lets groups be late by a number of steps that the plan does not set; a run reads the rows of a step before they
    are taken.
    """
    sampled = [(run.nodes[0], run.place) for run in program.tasks if isinstance(run, Run) and run.by_group]
    takes = [task for task in program.tasks if isinstance(task, Take)]
    if sampled != [(take.value, take.place) for take in takes]:
        names = ", ".join(name for name, _ in sampled) or "no run"
        what = f"{names} samples by group, and {len(takes)} tasks take groups"
        yield LawError(what, hint="the pass take_groups adds a take for each")
        return
    behind = {(row.pool, row.behind): row for row in program.plan.placed if row.ahead and row.behind}
    for row in behind.values() if not takes else ():
        what = f"the plan lets groups of {row.role} be {row.behind} steps late, and the program takes none"
        yield LawError(what, hint="the pass take_groups adds a take")
    for take in takes:
        if (take.place, take.behind) not in behind:
            yield LawError(f"`{' '.join(str(take).split())}`: the plan sets another number of steps")
        for task in program.tasks[: program.tasks.index(take)]:
            if isinstance(task, Run) and not task.by_group and {take.value, take.prompts} & {*task.reads}:
                yield LawError(f"{', '.join(task.nodes)} reads the rows of a step before they are taken")
