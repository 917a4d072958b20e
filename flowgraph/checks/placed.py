"""The laws of a placed graph: its structure, each role placed once, on a fitting pool and engine, within its lag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowgraph.analysis.facts import reshaped_by
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.placed_graph import PlacedGraph
from flowgraph.analysis.roles import Role, models_read
from flowgraph.cluster.plan import PlacedRole, Plan, RoleSettings
from flowgraph.engines.capabilities import MAX_RANKS, EngineCapabilities, Support
from flowgraph.engines.table import ENGINES, VERBS, engines_for
from flowgraph.errors import FlowError, PlanError
from flowgraph.language.graph import Graph, Node, carried_from
from flowgraph.lowering.program import HOST

DEGREES = ("data", "tensor", "pipeline", "expert", "sequence", "replicas")
"""The ways to split or repeat a model."""

OLDER, OVERLAP = "weights that are older than the flow allows", "steps that overlap"
"""Parts of a plan that can only be forecast: what `--staleness` asks for where the flow has no `stale(…)`, and steps
that overlap without a role that works ahead, as older plans have them."""


def check_plan_matches_graph(placed: PlacedGraph) -> Iterator[FlowError]:
    """Yield an error if the plan was made for a graph of another structure."""
    plan, expected = placed.plan, structure_hash(placed.graph)
    if plan.structure_hash != expected:
        yield PlanError.other_graph(placed.where, plan.flow, plan.structure_hash, placed.graph.name, expected)


def check_pools_hold_devices(placed: PlacedGraph) -> Iterator[FlowError]:
    """Yield an error for each pool name that is used twice, and each pool device that is unknown or in another pool."""
    yield from check_pools(placed.plan, placed.where)


def check_pools(plan: Plan, where: str) -> Iterator[FlowError]:
    """Yield an error for each fault in the pools of a plan, for any flow; `where` is the plan's file.

    Faults are a pool name that is used twice, a device that the plan's cluster lacks, and a device in two pools.
    """
    names, holders = set[str](), dict[tuple[str, int], str]()
    for pool in plan.pools:
        if pool.name in names:
            yield PlanError.twice(where, "pool", pool.name, "named")
        names.add(pool.name)
        for node, index in pool.devices:
            if plan.cluster.device(node, index) is None:
                devices = [f"{machine.name}/{i}" for machine in plan.cluster.nodes for i in range(len(machine.devices))]
                yield PlanError.unknown(where, f"device of pool `{pool.name}`:", f"{node}/{index}", devices)
            if (node, index) in holders:
                yield PlanError.shared_device(where, f"{node}/{index}", holders[node, index], pool.name)
            holders[node, index] = pool.name


def check_forecast(plan: Plan, where: str) -> Iterator[FlowError]:
    """Yield an error for each unknown pool or role in a plan's memory or step forecast; `where` is the plan's file."""
    pools, roles = [pool.name for pool in plan.pools], [placed.role for placed in plan.placed]
    for forecast in plan.forecast:
        if forecast.pool not in pools:
            yield PlanError.unknown(where, "pool of a forecast:", forecast.pool, pools)
        for role in dict.fromkeys(peak.role for peak in forecast.peaks if peak.role not in roles):
            yield PlanError.unknown(where, f"role of the forecast of {forecast.pool}:", role, roles)
    for task in plan.step.tasks if plan.step is not None else ():
        for pool in task.pools:
            if pool not in (*pools, HOST):
                yield PlanError.unknown(where, f"pool of the task {task.name}:", pool, [*pools, HOST])


def check_roles_are_placed_once(placed: PlacedGraph) -> Iterator[FlowError]:
    """Yield an error for each placed role that the graph lacks or that is placed twice, and one for all missing roles.

    Roles of models that the plan leaves out (`assumed.without`) need not be placed.
    """
    seen = set[str]()
    for role in (row.role for row in placed.plan.placed):
        if role not in placed.roles:
            yield PlanError.unknown(placed.where, "role", role, placed.roles)
        elif role in seen:
            yield PlanError.twice(placed.where, "role", role, "placed")
        seen.add(role)
    excluded = placed.plan.assumed.without if placed.plan.assumed is not None else ()
    missing = [name for name, role in placed.roles.items() if name not in seen and role.param not in excluded]
    if missing:
        yield PlanError.not_placed(placed.where, missing)


def check_engines_run_roles(placed: PlacedGraph) -> Iterator[FlowError]:
    """Yield an error for each fault of a role that its engine cannot run as the plan places it.

    Faults: an unknown pool or engine; too few devices in the pool; a use, layout, setting or kind of device that the
    engine does not support; sampling settings with which the engine would sample another distribution; an expert degree
    that does not evenly divide the ranks and the model's experts. Roles that the graph lacks are skipped.
    """
    for row in placed.plan.placed:
        role = placed.roles.get(row.role)
        if role is None:
            continue
        yield from _engine_faults(placed.plan, row, role, placed.where)
        yield from _sampling_faults(placed, row, role)
        layout, experts = row.layout, placed.experts.get(role.param)
        ranks = layout.data * layout.sequence
        if ranks % layout.expert:
            has = f"data and sequence give {ranks} ranks"
            yield PlanError.not_spread(placed.where, row.role, layout.expert, has)
        if experts is not None and layout.expert > 1 and (not experts or experts % layout.expert):
            has = f"its model has {experts or 'no'} experts"
            yield PlanError.not_spread(placed.where, row.role, layout.expert, has)


def _engine_faults(plan: Plan, placed: PlacedRole, role: Role, where: str) -> Iterator[FlowError]:
    pool = plan.pool(placed.pool)
    if pool is None:
        yield PlanError.unknown(where, f"pool of {placed.role}:", placed.pool, [pool.name for pool in plan.pools])
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


def _sampling_faults(placed: PlacedGraph, row: PlacedRole, role: Role) -> Iterator[FlowError]:
    engine = ENGINES.get(row.engine)
    if engine is None or role.use != "sample":
        return
    for node in placed.graph.all_nodes:
        if node.op.kind == "generate" and node.name in role.nodes:
            settings = dict(reshaped_by(node))
            if what := engine.other_distribution(settings):
                names = engines_for("sample", supported=True)
                fits = [name for name in names if not ENGINES[name].other_distribution(settings)]
                hint = f"these sample so: {', '.join(fits)} (--engine sample={fits[-1]})"
                yield PlanError.not_offered(placed.where, node.name, row.engine, what, hint)


def misread_settings(graph: Graph) -> Mapping[str, str]:
    """Return, by engine, the sampling settings of a graph, as text, with which the engine samples another distribution.

    Engines that sample as asked are left out; of several nodes with such settings, the first is reported.
    """
    sampled = [dict(reshaped_by(node)) for node in graph.all_nodes if node.op.kind == "generate"]
    misread = {name: next(filter(None, map(ENGINES[name].other_distribution, sampled)), "") for name in ENGINES}
    return {name: settings for name, settings in misread.items() if settings}


def unsupported_parts(plan: Plan) -> list[str]:
    """Return the parts of a plan that can be forecast and exported but not run here, as phrases, in the plan's order.

    These are engines without an executor, layouts and settings that the executor does not support, weights that are
    older than the flow allows, steps that overlap in the forecast alone, and models that are left out. Unknown
    engines, and what an engine cannot even forecast, are not listed: `check_plan` reports these.
    """
    names = list[str]()
    for placed in plan.placed:
        engine, use = ENGINES.get(placed.engine), placed.role.rpartition(".")[2]
        if engine is None or use not in VERBS:
            continue
        if engine.supported is None:
            names.append(f"`{placed.engine}` for {placed.role}")
        elif next(_misfits(plan, placed, engine, engine.modelled, use), None) is None:
            misfits = _misfits(plan, placed, engine, engine.supported, use)
            names += [f"{what} on `{placed.engine}` for {placed.role}" for what, _ in misfits]
    if plan.assumed is not None:
        overlap = any(task.shift for task in plan.step.tasks) if plan.step is not None else False
        names += [OLDER] if plan.assumed.staleness and any(placed.lag for placed in plan.placed) else []
        names += [OVERLAP] if overlap and not any(placed.ahead for placed in plan.placed) else []
        names += [f"a run without `{name}`" for name in plan.assumed.without]
    return names


def refuse_unsupported(plan: Plan, where: str) -> None:
    """Raise PlanError if a plan contains anything that cannot be run here; `where` is the plan's file."""
    if names := unsupported_parts(plan):
        raise PlanError.not_supported(where, plan.flow, names)


