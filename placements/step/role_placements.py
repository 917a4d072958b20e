"""The pool and settings of each role, read from a plan. From a search: `search.plan_builder`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowgraph.analysis.roles import Role
from flowgraph.cluster.plan import Layout, Plan, Pool, RoleSettings
from flowgraph.errors import ResourceError
from flowgraph.language.graph import Graph
from placements.hardware.topology import DeviceClass
from placements.step.role_costs import DeviceGroup
from placements.workload.planning_problem import PlanningProblem


@dataclass(frozen=True)
class RolePlacement:
    """One role on a pool: the pool's devices (`group`), how the role runs there, its lag, and how far it is ahead.

    `shared` is True if a role on the pool generates responses. `lag` is in updates, `ahead` and `behind` in steps. A
    role that samples hands out its groups in `chunks`.
    """

    role: Role
    pool: str
    group: DeviceGroup
    engine: str
    layout: Layout
    running: RoleSettings
    shared: bool
    lag: int = 0
    ahead: int = 0
    chunks: int = 1
    behind: int = 0

    def every(self, graph: Graph) -> int:
        """Return the number of steps from one sync of the role's weights to the next, in a run of this graph."""
        return max(1, self.lag // max(1, graph.updates(self.role.param)) - self.ahead - self.behind + 1)


def homes_of_plan(problem: PlanningProblem, plan: Plan) -> list[RolePlacement]:
    """Return the placement of each role of a plan, on a cluster that may differ from the plan's.

    If the cluster lacks devices of a pool, or they are of several classes or have links of unknown speed, the first
    class of equal devices with enough of them is used. Raises ResourceError if no class has enough devices with links
    of known speed, and KeyError for a role that the problem does not have.
    """
    roles = {role.name: role for role in problem.roles}
    groups = {pool.name: _group_of(problem, pool) for pool in plan.pools}
    sampling = {placed.pool for placed in plan.placed if roles[placed.role].use == "sample"}
    return [
        RolePlacement(
            roles[placed.role],
            placed.pool,
            groups[placed.pool],
            placed.engine,
            placed.layout,
            placed.running,
            placed.pool in sampling,
            placed.lag,
            placed.ahead,
            placed.chunks,
            placed.behind,
        )
        for placed in plan.placed
    ]


def _group_of(problem: PlanningProblem, pool: Pool) -> DeviceGroup:
    classes = set[DeviceClass | None]()
    for node, index in pool.devices:
        device = problem.cluster.device(node, index)
        kind = None if device is None else (device.kind, device.model, device.memory_bytes)
        alike = (of for of in problem.classes if (of.kind, of.model, of.memory_bytes) == kind)
        classes.add(next((of for of in alike if node in of.nodes), None))
    device_class = classes.pop() if len(classes) == 1 else None
    links = device_class.links(len(pool.devices)) if device_class is not None else None
    if device_class is None or links is None:
        return device_group_for(problem, pool.name, len(pool.devices))
    return DeviceGroup(device_class, len(pool.devices), links)


def device_group_for(problem: PlanningProblem, pool: str, devices: int) -> DeviceGroup:
    """Return a group of `devices` devices of the first class that has enough and whose links have known speeds.

    `pool` is the pool's name for errors. Raises ResourceError without such a class.
    """
    for of in problem.classes:
        links = of.links(devices) if of.count >= devices else None
        if links is not None:
            return DeviceGroup(of, devices, links)
    counts = ", ".join(f"{of.count} {of.model or of.kind}" for of in problem.classes)
    raise ResourceError.not_here(f"pool `{pool}`", f"{devices} devices of one known kind", f"the cluster has {counts}")


def in_order(problem: PlanningProblem, homes: Sequence[RolePlacement]) -> list[RolePlacement]:
    """Return the placements sorted in the order of the flow's roles."""
    order = {role.name: place for place, role in enumerate(problem.roles)}
    return sorted(homes, key=lambda home: order[home.role.name])
