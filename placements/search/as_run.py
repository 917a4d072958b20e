"""The plan of another system's run: its forecast, whether it fits, and other layouts that may fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from flowgraph.analysis.roles import Use
from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import Layout, Plan, PlanAssumptions, RoleSettings
from flowgraph.errors import ResourceError
from placements.memory.footprint import room_bytes, total_bytes
from placements.search.infeasibility import overflows
from placements.search.plan_builder import plan_from
from placements.search.role_options import RoleOptions
from placements.step.overlap import with_overlap
from placements.step.role_costs import footprint
from placements.step.role_placements import RolePlacement, device_group_for, homes_of_plan
from placements.workload.planning_problem import PlanningProblem

MOST_TRIED = 200  # layouts of the trained role, fastest first, where the plan's own does not fit as a system runs it


class _SharedDevices(Protocol):
    @property
    def roles(self) -> Sequence[str]: ...
    @property
    def devices(self) -> int: ...


class _SystemRun(Protocol):
    @property
    def parts(self) -> Sequence[_SharedDevices]: ...
    @property
    def engines(self) -> Mapping[Use, str]: ...
    @property
    def layouts(self) -> Mapping[str, Layout]: ...
    @property
    def running(self) -> Mapping[str, RoleSettings]: ...
    @property
    def lag(self) -> int: ...


def plan_of_run(problem: PlanningProblem, run: _SystemRun, assumed: PlanAssumptions) -> Plan:
    """Return the run of another system as a plan with its forecast; `assumed` is stored in the plan.

    Engines and staleness are those of the problem; those of `run` are not read. A role without a layout in `run` is
    fully sharded over its devices, and one without settings uses bfloat16. Raises ResourceError if the cluster has no
    devices for a pool.
    """
    return plan_from(problem, _homes(problem, run), assumed)


def forecast_run(
    problem: PlanningProblem, run: _SystemRun, assumed: PlanAssumptions
) -> tuple[Plan | None, tuple[str, ...]]:
    """Return the run of another system as a plan with its forecast, and sentences that say why the plan does not fit.

    The engines and the staleness of the run replace those of the problem and of `assumed`, which is stored in the plan;
    if the staleness of the run is 0, `assumed` keeps its own. The sentences are about memory of devices and hosts, and
    about rows that a cache cannot hold; there are none if the plan fits. If the cluster does not have the devices of
    its pools, the plan is None, and the only sentence says so.
    """
    problem = replace(problem, engines=dict(run.engines), staleness=run.lag)
    update = {"engines": dict(run.engines), "staleness": run.lag or assumed.staleness}
    try:
        homes = _homes(problem, run)
        plan = plan_from(problem, homes, assumed.model_copy(update=update))
    except ResourceError as error:
        needs, has = sum(part.devices for part in run.parts), sum(of.count for of in problem.classes)
        return None, (f"it takes {needs} devices, there are {has}" if needs > has else error.what,)
    return plan, tuple(_faults(problem, homes, plan))


def other_layouts(problem: PlanningProblem, plan: Plan) -> Iterator[Plan]:
    """Yield copies of a plan in which the trained policy has each of its possible layouts, fastest first.

    The policy is the first role of the plan that trains weights from which another role samples. At most the 200
    fastest layouts are used, of those with which its training fits in a device's memory; that of `plan` may be among
    them. The same layouts follow again with all roles on shared pools set to sleep while others work, and without
    offloading. Yields nothing if no role trains weights that another role samples from. The copies keep the forecast of
    `plan`, so it must be made again. Raises ResourceError if the problem's cluster has no devices for a pool.
    """
    synced = set(problem.synced.values())
    home = next((home for home in homes_of_plan(problem, plan) if home.role.name in synced), None)
    if home is None:
        return
    group, room = home.group, room_bytes(home.group.of.memory_bytes, home.group.of.kind)
    options = [
        (option.layout, option.running)
        for option in RoleOptions(problem, home.role, group).on_devices
        if footprint(problem, home.role, group, option.engine, option.layout, option.running).peak_bytes <= room
    ]
    pools = [role.pool for role in plan.placed]
    put_away = {"sleeps": True, "offload": ()}  # of what shares a pool, while others work
    for asleep in (False, True):
        for layout, running in options[:MOST_TRIED]:
            changes = {"layout": layout, "running": running.model_copy(update={"sleeps": home.shared})}
            placed = [role.model_copy(update=changes) if role.role == home.role.name else role for role in plan.placed]
            if asleep:
                placed = [
                    role.model_copy(update={"running": role.running.model_copy(update=put_away)})
                    if pools.count(role.pool) > 1
                    else role
                    for role in placed
                ]
            yield plan.model_copy(update={"placed": tuple(placed)})


def _homes(problem: PlanningProblem, run: _SystemRun) -> list[RolePlacement]:
    homes = list[RolePlacement]()
    roles = {role.name: role for role in problem.roles}
    for number, part in enumerate(run.parts):
        names = [name for name in part.roles if name in roles]
        shared = any(roles[name].use == "sample" for name in names)
        group = device_group_for(problem, f"pool{number}", part.devices)
        for name in names:
            home = RolePlacement(
                role=roles[name],
                pool=f"pool{number}",
                group=group,
                engine=problem.engines_of(roles[name].use)[0],
                layout=run.layouts.get(name) or Layout(data=part.devices, sharding="full"),
                running=run.running.get(name) or RoleSettings(precision="bfloat16"),
                shared=shared,
                lag=problem.lag_of(roles[name]),
            )
            homes.append(home)
    return with_overlap(problem, homes)


def _faults(problem: PlanningProblem, homes: Sequence[RolePlacement], plan: Plan) -> Iterator[str]:
    for error in overflows(plan, problem, plan.flow):
        yield error.what.removeprefix(f"no placement for {plan.flow} on {plan.flow}: ")
    for pool in dict.fromkeys(home.pool for home in homes):
        in_pool = [home for home in homes if home.pool == pool]
        of = in_pool[0].group.of
        room = of.host_memory_bytes // of.node_devices
        needs = 0
        for home in in_pool:
            bytes_of = footprint(problem, home.role, home.group, home.engine, home.layout, home.running)
            needs += total_bytes(bytes_of.host) + home.running.sleeps * total_bytes(bytes_of.asleep_host)
        if needs > room:
            what = f"`{pool}` keeps {show_bytes(needs)} in host memory for each device"
            yield f"{what}, {show_bytes(needs - room)} more than its share of {show_bytes(room)}"
    unknown = [task.name for task in plan.step.tasks if task.seconds is None] if plan.step is not None else []
    if unknown:
        yield f"the cache has no room for the longest row, or its speed is not known: {', '.join(unknown)}"
