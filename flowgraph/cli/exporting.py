"""A plan written for another system, and forecast as that system runs it: whether it fits, and what does if not.

Not here: files and printing (`interop`). No torch is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import Layout, Plan, RoleSettings
from flowgraph.errors import ResourceError
from nodes.interop import LongestLengths, export
from placements.choices import Ways
from placements.finding import TIED_SHARE, find
from placements.footprint import room_bytes, total_bytes
from placements.found_text import show_s
from placements.homes import Home, homes_by, seat_for
from placements.placing import plan_from
from placements.role_costs import footprint
from placements.short import overflows

if TYPE_CHECKING:
    from flowgraph.cli.planning_request import PlanningProblem
    from nodes.interop import Exported, SystemRun
    from placements.ranked import Ranked
    from placements.setting import Setting

WORTH_SHARE = 0.02  # of a step, that another plan has to save before it is written to be compared
MOST_TRIED = 200  # layouts of what trains, fastest first, where the plan's own does not fit as a system runs it


@dataclass(frozen=True)
class ExportTarget:
    """A system and its version, "" for the newest that is known."""

    system: str
    version: str = ""


@dataclass(frozen=True)
class ExportedPlan:
    """A plan as it was written, the plan that a system then runs, None where that is not known, and what it lacks."""

    exported: Exported
    plan: Plan | None
    faults: tuple[str, ...] = ()

    @property
    def step_s(self) -> float | None:
        """Give the seconds of a step as the system runs it."""
        return self.plan.step.period_s if self.plan is not None and self.plan.step is not None else None

    @property
    def runs(self) -> bool:
        """Say whether the system runs what was written, as far as can be forecast."""
        return self.plan is not None and not self.faults and self.step_s is not None


def exported(posed: PlanningProblem, plan: Plan, target: ExportTarget, notes: Sequence[str] = ()) -> Exported:
    """Write a plan for a system, with the lengths that it was forecast for. Raises what `export` raises."""
    setting = posed.setting
    response = int(setting.response.most) if setting.response is not None else None
    longest = LongestLengths(int(setting.prompt.most), response)
    return export(plan, target.system, target.version, graph=setting.graph, longest=longest, notes=notes)


def written(posed: PlanningProblem, plan: Plan, target: ExportTarget, notes: Sequence[str] = ()) -> ExportedPlan:
    """Write a plan for a system, and forecast what the system then runs. Raises what `export` raises."""
    told = exported(posed, plan, target, notes)
    if told.as_run is None:
        return ExportedPlan(told, None)
    run = _as_run(posed.setting, told.as_run)
    try:
        homes = list(homes_of_run(run, told.as_run))
        made = _plan_from(posed, run, homes)
    except ResourceError as error:
        wants, has = sum(part.devices for part in told.as_run.parts), sum(of.count for of in run.classes)
        return ExportedPlan(told, None, (f"it takes {wants} devices, there are {has}" if wants > has else error.what,))
    return ExportedPlan(told, made, tuple(_faults(run, homes, made)))


def fitting(posed: PlanningProblem, plan: Plan, target: ExportTarget) -> ExportedPlan:
    """Write a plan for a system; where that does not fit as the system runs it, in the fastest layouts that do.

    Either is told in a note, at the head of what is written.
    """
    first = written(posed, plan, target)
    name, own_s = f"{first.exported.system} {first.exported.version}", plan.step.period_s if plan.step else None
    if not first.faults:
        slower = own_s is not None and (first.step_s or 0.0) > own_s * (1 + TIED_SHARE)
        return written(posed, plan, target, [_takes(name, first.step_s, own_s)]) if slower else first
    why = [f"as {name} runs the plan, {fault}" for fault in first.faults]
    for other in _others(posed, plan) if first.plan is not None else ():
        found = written(posed, other, target)
        if found.runs:
            said = [*why, f"it is written otherwise, which fits: {_changed(first, found)}"]
            said.append(_takes(name, found.step_s, own_s))
            return written(posed, other, target, said)
    return written(posed, plan, target, [*why, "what is written DOES NOT FIT: no layouts are known that do"])


def _changed(first: ExportedPlan, found: ExportedPlan) -> str:
    """Name the layouts in which a system runs what was written otherwise."""
    assert first.plan is not None and found.plan is not None, "both are forecast"
    before = {each.role: each.layout for each in first.plan.placed}
    told = [f"{each.role} {each.layout}" for each in found.plan.placed if each.layout != before.get(each.role)]
    return "; ".join(told) or "all sleep while others work"


def _takes(name: str, step_s: float | None, own_s: float | None) -> str:

    return f"as {name} runs what is written, a step takes {show_s(step_s)}; the plan's takes {show_s(own_s)}"


@dataclass(frozen=True)
class ExportSearch:
    """What a search finds first, and of all that it finds the fastest that the system runs, None where it runs none."""

    best: Ranked
    found: ExportedPlan | None


def searched(posed: PlanningProblem, target: ExportTarget) -> ExportSearch | None:
    """Search the devices of a run for what its system runs fastest; None where no plan fits.

    Plans are written in their own order, until none can be faster than one that the system runs.
    """
    try:
        ranked = find(posed.setting).ranked
    except ResourceError:
        return None
    found: ExportedPlan | None = None
    for each in ranked:
        if found is not None and each.step_s * (1 + WORTH_SHARE) >= (found.step_s or 0.0):
            break
        other = _of_ranked(posed, each, target)
        if other is not None and other.runs and (found is None or (other.step_s or 0.0) < (found.step_s or 0.0)):
            found = other
    if found is None:
        first = _of_ranked(posed, ranked[0], target, fits=True)
        found = first if first is not None and first.runs else None
    return ExportSearch(ranked[0], found)


def _of_ranked(
    posed: PlanningProblem, ranked: Ranked, target: ExportTarget, *, fits: bool = False
) -> ExportedPlan | None:
    """Write a plan that was found; None for one whose pools cannot lie on the cluster."""
    try:
        plan = ranked.plan(posed.assumed)
    except ResourceError:
        return None
    return (fitting if fits else written)(posed, plan, target)


def _as_run(setting: Setting, run: SystemRun) -> Setting:
    return replace(setting, engines=dict(run.engines), staleness=run.lag)


def _plan_from(posed: PlanningProblem, run: Setting, homes: Sequence[Home]) -> Plan:
    """Give the plan of roles that live as a system runs them. Raises ResourceError if the cluster has no such pools."""
    told = {"engines": dict(run.engines), "staleness": run.staleness or posed.assumed.staleness}
    return plan_from(run, homes, posed.assumed.model_copy(update=told))


def _faults(setting: Setting, homes: Sequence[Home], plan: Plan) -> Iterator[str]:
    """Say what is short of memory, on devices and on their hosts, and what is too short for one row."""
    for error in overflows(plan, setting, plan.flow):
        yield error.what.removeprefix(f"no placement for {plan.flow} on {plan.flow}: ")
    yield from _host_faults(setting, homes)
    unknown = [task.name for task in plan.step.tasks if task.seconds is None] if plan.step is not None else []
    if unknown:
        yield f"the cache has no room for the longest row, or its speed is not known: {', '.join(unknown)}"


def _host_faults(setting: Setting, homes: Sequence[Home]) -> Iterator[str]:

    for pool in dict.fromkeys(home.pool for home in homes):
        own = [home for home in homes if home.pool == pool]
        of = own[0].seat.of
        room = of.host_memory_bytes // of.node_devices
        held = [
            (each, footprint(setting, each.role, each.seat, each.engine, each.layout, each.running)) for each in own
        ]
        needs = sum(total_bytes(each.host) + home.running.sleeps * total_bytes(each.asleep_host) for home, each in held)
        if needs > room:
            what = f"`{pool}` keeps {show_bytes(needs)} in host memory for each device"
            yield f"{what}, {show_bytes(needs - room)} more than its share of {show_bytes(room)}"


def _others(posed: PlanningProblem, plan: Plan) -> Iterator[Plan]:
    """Give the plan with what trains the policy in other layouts, fastest first, then with all else put away too."""
    synced = set(posed.setting.synced.values())
    home = next((home for home in homes_by(posed.setting, plan) if home.role.name in synced), None)
    if home is None:
        return
    seat, room = home.seat, room_bytes(home.seat.of.memory_bytes, home.seat.of.kind)
    ways = [
        (way.layout, way.running)
        for way in Ways(posed.setting, home.role, seat).timed
        if footprint(posed.setting, home.role, seat, way.engine, way.layout, way.running).peak_bytes <= room
    ]
    for asleep in (False, True):
        for layout, running in ways[:MOST_TRIED]:
            told = {"layout": layout, "running": running.model_copy(update={"sleeps": home.shared})}
            own = (each.model_copy(update=told) if each.role == home.role.name else each for each in plan.placed)
            other = plan.model_copy(update={"placed": tuple(own)})
            yield _put_away(other) if asleep else other


def _put_away(plan: Plan) -> Plan:
    """Give a plan in which nothing that shares a pool stays on its devices while others work."""
    alone = {each.pool for each in plan.placed if sum(other.pool == each.pool for other in plan.placed) == 1}
    told = {
        each.role: each.running.model_copy(update={"sleeps": True, "offload": ()})
        for each in plan.placed
        if each.pool not in alone
    }
    placed = (
        each.model_copy(update={"running": told[each.role]}) if each.role in told else each for each in plan.placed
    )
    return plan.model_copy(update={"placed": tuple(placed)})


def homes_of_run(setting: Setting, run: SystemRun) -> Iterator[Home]:
    """Give where each role of a run lives: in the pools that it shares, in the layouts that it says."""
    roles = {role.name: role for role in setting.roles}
    for number, part in enumerate(run.parts):
        names = [name for name in part.roles if name in roles]
        shared = any(roles[name].use == "sample" for name in names)
        seat = seat_for(setting, f"pool{number}", part.devices)
        for name in names:
            layout = run.layouts.get(name) or Layout(data=part.devices, sharding="full")
            running = run.running.get(name) or RoleSettings(precision="bfloat16")
            role = roles[name]
            engine, lag = setting.engines_of(role.use)[0], setting.lag_of(role)
            yield Home(role, f"pool{number}", seat, engine, layout, running, shared, lag)
