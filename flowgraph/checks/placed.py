"""The laws of a placed graph: the structure, each role placed once, on pools and engines that can hold it.

And that what samples lags no further behind than the flow lets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.placed_graph import PlacedGraph
from flowgraph.analysis.roles import Role, models_read
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, RoleSettings
from flowgraph.engines.capabilities import MAX_RANKS, EngineCapabilities, Support
from flowgraph.engines.table import ENGINES, VERBS
from flowgraph.errors import FlowError, PlanError
from flowgraph.language.graph import Edge, Graph, Node, carried_from
from flowgraph.lowering.program import HOST

DEGREES = ("data", "tensor", "pipeline", "expert", "sequence", "replicas")  # the ways to split or repeat a model


def is_for_the_graph(placed: PlacedGraph) -> Iterator[FlowError]:
    """Find a plan of another structure."""
    plan, expected = placed.plan, structure_hash(placed.graph)
    if plan.structure_hash != expected:
        yield PlanError.other_graph(placed.where, plan.flow, plan.structure_hash, placed.graph.name, expected)


def pools_hold_devices(placed: PlacedGraph) -> Iterator[FlowError]:
    """Find a pool that is named twice, and a device that is not there or that two pools hold."""
    yield from pool_faults(placed.plan, placed.where)


def pool_faults(plan: Plan, where: str) -> Iterator[FlowError]:
    """Find what is wrong with the pools of a plan, whatever its flow is."""
    names, holders = set[str](), dict[tuple[str, int], str]()
    for pool in plan.pools:
        if pool.name in names:
            yield PlanError.twice(where, "pool", pool.name, "named")
        names.add(pool.name)
        for node, index in pool.devices:
            if plan.cluster.device(node, index) is None:
                there = [f"{each.name}/{i}" for each in plan.cluster.nodes for i in range(len(each.devices))]
                yield PlanError.unknown(where, f"device of pool `{pool.name}`:", f"{node}/{index}", there)
            if (node, index) in holders:
                yield PlanError.shared_device(where, f"{node}/{index}", holders[node, index], pool.name)
            holders[node, index] = pool.name


def forecast_faults(plan: Plan, where: str) -> Iterator[FlowError]:
    """Find a pool or a role that a plan's forecast names and that the plan does not have."""
    pools, roles_there = [pool.name for pool in plan.pools], [each.role for each in plan.placed]
    for told in plan.forecast:
        if told.pool not in pools:
            yield PlanError.unknown(where, "pool of a forecast:", told.pool, pools)
        for role in dict.fromkeys(peak.role for peak in told.peaks if peak.role not in roles_there):
            yield PlanError.unknown(where, f"role of the forecast of {told.pool}:", role, roles_there)
    for task in plan.step.tasks if plan.step is not None else ():
        for pool in task.pools:
            if pool not in (*pools, HOST):
                yield PlanError.unknown(where, f"pool of the task {task.name}:", pool, [*pools, HOST])


def every_role_once(placed: PlacedGraph) -> Iterator[FlowError]:
    """Find a role that the graph does not have, that is placed twice, or that is not placed."""
    seen = set[str]()
    for each in placed.plan.placed:
        if each.role not in placed.known:
            yield PlanError.unknown(placed.where, "role", each.role, placed.known)
        elif each.role in seen:
            yield PlanError.twice(placed.where, "role", each.role, "placed")
        seen.add(each.role)
    left_out = placed.plan.assumed.without if placed.plan.assumed is not None else ()
    missing = [name for name, role in placed.known.items() if name not in seen and role.param not in left_out]
    if missing:
        yield PlanError.not_placed(placed.where, missing)


def engines_run_their_roles(placed: PlacedGraph) -> Iterator[FlowError]:
    """Find a role on a pool or engine that is not there, or that its engine, layout or devices cannot run."""
    for each in placed.plan.placed:
        role = placed.known.get(each.role)
        if role is not None:
            yield from _placed_faults(placed.plan, each, role, placed.where)
            yield from _expert_faults(each, role, placed)


def lags_are_allowed(placed: PlacedGraph) -> Iterator[FlowError]:
    """Find a role that lags further than the flow lets it, or that reads what is trained in place."""
    for each in placed.plan.placed:
        role = placed.known.get(each.role)
        if each.lag and role is not None:
            yield from _lag_faults(placed.plan, placed.graph, each, role, placed.where)


def _placed_faults(plan: Plan, placed: PlacedRole, role: Role, where: str) -> Iterator[FlowError]:
    pool = plan.pool(placed.pool)
    if pool is None:
        yield PlanError.unknown(where, f"pool of {placed.role}:", placed.pool, [each.name for each in plan.pools])
    engine = ENGINES.get(placed.engine)
    if engine is None:
        yield PlanError.unknown(where, f"engine of {placed.role}:", placed.engine, ENGINES)
    if pool is None or engine is None:
        return
    needs, has = placed.layout.devices, len(pool.devices)
    if needs > has:
        yield PlanError.too_few_devices(where, placed.role, str(placed.layout), needs, has)
    for what, runs in _misfits(plan, placed, engine, engine.modelled, role.use):
        yield PlanError.not_offered(where, placed.role, placed.engine, what, runs)


