"""Where each role lives, as data, and read from a plan. From what a search found: `search.block_placements`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowgraph.cluster import Device
from flowgraph.errors import ResourceError
from flowgraph.plan import Layout, Plan, Pool, Running
from flowgraph.roles import Role
from placements.hardware.topology import DeviceClass
from placements.step.role_costs import DeviceGroup
from placements.workload.planning_problem import PlanningProblem


@dataclass(frozen=True)
class RolePlacement:
    """Where a role lives: its pool, so many devices of a class, how it runs there, how old its weights may be."""

    role: Role
    pool: str
    seat: DeviceGroup
    engine: str
    layout: Layout
    running: Running
    shared: bool
    lag: int = 0


def homes_by(setting: PlanningProblem, plan: Plan) -> list[RolePlacement]:
    """Return where each role lives by a plan for this graph, on a cluster that may be another than the plan's.

    A pool whose devices are not there is taken to be of the first class of devices that has as many. Raises
    ResourceError if none has, or if it is not known how fast they are.
    """
    roles = {role.name: role for role in setting.roles}
    seats = {pool.name: _seat_of(setting, pool) for pool in plan.pools}
    draws = {each.pool for each in plan.placed if roles[each.role].use == "sample"}
    return [
        RolePlacement(
            roles[each.role],
            each.pool,
            seats[each.pool],
            each.engine,
            each.layout,
            each.running,
            each.pool in draws,
            each.lag,
        )
        for each in plan.placed
    ]


def _seat_of(setting: PlanningProblem, pool: Pool) -> DeviceGroup:
    """Return the seat of a pool by the very devices that it has, or by their number where they are not of one class."""
    found = {_class_of(setting, *place) for place in pool.devices}
    of = found.pop() if len(found) == 1 else None
    links = of.links(len(pool.devices)) if of is not None else None
    if of is None or links is None:
        return device_group_for(setting, pool.name, len(pool.devices))
    return DeviceGroup(of, len(pool.devices), links)


def _class_of(setting: PlanningProblem, node: str, index: int) -> DeviceClass | None:
    device = setting.cluster.device(node, index)
    return next((of for of in setting.classes if device is not None and node in of.nodes and _is_of(device, of)), None)


def _is_of(device: Device, of: DeviceClass) -> bool:
    return (device.kind, device.model, device.memory_bytes) == (of.kind, of.model, of.memory_bytes)


def device_group_for(setting: PlanningProblem, pool: str, devices: int) -> DeviceGroup:
    """Return a seat of so many devices; raises ResourceError where no class has as many of a known kind."""
    for of in setting.classes:
        links = of.links(devices) if of.count >= devices else None
        if links is not None:
            return DeviceGroup(of, devices, links)
    there = ", ".join(f"{of.count} {of.model or of.kind}" for of in setting.classes)
    raise ResourceError.not_here(f"pool `{pool}`", f"{devices} devices of one known kind", f"the cluster has {there}")


def in_order(setting: PlanningProblem, homes: Sequence[RolePlacement]) -> list[RolePlacement]:
    """Return where roles live, in the order of the flow's roles."""
    order = {role.name: place for place, role in enumerate(setting.roles)}
    return sorted(homes, key=lambda home: order[home.role.name])
