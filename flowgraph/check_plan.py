"""The laws of a placed graph: the structure, each role placed once, on pools and engines that can hold it.

And that what samples lags no further behind than the flow lets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from flowgraph import spec
from flowgraph.errors import FlowError, PlanError
from flowgraph.executors.layouts import COSTED, LAYOUTS, POOL_WIDE, Offer
from flowgraph.graph import Edge, Graph, Node, carried_from
from flowgraph.lowering.program import HOST
from flowgraph.plan import Placed, Plan, Running
from flowgraph.roles import Role, models_read, roles
from flowgraph.store import structure_hash

# What an engine must offer to run a role of each use.
VERBS = {"train": ("step", "token_stats"), "sample": ("sample",), "infer": ("token_stats",)}
DEGREES = ("data", "tensor", "pipeline", "expert", "sequence", "replicas")  # the ways to split or repeat a model


@dataclass(frozen=True)
class PlacedGraph:
    """What stands at the placed stage: a named graph and its plan; `where` is the plan's file.

    `experts` says how many a layer of each model has, where that is known: 0 for a model without.
    """

    graph: Graph
    plan: Plan
    where: str = "plan"
    experts: Mapping[str, int] = field(default_factory=dict[str, int])

    @cached_property
    def known(self) -> dict[str, Role]:
        """Give the roles of the graph by name."""
        return {role.name: role for role in roles(self.graph)}


def check_plan(plan: Plan, graph: Graph, where: str = "plan", *, experts: Mapping[str, int] | None = None) -> None:
    """Check a plan against a named graph; `where` is the plan's file, `experts` those of a layer of each model.

    Raises PlanError: the plan is of another structure; a role is missing, unknown or placed twice; a pool is unknown,
    is named twice, holds a device that is not there or that another pool holds; an engine is unknown or does not run
    the role, the layout or the devices; experts are spread over ranks or in parts that there are not; a role lags that
    may not, or that reads what is trained in place.
    """
    spec.check("placed", PlacedGraph(graph, plan, where, experts or {}))


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


def _placed_faults(plan: Plan, placed: Placed, role: Role, where: str) -> Iterator[FlowError]:
    pool = plan.pool(placed.pool)
    if pool is None:
        yield PlanError.unknown(where, f"pool of {placed.role}:", placed.pool, [each.name for each in plan.pools])
    offers = COSTED if plan.costed else LAYOUTS
    if placed.engine not in offers:
        yield PlanError.unknown(where, f"engine of {placed.role}:", placed.engine, offers)
    if pool is None or placed.engine not in offers:
        return
    needs, has = placed.layout.devices, len(pool.devices)
    if needs > has:
        yield PlanError.too_few_devices(where, placed.role, str(placed.layout), needs, has)
    yield from _engine_faults(placed, offers[placed.engine], role, where)
    yield from _layout_faults(placed, offers[placed.engine], where)
    for device in (plan.cluster.device(node, index) for node, index in pool.devices):
        if device is not None and device.kind not in offers[placed.engine].devices:
            runs = f"it runs on {_listed(offers[placed.engine].devices)}"
            yield PlanError.not_offered(where, placed.role, placed.engine, f"a {device.kind} of `{pool.name}`", runs)
    if plan.costed and needs < has:  # its seconds and bytes are forecast for all devices of the pool
        yield PlanError.too_few_devices(where, placed.role, str(placed.layout), needs, has)


def _engine_faults(placed: Placed, offer: Offer, role: Role, where: str) -> Iterator[FlowError]:
    layout = placed.layout
    lacks = [verb for verb in VERBS[role.use] if verb not in offer.verbs]
    if lacks:
        runs = f"it does {_listed(offer.verbs)}"
        yield PlanError.not_offered(where, placed.role, placed.engine, f"`{lacks[0]}`", runs)
    alone = [verb for verb in VERBS[role.use] if verb in offer.alone]
    if alone and layout.devices > 1:
        what = f"`{alone[0]}` on {layout.devices} devices"
        yield PlanError.not_offered(where, placed.role, placed.engine, what, "it does that on one device")
    yield from _running_faults(placed, offer, where)


def _running_faults(placed: Placed, offer: Offer, where: str) -> Iterator[FlowError]:
    """Find a setting that an engine does not go by, or not in this way."""
    heeds = offer.heeds
    for name, usual in Running() if heeds is not None else ():
        value = getattr(placed.running, name)
        if value == usual or (heeds is not None and name in heeds and (not heeds[name] or value in heeds[name])):
            continue
        what = str(Running().model_copy(update={name: value}))
        yield PlanError.not_offered(where, placed.role, placed.engine, what, _heeded(name, usual, heeds or {}))


def _heeded(name: str, usual: object, heeds: Mapping[str, tuple[object, ...]]) -> str:
    """Say which values of a setting an engine takes."""
    values = heeds.get(name) or (usual,)
    told = [" and ".join(each) or "none" if isinstance(each, tuple) else str(each) for each in values]
    return f"it runs {name}={', '.join(told)}"


def _layout_faults(placed: Placed, offer: Offer, where: str) -> Iterator[FlowError]:
    layout = placed.layout
    if any(getattr(layout, degree) > getattr(offer, degree) for degree in DEGREES):
        data = "data of any degree" if offer.data == POOL_WIDE else f"data={offer.data}"
        rare = "".join(f", {name}={degree}" for name in DEGREES[3:] if 1 < (degree := getattr(offer, name)) < POOL_WIDE)
        runs = f"it runs up to {data}, tensor={offer.tensor}, pipeline={offer.pipeline}{rare}"
        yield PlanError.not_offered(where, placed.role, placed.engine, str(layout), runs)
    if layout.sharding not in offer.sharding:
        runs = f"it runs sharding={_listed(offer.sharding)}"
        yield PlanError.not_offered(where, placed.role, placed.engine, f"sharding={layout.sharding}", runs)
    if layout.replicas > 1 and (layout.sharding != "full" or layout.data * layout.sequence % layout.replicas):
        runs = f"whole copies divide the {layout.data * layout.sequence} ranks over which full sharding cuts a model"
        yield PlanError.not_offered(where, placed.role, placed.engine, f"replicas={layout.replicas}", runs)


def _expert_faults(placed: Placed, role: Role, at: PlacedGraph) -> Iterator[FlowError]:
    """Find experts that are not spread evenly over the ranks that there are, or that the model does not have."""
    layout, experts = placed.layout, at.experts.get(role.param)
    ranks = layout.data * layout.sequence
    if ranks % layout.expert:
        yield PlanError.not_spread(at.where, placed.role, layout.expert, f"data and sequence give {ranks} ranks")
    if experts is not None and layout.expert > 1 and (not experts or experts % layout.expert):
        has = f"its model has {experts} experts" if experts else "its model has no experts"
        yield PlanError.not_spread(at.where, placed.role, layout.expert, has)


def _lag_faults(plan: Plan, graph: Graph, placed: Placed, role: Role, where: str) -> Iterator[FlowError]:
    bound, reader = min(
        ((edge.at_most, node) for node in graph.all_nodes if node.name in role.nodes for edge in _read_by(node, role)),
        key=lambda each: each[0],
    )
    assumed = plan.assumed.staleness if plan.costed and plan.assumed is not None else None
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
