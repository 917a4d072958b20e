"""From a solution of the search to a plan: the pool of each role, the devices of each pool, and the step's forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.cluster.plan import PlacedRole, Plan, PlanAssumptions, Pool, StepForecast
from flowgraph.errors import ResourceError
from placements.hardware.topology import PoolDemand, realise
from placements.memory.footprint import total_bytes
from placements.search.pool_options import pool_option_of
from placements.solver.problem import BlockOption
from placements.step.chunks import with_chunks
from placements.step.memory_forecast import footprint_of, forecast_pool, peaks_of
from placements.step.overlap import copy_of, overflowing, with_overlap
from placements.step.role_placements import RolePlacement, homes_of_plan, in_order
from placements.step.step_forecast import period_of, step_of
from placements.workload.planning_problem import PlanningProblem

ALL = "all"  # the name of the one pool that all roles share


@dataclass(frozen=True)
class RankedPlan:
    """One solution of a search: `blocks` are the roles of each pool with the chosen option.

    `bound` is a lower bound of the objective's value for the simulated step, and `bound_s` of the seconds of that step.
    """

    problem: PlanningProblem
    blocks: tuple[BlockOption, ...]
    bound: float
    bound_s: float

    @cached_property
    def homes(self) -> list[RolePlacement]:
        """Return the placement of each role: pool, devices, engine, layout and settings."""
        return homes_of_blocks(self.problem, self.blocks)

    @cached_property
    def step(self) -> StepForecast:
        """Return the forecast of a step: its tasks, the waits between them, and its period in seconds."""
        return step_of(self.problem, self.homes)

    @cached_property
    def step_s(self) -> float:
        """Return the simulated seconds from one step to the next; `bound_s` if they are not known."""
        simulated_s = period_of(self.problem, self.homes)
        return self.bound_s if simulated_s is None else simulated_s

    @property
    def devices(self) -> int:
        """Return the number of devices of all pools."""
        return sum(sum(option.devices) for _, option in self.blocks)

    @property
    def cost_per_step(self) -> float:
        """Return the cost of a step, in the currency of the cluster's prices; devices without a price cost 0."""
        return self.step_s * sum(option.cost for _, option in self.blocks)

    @property
    def disaggregated(self) -> bool:
        """Return whether no pool has both training and sampling roles."""
        uses = [{self.problem.roles[place].use for place in block} for block, _ in self.blocks]
        return not any({"train", "sample"} <= pool for pool in uses)

    def parts(self) -> tuple[tuple[str, ...], ...]:
        """Return the names of the roles on each pool, one tuple for each pool."""
        return tuple(tuple(self.problem.roles[place].name for place in sorted(block)) for block, _ in self.blocks)

    def plan(self, assumed: PlanAssumptions | None = None, pins: Mapping[str, str] | None = None) -> Plan:
        """Return this solution as a plan with devices for each pool and a forecast; `assumed` is stored in the plan.

        `pins` maps roles to names for their pools; other pools are named `pool0`, `pool1` and so on (a single one
        `all`). Raises ResourceError if the cluster cannot hold these pools with each tensor group inside one NVLink
        domain.
        """
        return plan_from(self.problem, homes_of_blocks(self.problem, self.blocks, pins), assumed)


def homes_of_blocks(
    problem: PlanningProblem, blocks: Sequence[BlockOption], pins: Mapping[str, str] | None = None
) -> list[RolePlacement]:
    """Return the placement of each role, pool by pool in the order of their first roles.

    `blocks` are sets of roles with the chosen option for each. `pins` maps roles to pool names. A pool gets the name
    that its first pinned role is pinned to; the others are `pool0`, `pool1` and so on, except names in use. A single
    pool for all roles is called `all`. A role alone on its pool never sleeps, and a role that reads the same copy of
    weights that another role trains has no lag. Steps overlap as far as the problem's staleness allows and makes them
    shorter. If the problem asks for it and a step gets shorter, groups of responses are passed on in chunks while
    others are still sampled.
    """
    pins = pins or {}
    numbered = (f"pool{number}" for number in range(len(blocks) + len(pins)))
    free = (name for name in ([ALL] if len(blocks) == 1 else numbered) if name not in pins.values())
    homes = list[RolePlacement]()
    for block, option in sorted(blocks, key=lambda block: min(block[0])):
        roles, pooled = [problem.roles[place] for place in sorted(block)], pool_option_of(option)
        pinned = [pins[role.name] for role in roles if role.name in pins]
        pool, shared = pinned[0] if pinned else next(free), any(role.use == "sample" for role in roles)
        for role, chosen in zip(roles, pooled.roles, strict=True):
            running = chosen.running if len(roles) > 1 else chosen.running.model_copy(update={"sleeps": False})
            place = role, pool, pooled.group, chosen.engine, chosen.layout
            homes.append(RolePlacement(*place, running, shared, problem.lag_of(role)))
    # Weights that a role reads in the very copy that another trains cannot lag.
    trained = {copy_of(home) for home in homes if home.role.use == "train"}
    homes = [replace(home, lag=0) if copy_of(home) in trained else home for home in homes]
    return with_chunks(problem, with_overlap(problem, homes))


