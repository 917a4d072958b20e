"""Check that a plan is for a graph: the structure, each role placed once, on pools and engines that can hold it.

And that what samples lags no further behind than the flow lets it.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowgraph.errors import PlanError
from flowgraph.executors.layouts import LAYOUTS, POOL_WIDE
from flowgraph.graph import Edge, Graph, Node, carried_from
from flowgraph.plan import Placed, Plan, Pool
from flowgraph.roles import Role, models_read, roles
from flowgraph.store import structure_hash

# What an engine must offer to run a role of each use.
VERBS = {"train": ("step", "token_stats"), "sample": ("sample",), "infer": ("token_stats",)}


def check_plan(plan: Plan, graph: Graph, where: str = "plan") -> None:
    """Check a plan against a named graph; `where` is the plan's file.

    Raises PlanError: the plan is of another structure; a role is missing, unknown or placed twice; a pool is unknown,
    is named twice, holds a device that is not there or that another pool holds; an engine is unknown or does not run
    the role, the layout or the devices; a role lags that may not, or that reads what is trained in place.
    """
    expected = structure_hash(graph)
    if plan.structure_hash != expected:
        raise PlanError.other_graph(where, plan.flow, plan.structure_hash, graph.name, expected)
    _check_pools(plan, where)
    known = {role.name: role for role in roles(graph)}
    seen = set[str]()
    for placed in plan.placed:
        if placed.role not in known:
            raise PlanError.unknown(where, "role", placed.role, known)
        if placed.role in seen:
            raise PlanError.twice(where, "role", placed.role, "placed")
        seen.add(placed.role)
        _check_placed(plan, placed, known[placed.role], where)
    missing = [name for name in known if name not in seen]
    if missing:
        raise PlanError.not_placed(where, missing)
    for placed in plan.placed:
        if placed.lag:
            _check_lag(plan, graph, placed, known[placed.role], where)


def _check_pools(plan: Plan, where: str) -> None:
    names, holders = set[str](), dict[tuple[str, int], str]()
    for pool in plan.pools:
        if pool.name in names:
            raise PlanError.twice(where, "pool", pool.name, "named")
        names.add(pool.name)
        for node, index in pool.devices:
            if plan.cluster.device(node, index) is None:
                there = [f"{each.name}/{i}" for each in plan.cluster.nodes for i in range(len(each.devices))]
                raise PlanError.unknown(where, f"device of pool `{pool.name}`:", f"{node}/{index}", there)
            if (node, index) in holders:
                raise PlanError.shared_device(where, f"{node}/{index}", holders[node, index], pool.name)
            holders[node, index] = pool.name


def _check_placed(plan: Plan, placed: Placed, role: Role, where: str) -> None:
    pool = plan.pool(placed.pool)
    if pool is None:
        raise PlanError.unknown(where, f"pool of {placed.role}:", placed.pool, [each.name for each in plan.pools])
    if placed.engine not in LAYOUTS:
        raise PlanError.unknown(where, f"engine of {placed.role}:", placed.engine, LAYOUTS)
    needs, has = placed.layout.devices, len(pool.devices)
    if needs > has:
        raise PlanError.too_few_devices(where, placed.role, str(placed.layout), needs, has)
    _check_engine(plan, placed, role, pool, where)


def _check_engine(plan: Plan, placed: Placed, role: Role, pool: Pool, where: str) -> None:
    offer, layout = LAYOUTS[placed.engine], placed.layout
    lacks = [verb for verb in VERBS[role.use] if verb not in offer.verbs]
    if lacks:
        runs = f"it does {_listed(offer.verbs)}"
        raise PlanError.not_offered(where, placed.role, placed.engine, f"`{lacks[0]}`", runs)
    alone = [verb for verb in VERBS[role.use] if verb in offer.alone]
    if alone and layout.devices > 1:
        what = f"`{alone[0]}` on {layout.devices} devices"
        raise PlanError.not_offered(where, placed.role, placed.engine, what, "it does that on one device")
    if layout.data > offer.data or layout.tensor > offer.tensor or layout.pipeline > offer.pipeline:
        data = "data of any degree" if offer.data == POOL_WIDE else f"data={offer.data}"
        runs = f"it runs up to {data}, tensor={offer.tensor}, pipeline={offer.pipeline}"
        raise PlanError.not_offered(where, placed.role, placed.engine, str(layout), runs)
    if layout.sharding not in offer.sharding:
        runs = f"it runs sharding={_listed(offer.sharding)}"
        raise PlanError.not_offered(where, placed.role, placed.engine, f"sharding={layout.sharding}", runs)
    for device in (plan.cluster.device(node, index) for node, index in pool.devices):
        if device is not None and device.kind not in offer.devices:
            runs = f"it runs on {_listed(offer.devices)}"
            raise PlanError.not_offered(where, placed.role, placed.engine, f"a {device.kind} of `{pool.name}`", runs)


def _check_lag(plan: Plan, graph: Graph, placed: Placed, role: Role, where: str) -> None:
    bound, reader = min(
        ((edge.at_most, node) for node in graph.all_nodes if node.name in role.nodes for edge in _read_by(node, role)),
        key=lambda each: each[0],
    )
    if placed.lag > bound:
        raise PlanError.lags_too_far(where, role.name, placed.lag, reader.name, bound, str(reader.at))
    trained = next((each for each in plan.placed if each.role == f"{role.param}.train"), None)
    if trained is None:
        raise PlanError.lags_in_place(where, role.name, placed.lag, "nothing updates its weights")
    if (trained.pool, trained.engine, trained.layout) == (placed.pool, placed.engine, placed.layout):
        raise PlanError.lags_in_place(where, role.name, placed.lag, f"it reads the very weights of {trained.role}")


def _read_by(node: Node, role: Role) -> Iterator[Edge]:
    for edge in models_read(node):
        root = carried_from(edge)
        if root is not None and root.name == role.param:
            yield edge


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
