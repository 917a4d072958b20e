"""A plan that is read from its file: forecast again, and what is wrong with it. No torch is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from flowgraph.analysis.placed_graph import PlacedGraph
from flowgraph.checks.placed import forecast_faults, pool_faults
from flowgraph.cli.plan_result import PlanResult, sizes_of, warn
from flowgraph.cli.planning_request import PlanningProblem, PlanRequest, pose, posed_by
from flowgraph.cluster.plan import Plan, StepForecast
from flowgraph.engines.table import is_server
from flowgraph.errors import FlowError, PlanError, ResourceError
from flowgraph.language import laws
from placements.cache_room import cache_tokens
from placements.cuts import many
from placements.cycles import period
from placements.homes import homes_by
from placements.placing import forecast_again, plan_from
from placements.short import overflows
from placements.step_forecast import schedule_of
from placements.text import pool_sizes
from placements.work import Workload

if TYPE_CHECKING:
    from flowgraph.cluster.cluster import Cluster
    from placements.homes import Home
    from placements.setting import Setting


def posed_again(plan: Plan, question: PlanRequest, where: str) -> PlanningProblem:
    """Return the question that a plan from a file answers: the flow, models, rows and lengths that its file names.

    What the command line says of them goes before it; a file that names none answers what the command line says.
    """
    if plan.assumed is None:
        return pose(question, there=plan.cluster)
    posed = posed_by(plan, where, asked=question.asked)
    return posed if question.calibration is None else posed.calibrated(question.calibration)


def planned_again(plan: Plan, posed: PlanningProblem, where: str, *, fits: bool = True) -> PlanResult:
    """Forecast a plan from a file again. Raises what is wrong with it; if `fits`, that it does not fit too."""
    setting = posed.setting
    warn(posed)
    refuse(law_faults(plan, setting, where))
    if fits:
        refuse(_home_faults(setting, homes_by(setting, plan), where))
    found = PlanResult(posed, forecast_again(setting, plan, posed.assumed), where)
    if fits:
        sizes_of(found)
        refuse(overflows(found.plan, setting, where))
    return found


def forecast_of(
    plan: Plan, posed: PlanningProblem, where: str, cluster: Cluster | None = None, *, spans: bool = False
) -> tuple[Plan, StepForecast, float]:
    """Forecast a plan from a file as it now stands, on its own cluster or another; give it, its step and its seconds.

    Raises what is wrong with the plan, but not that it does not fit.
    """
    setting = posed.setting
    refuse(law_faults(plan, setting, where))
    homes = homes_by(setting, plan)
    refuse(_home_faults(setting, homes, where, spans=spans))
    elsewhere = cluster is not None
    there = plan_from(setting, homes, posed.assumed) if elsewhere else forecast_again(setting, plan, posed.assumed)
    return there, *known_step(there.step, where)


def faults_of(
    plan: Plan, posed: PlanningProblem, where: str, cluster: Cluster | None = None, *, ran: bool = False
) -> Iterator[FlowError]:
    """Find what is wrong with a plan on its own cluster, or on another: its laws, its forecast, seconds and bytes.

    What is found last is looked for only in a plan that keeps the laws. A plan of what another system `ran` may fill
    its devices, where one of ours leaves a tenth for the error of the forecast, and have tensor groups over domains.
    """
    setting = posed.setting
    found = list(law_faults(plan, setting, where)) or list(forecast_faults(plan, where))
    yield from found
    if found:
        return
    try:
        if plan.step is not None:
            played_s(plan.step, where)
        found = list(_home_faults(setting, homes_by(setting, plan), where, spans=ran))
        there = None if found else forecast_of(plan, posed, where, cluster, spans=ran)[0]
    except FlowError as error:
        yield error
        return
    if there is None or (ran and fullest_share(there) <= 1):
        yield from found
    else:
        yield from overflows(there, setting, where)


def fullest_share(plan: Plan) -> float:
    """Return the largest share of a device's memory that a plan's forecast takes; 0 where nothing is forecast."""
    forecasts = {each.pool: each for each in plan.forecast}
    peaks = ((forecasts[pool.name].worst, pool_sizes(plan, pool)) for pool in plan.pools if pool.name in forecasts)
    return max((peak.memory_bytes / min(sizes) for peak, sizes in peaks if peak is not None and sizes), default=0.0)


def law_faults(plan: Plan, setting: Setting, where: str) -> Iterator[FlowError]:
    """Find the laws that a plan breaks. What its file says of memory and seconds is made anew, whatever it names."""
    return laws.faults("placed", PlacedGraph(setting.graph, plan, where, experts_of(setting)))


def refuse_broken(plan: Plan, where: str) -> None:
    """Raise the first fault of a plan that can be seen without its flow: of its pools, its forecast or its step."""
    refuse(pool_faults(plan, where))
    refuse(forecast_faults(plan, where))
    if plan.step is not None:
        played_s(plan.step, where)


def refuse(faults: Iterator[FlowError]) -> None:
    """Raise the first fault, if there is one."""
    for fault in faults:
        raise fault


def _home_faults(setting: Setting, homes: Sequence[Home], where: str, *, spans: bool = False) -> Iterator[FlowError]:
    """Find a cache without room for one row, and tensor groups over several domains for no need unless one `spans`."""
    for home in homes:
        of, tensor = home.seat.of, home.layout.tensor
        shares = home.role.use == "sample" and of.kind == "gpu" and is_server(home.engine)
        longest = max(load.longest_tokens for load in setting.loads_of(home.role))
        room = _room(setting, home, tensor, home.running.cache_share or 1.0) if shares else longest
        if room < longest:
            yield _no_cache(home, room, longest, where)
        if tensor > of.reach and not spans and (not shares or _room(setting, home, of.reach, 1.0)):
            domain = f"no domain there has more than {many(of.reach, 'device')}"
            yield ResourceError.not_here(f"{where}: {home.role.name}", f"tensor groups of {tensor} devices", domain)


def _room(setting: Setting, home: Home, tensor: int, share: float) -> int:
    """Give the tokens of the cache of what draws, if its weights were cut into so many and had that share."""
    device, precision = home.seat.links.device, home.running.precision
    return cache_tokens(setting.shape(home.role), device, tensor, share, setting.serving_of(home.engine), precision)


def _no_cache(home: Home, room: int, longest: int, where: str) -> FlowError:
    share, layout = home.running.cache_share, home.layout
    given = f"with cache_share={share:g} and tensor={layout.tensor}" if share is not None else f"with {layout}"
    held = f"its cache holds {room:,} tokens" if room else "its weights leave no room for a cache"
    return PlanError.unreadable(where, home.role.name, f"{given} {held}, and its longest row has {longest:,}")


def known_step(step: StepForecast | None, where: str) -> tuple[StepForecast, float]:
    """Give a step and its seconds. Raises PlanError where there is none, where they are not known or cannot be."""
    if step is None:
        why = "has no forecast of seconds; `plan` makes one on devices of a known kind"
        raise PlanError.unreadable(where, "", why)
    unknown = [task.name for task in step.tasks if task.seconds is None]
    if unknown or step.period_s is None:
        raise PlanError.unreadable(where, "step", f"the seconds of {', '.join(unknown) or 'a step'} are not known")
    played_s(step, where)
    return step, step.period_s


def played_s(step: StepForecast, where: str) -> float | None:
    """Give the seconds of a step as its tasks are played, None where one's are not known.

    Raises PlanError where there is no task, where one waits for what is not there, or where tasks wait in a circle.
    """
    if not step.tasks:
        raise PlanError.unreadable(where, "step", "has no task")
    try:
        return period(schedule_of(step.tasks, step.waits)).seconds
    except (FlowError, ValueError) as error:
        raise PlanError.unreadable(where, "step", str(error)) from None


def work_of(setting: Setting) -> Workload:
    """Give what a step of a setting reads, its prompts as long as the longest."""
    sizes = setting.sample_rows, setting.forward_tokens
    return Workload(setting.prompts, int(setting.prompt.most), sample_rows=sizes[0], forward_tokens=sizes[1])


def experts_of(setting: Setting) -> dict[str, int]:
    """Give how many experts a layer of each model has; 0 for a model without."""
    return {name: each.experts for name, each in setting.shapes.items()}