def plan_from(problem: PlanningProblem, homes: Sequence[RolePlacement], assumed: PlanAssumptions | None = None) -> Plan:
    """Return a plan with these placements of roles, with devices for each pool, and a forecast of bytes and seconds.

    `assumed` is stored in the plan. Raises ResourceError if the cluster cannot hold the pools.
    """
    placed = [
        PlacedRole(
            role=home.role.name,
            pool=home.pool,
            engine=home.engine,
            layout=home.layout,
            lag=home.lag,
            ahead=home.ahead,
            chunks=home.chunks,
            behind=home.behind,
            running=home.running,
        )
        for home in in_order(problem, homes)
    ]
    plan = Plan(
        flow=problem.graph.name,
        structure_hash=structure_hash(problem.graph),
        cluster=problem.cluster,
        pools=_pools(problem, homes),
        placed=tuple(placed),
        forecast=(),
        step=None,
        assumed=assumed,
    )
    return _with_forecast(problem, plan, homes)


def forecast_again(problem: PlanningProblem, plan: Plan, assumed: PlanAssumptions | None = None) -> Plan:
    """Return a copy of a plan with its bytes and seconds forecast again; `assumed`, if given, replaces its assumptions.

    Raises ResourceError if the problem's cluster has no devices for a pool, with links of known speed.
    """
    plan = plan.model_copy(update={"assumed": assumed}) if assumed else plan
    return _with_forecast(problem, plan, homes_of_plan(problem, plan))


def _with_forecast(problem: PlanningProblem, plan: Plan, homes: Sequence[RolePlacement]) -> Plan:
    """Forecast a plan; the parts of a role's largest memory are those of its pool's peaks, so that both agree."""
    footprints = {home.role.name: footprint_of(problem, home) for home in homes}
    largest = dict[str, dict[str, int]]()
    for pool in dict.fromkeys(home.pool for home in homes):
        for peak in peaks_of(problem, pool, homes, footprints)[1]:
            for role, parts in peak.roles.items():
                if total_bytes(parts) > sum(largest.get(role, {}).values()):
                    largest[role] = {str(part): size for part, size in parts.items() if size}
    return plan.model_copy(
        update={
            "placed": tuple(role.model_copy(update={"memory": largest.get(role.role, {})}) for role in plan.placed),
            "forecast": tuple(forecast_pool(problem, pool.name, homes, footprints) for pool in plan.pools),
            "step": step_of(problem, homes),
        }
    )


def _pools(problem: PlanningProblem, homes: Sequence[RolePlacement]) -> tuple[Pool, ...]:
    pool_of = {home.role.name: home.pool for home in homes}
    demands = list[PoolDemand]()
    for pool in dict.fromkeys(home.pool for home in homes):
        roles = [home for home in homes if home.pool == pool]
        names, group = {home.role.name for home in roles}, roles[0].group
        synced = (
            pool_of[source if target in names else target]
            for target, source in problem.synced.items()
            if (target in names) != (source in names)
        )
        demands.append(
            PoolDemand(
                name=pool,
                devices=group.devices,
                model=group.of.model,
                tensor=min(group.of.reach, max(home.layout.tensor for home in roles)),
                of=group.of,
                synced_with=tuple(synced),
            )
        )
    return realise(problem.cluster, demands)


def has_room(problem: PlanningProblem, blocks: Sequence[BlockOption]) -> bool:
    """Return whether the pools of these blocks can be laid out on the cluster and, on CPUs, whether they fit in memory.

    A pool must have a place for each of its tensor groups inside one NVLink domain; a group larger than a domain takes
    whole domains. If all pools consist of whole machines and no domain spans machines, the layout is not checked: the
    blocks must not take more devices in total than the cluster has. On GPUs memory is not checked either, since a
    search has already left out options that do not fit.
    """
    homes = homes_of_blocks(problem, blocks)
    if problem.kind == "cpu" and overflowing(problem, homes):
        return False
    groups = [home.group for home in homes]
    if all(group.of.domain <= group.of.node_devices and group.devices % group.of.node_devices == 0 for group in groups):
        return True
    try:
        _pools(problem, homes)
    except ResourceError:
        return False
    return True