Misfit = tuple[str, str]
"""What a plan asks of an engine that the engine lacks, and what the engine runs instead."""


def _misfits(
    plan: Plan, placed: PlacedRole, engine: EngineCapabilities, support: Support, use: str
) -> Iterator[Misfit]:
    layout, pool = placed.layout, plan.pool(placed.pool)
    lacks = [verb for verb in VERBS[use] if verb not in engine.verbs]
    if lacks:
        yield f"`{lacks[0]}`", f"it supports {_listed(engine.verbs)}"
    single = [verb for verb in VERBS[use] if verb in support.single_device]
    if single and layout.devices > 1:
        yield f"`{single[0]}` on {layout.devices} devices", "it does that on one device"
    for name, default in RoleSettings() if support.settings is not None else ():
        value, values = getattr(placed.running, name), (support.settings or {}).get(name)
        if value != default and (values is None or (values and value not in values)):
            texts = [" and ".join(v) or "none" if isinstance(v, tuple) else str(v) for v in values or (default,)]
            yield str(RoleSettings().model_copy(update={name: value})), f"it runs {name}={', '.join(texts)}"
    ranks = layout.data * layout.sequence
    if any(getattr(layout, degree) > getattr(support, degree) for degree in DEGREES):
        data = "data of any degree" if support.data == MAX_RANKS else f"data={support.data}"
        rare = ((name, getattr(support, name)) for name in DEGREES[3:])
        rest = "".join(f", {name}={degree}" for name, degree in rare if 1 < degree < MAX_RANKS)
        yield str(layout), f"it runs up to {data}, tensor={support.tensor}, pipeline={support.pipeline}{rest}"
    unsharded = ranks == 1 and layout.sharding == "none"  # one rank holds the whole model, whatever that is called
    if layout.sharding not in support.sharding and not unsharded:
        yield f"sharding={layout.sharding}", f"it runs sharding={_listed(support.sharding)}"
    if layout.replicas > 1 and (layout.sharding != "full" or ranks % layout.replicas):
        runs = f"whole copies divide the {ranks} ranks over which full sharding cuts a model"
        yield f"replicas={layout.replicas}", runs
    for device in (plan.cluster.device(node, index) for node, index in (pool.devices if pool is not None else ())):
        if device is not None and device.kind not in support.devices:
            yield f"a {device.kind} of `{placed.pool}`", f"it runs on {_listed(support.devices)}"
            return