def unsupported(plan: Plan) -> list[str]:
    """Return what a plan names that can be forecast and exported but not run here, in the order of the plan.

    Engines without an executor, layouts and settings that an executor does not support, steps that overlap, and models
    that are left out. A plan that can be run names none. What is not modelled either is for `check_plan` to refuse.
    """
    found = list[str]()
    for placed in plan.placed:
        engine, use = ENGINES.get(placed.engine), placed.role.rpartition(".")[2]
        if engine is None or use not in VERBS:
            continue
        if engine.supported is None:
            found.append(f"`{placed.engine}` for {placed.role}")
        elif next(_misfits(plan, placed, engine, engine.modelled, use), None) is None:
            misfits = _misfits(plan, placed, engine, engine.supported, use)
            found += [f"{what} on `{placed.engine}` for {placed.role}" for what, _ in misfits]
    if plan.assumed is not None:
        found += ["steps that overlap"] if plan.assumed.staleness else []
        found += [f"a run without `{name}`" for name in plan.assumed.without]
    return found


def refuse_unsupported(plan: Plan, where: str) -> None:
    """Raise PlanError for a plan that names what cannot be run here; `where` is its file."""
    if names := unsupported(plan):
        raise PlanError.not_supported(where, plan.flow, names)


Misfit = tuple[str, str]
"""What a plan asks of an engine that its column of the table does not have, and what it has."""


def _misfits(
    plan: Plan, placed: PlacedRole, engine: EngineCapabilities, support: Support, use: str
) -> Iterator[Misfit]:
    layout, pool = placed.layout, plan.pool(placed.pool)
    lacks = [verb for verb in VERBS[use] if verb not in engine.verbs]
    if lacks:
        yield f"`{lacks[0]}`", f"it does {_listed(engine.verbs)}"
    alone = [verb for verb in VERBS[use] if verb in support.single_device]
    if alone and layout.devices > 1:
        yield f"`{alone[0]}` on {layout.devices} devices", "it does that on one device"
    yield from _setting_misfits(placed.running, support)
    yield from _layout_misfits(layout, support)
    for device in (plan.cluster.device(node, index) for node, index in (pool.devices if pool is not None else ())):
        if device is not None and device.kind not in support.devices:
            yield f"a {device.kind} of `{placed.pool}`", f"it runs on {_listed(support.devices)}"
            return


def _setting_misfits(running: RoleSettings, support: Support) -> Iterator[Misfit]:
    """Find a setting that an engine does not follow, or not with this value."""
    known = support.settings
    for name, usual in RoleSettings() if known is not None else ():
        value = getattr(running, name)
        if value != usual and known is not None and not (name in known and (not known[name] or value in known[name])):
            yield str(RoleSettings().model_copy(update={name: value})), _values_taken(name, usual, known)


def _values_taken(name: str, usual: object, known: Mapping[str, tuple[object, ...]]) -> str:
    """Return which values of a setting an engine takes, as a hint."""
    values = known.get(name) or (usual,)
    texts = [" and ".join(each) or "none" if isinstance(each, tuple) else str(each) for each in values]
    return f"it runs {name}={', '.join(texts)}"


def _layout_misfits(layout: Layout, support: Support) -> Iterator[Misfit]:
    if any(getattr(layout, degree) > getattr(support, degree) for degree in DEGREES):
        data = "data of any degree" if support.data == MAX_RANKS else f"data={support.data}"
        rare = "".join(
            f", {name}={degree}" for name in DEGREES[3:] if 1 < (degree := getattr(support, name)) < MAX_RANKS
        )
        yield str(layout), f"it runs up to {data}, tensor={support.tensor}, pipeline={support.pipeline}{rare}"
    alone = (
        layout.data * layout.sequence == 1 and layout.sharding == "none"
    )  # one rank holds all, whatever that is called
    if layout.sharding not in support.sharding and not alone:
        yield f"sharding={layout.sharding}", f"it runs sharding={_listed(support.sharding)}"
    if layout.replicas > 1 and (layout.sharding != "full" or layout.data * layout.sequence % layout.replicas):
        ranks = layout.data * layout.sequence
        runs = f"whole copies divide the {ranks} ranks over which full sharding cuts a model"
        yield f"replicas={layout.replicas}", runs


def _expert_faults(placed: PlacedRole, role: Role, at: PlacedGraph) -> Iterator[FlowError]:
    """Find experts that are not spread evenly over the ranks that there are, or that the model does not have."""
    layout, experts = placed.layout, at.experts.get(role.param)
    ranks = layout.data * layout.sequence
    if ranks % layout.expert:
        yield PlanError.not_spread(at.where, placed.role, layout.expert, f"data and sequence give {ranks} ranks")
    if experts is not None and layout.expert > 1 and (not experts or experts % layout.expert):
        has = f"its model has {experts} experts" if experts else "its model has no experts"
        yield PlanError.not_spread(at.where, placed.role, layout.expert, has)


def _lag_faults(plan: Plan, graph: Graph, placed: PlacedRole, role: Role, where: str) -> Iterator[FlowError]:
    bound, reader = min(
        ((edge.at_most, node) for node in graph.all_nodes if node.name in role.nodes for edge in _read_by(node, role)),
        key=lambda each: each[0],
    )
    assumed = plan.assumed.staleness if plan.assumed is not None else None
    if placed.lag > max(bound, assumed or 0):
        yield PlanError.lags_too_far(where, role.name, placed.lag, reader.name, bound, str(reader.at))
    trained = next((each for each in plan.placed if each.role == f"{role.param}.train"), None)
    if trained is None:
        yield PlanError.lags_in_place(where, role.name, placed.lag, "nothing updates its weights")
    elif (trained.pool, trained.engine, trained.layout) == (placed.pool, placed.engine, placed.layout):
        yield PlanError.lags_in_place(where, role.name, placed.lag, f"it reads the very weights of {trained.role}")


def _read_by(node: Node, role: Role) -> Iterator[Edge]:
    for edge in models_read(node):
        root = carried_from(edge)
        if root is not None and root.name == role.param:
            yield edge


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
