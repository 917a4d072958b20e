"""Alternatives to a plan: the seconds of a step with a role on another pool, alone, or in another layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import fsum

from flowgraph.cluster.plan import Layout, Plan, RoleSettings, StepForecast
from placements.memory.footprint import room_bytes
from placements.search.infeasibility import overflows
from placements.search.named_placements import Parts
from placements.search.plan_builder import RankedPlan, forecast_again
from placements.search.pool_options import PoolOptions
from placements.search.role_options import RoleOptions
from placements.search.search import solved
from placements.step.role_costs import footprint
from placements.step.role_placements import RolePlacement, homes_of_plan
from placements.step.step_forecast import switching_of, work_of
from placements.workload.planning_problem import PlanningProblem


@dataclass(frozen=True)
class AlternativePool:
    """A role on another pool: the roles already there (`neighbours`), and the best such plan; None if none fits."""

    role: str
    neighbours: tuple[str, ...]
    ranked: RankedPlan | None


@dataclass(frozen=True)
class AlternativeLayout:
    """One way to run a role on its pool: the seconds of its work in a step, and its peak bytes on a device.

    `fits` says whether the plan fits with this layout, `current` whether the plan has it.
    """

    layout: Layout
    running: RoleSettings
    seconds: float
    peak_bytes: int
    fits: bool
    current: bool


@dataclass(frozen=True)
class CurrentPlan:
    """The plan that alternatives are compared with: its step, the seconds of the step, and its number of devices."""

    step: StepForecast
    step_s: float
    devices: int


def parts_of(plan: Plan) -> Parts:
    """Return the names of the roles on each pool of a plan, one tuple per pool; pools without roles are left out."""
    parts = (tuple(placed.role for placed in plan.placed if placed.pool == pool.name) for pool in plan.pools)
    return tuple(part for part in parts if part)


def alternative_pools(problem: PlanningProblem, parts: Parts, role: str) -> Iterator[AlternativePool]:
    """Search for the best plan with `role` on each other pool that it could join, and then on a pool of its own.

    Yields an alternative for each; the last is left out if `role` already has a pool of its own. `parts` has the roles
    of each pool in the current plan, `role` included. The other roles stay grouped as they are, but the devices of
    every pool may change. Each alternative has the best plan found for that grouping, or None if none is found.
    """
    pools = PoolOptions(problem)
    rest = [tuple(name for name in part if name != role) for part in parts]
    neighbours = next(names for part, names in zip(parts, rest, strict=True) if role in part)
    for mates in [*(part for part in rest if part and part != neighbours), ()]:
        if mates or neighbours:
            untouched = [part for part in rest if part and part != mates]
            yield AlternativePool(role, mates, solved(problem, pools, (*untouched, (*mates, role))))


def alternative_layouts(problem: PlanningProblem, plan: Plan, role: str) -> tuple[AlternativeLayout, ...]:
    """Return ways to run a role on its pool, fastest first: the plan's current way, and the best way of each layout.

    The best way of a layout is the fastest with which the whole plan fits or, if none fits, the fastest. Other ways
    with unknown seconds are left out; unknown seconds of the current way count as 0. `role` must be a role of the plan.
    """
    home = next(home for home in homes_of_plan(problem, plan) if home.role.name == role)
    current = home.layout, home.running
    runnings = dict[Layout, list[RoleSettings]]()
    every = RoleOptions(problem, home.role, home.group, exhaustive=True).all
    for option in sorted(every, key=lambda option: sum(option.stages_s)):
        runnings.setdefault(option.layout, []).append(option.running)
    alternatives = {current: _alternative(problem, plan, home, *current, current=True)}
    for layout, ways in runnings.items():
        tried = (
            alternatives.get((layout, running)) or _alternative(problem, plan, home, layout, running)
            for running in ways
        )
        first = next(tried)
        best = first if first.fits else next((way for way in tried if way.fits), first)
        alternatives[best.layout, best.running] = best
    return tuple(sorted(alternatives.values(), key=lambda way: (way.seconds, way.layout.tensor)))


def _alternative(
    problem: PlanningProblem,
    plan: Plan,
    home: RolePlacement,
    layout: Layout,
    running: RoleSettings,
    *,
    current: bool = False,
) -> AlternativeLayout:
    moved = replace(home, layout=layout, running=running)
    works = [work_of(problem, moved, load).total_s for load in problem.loads_of(home.role)]
    works.append(switching_of(problem, moved).total_s)
    peak_bytes = footprint(problem, home.role, home.group, home.engine, layout, running).peak_bytes
    fits = peak_bytes <= room_bytes(home.group.of.memory_bytes, home.group.of.kind)
    if fits:  # by itself; the other roles of its pool count too
        placed = tuple(
            role.model_copy(update={"layout": layout, "running": running}) if role.role == home.role.name else role
            for role in plan.placed
        )
        again = forecast_again(problem, plan.model_copy(update={"placed": placed}))
        fits = next(overflows(again, problem, ""), None) is None
    return AlternativeLayout(layout, running, fsum(work or 0.0 for work in works), peak_bytes, fits, current)