def check_lags_are_allowed(placed: PlacedGraph) -> Iterator[FlowError]:
    """Yield an error for each role that lags more updates than both the flow and the plan's assumed staleness allow.

    Also an error: a role that lags although nothing trains its weights, or although it shares the weights that are
    trained; and a role that works further ahead than it lags, unless nothing trains its weights.
    """
    plan, where = placed.plan, placed.where
    homes = {row.role: row.home for row in plan.placed}
    staleness = (plan.assumed.staleness if plan.assumed is not None else None) or 0
    for row in plan.placed:
        role = placed.roles.get(row.role)
        if role is None or not (row.lag or row.ahead):
            continue
        updates = placed.graph.updates(role.param)
        if row.ahead * updates > row.lag:
            yield PlanError.ahead_of_lag(where, role.name, row.ahead, row.lag, updates)
        if not row.lag:
            continue
        bound, reader = allowed_lag(placed.graph, role)
        if row.lag > max(bound, staleness):
            yield PlanError.lags_too_far(
                where,
                role.name,
                row.lag,
                reader.name,
                bound,
                str(reader.at),
                ahead=row.ahead,
                behind=row.behind,
                updates=updates,
            )
        trained = f"{role.param}.train"
        if trained not in homes:
            yield PlanError.lags_in_place(where, role.name, row.lag, "nothing updates its weights")
        elif homes[trained] == homes[row.role]:
            yield PlanError.lags_in_place(where, role.name, row.lag, f"it reads the weights of the trainer, {trained}")


def allowed_lag(graph: Graph, role: Role) -> tuple[int, Node]:
    """Return the most updates by which the weights that a role reads may be old in a flow, and the node that sets this.

    The node is the reader with the smallest bound, the first of several.
    """
    readers = [node for node in graph.all_nodes if node.name in role.nodes]
    reads = ((node, edge, carried_from(edge)) for node in readers for edge in models_read(node))
    bounds = ((edge.at_most, node) for node, edge, root in reads if root is not None and root.name == role.param)
    return min(bounds, key=lambda read: read[0])


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
