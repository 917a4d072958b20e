"""A saved plan: its forecast for a problem as it is now, and what is wrong with it.

Not here: the rules that every plan must satisfy (`flowgraph.checks.placed`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from flowgraph.cluster.plan import Plan, PlanAssumptions, StepForecast
from flowgraph.engines.table import is_server
from flowgraph.errors import FlowError, PlanError, ResourceError
from placements.format import pool_sizes
from placements.memory.footprint import FITS_SHARE
from placements.search.infeasibility import overflows
from placements.search.plan_builder import forecast_again, plan_from
from placements.step.chunks import with_chunks
from placements.step.period import period
from placements.step.role_placements import RolePlacement, homes_of_plan
from placements.step.step_forecast import schedule_of
from placements.time.decode import cache_tokens
from placements.workload.batch_partition import many
from placements.workload.planning_problem import PlanningProblem


@dataclass(frozen=True, kw_only=True)
class SavedPlan:
    """A valid plan and the problem that it answers; `where` names the plan in errors.

    If `elsewhere`, the problem has another cluster, and devices of the pools are chosen again. If another system `ran`
    the plan, it may fill its devices completely and have tensor groups over several domains; a plan of this planner
    leaves a tenth of the memory for the error of the forecast.
    """

    problem: PlanningProblem
    plan: Plan
    assumed: PlanAssumptions
    where: str
    elsewhere: bool = False
    ran: bool = False

    def forecast(self) -> Plan:
        """Return the plan with its bytes and seconds forecast again, on new devices if `elsewhere`.

        Raises ResourceError if the cluster has no devices for a pool.
        """
        if self.elsewhere:
            return plan_from(self.problem, self.homes, self.assumed)
        return forecast_again(self.problem, self.plan, self.assumed)

    def with_best_chunks(self) -> SavedPlan:
        """Return the plan with its groups of responses passed on in the number of chunks with the shortest step.

        Numbers up to 32 are tried, and more chunks must make a step over 0.5% shorter. Groups are not divided if no
        number does so, if the problem does not ask for it (`streamed`), or if responses go on across a weight sync.
        Raises ResourceError if the cluster has no devices for a pool.
        """
        chunks = {home.role.name: home.chunks for home in with_chunks(self.problem, self.homes)}
        placed = (row.model_copy(update={"chunks": chunks[row.role]}) for row in self.plan.placed)
        return replace(self, plan=self.plan.model_copy(update={"placed": tuple(placed)}))

    def timed_forecast(self) -> tuple[Plan, float]:
        """Return the plan with a new forecast, and the seconds of its step, whether or not it fits in memory.

        Raises PlanError or ResourceError for a role that cannot run as placed, ResourceError if the cluster has no
        devices for a pool, and PlanError if seconds are unknown or the step cannot be simulated.
        """
        for fault in self.role_faults():
            raise fault
        plan = self.forecast()
        return plan, known_step_s(plan.step, self.where)

    @property
    def homes(self) -> list[RolePlacement]:
        """Return the placement of each role: pool, devices, engine, layout and settings.

        Raises ResourceError if the cluster has no devices for a pool.
        """
        return homes_of_plan(self.problem, self.plan)

    def role_faults(self) -> Iterator[FlowError]:
        """Yield an error for each reason why a role cannot run as placed: PlanError or ResourceError.

        The reasons are a cache of an inference server on GPUs that cannot hold the longest row, and tensor groups over
        several domains. Such groups are allowed if another system `ran` the plan, or for a server whose weights do not
        fit in one domain. Raises ResourceError if the cluster has no devices for a pool.
        """
        for home in self.homes:
            of, tensor = home.group.of, home.layout.tensor
            shares = home.role.use == "sample" and of.kind == "gpu" and is_server(home.engine)
            longest = max(load.longest_tokens for load in self.problem.loads_of(home.role))
            room = self._cache_tokens(home, tensor, home.running.cache_share or 1.0) if shares else longest
            if room < longest:
                share, layout = home.running.cache_share, home.layout
                served = f"cache_share={share:g} and tensor={layout.tensor}" if share is not None else layout
                holds = f"its cache holds {room:,} tokens" if room else "its weights leave no room for a cache"
                why = f"with {served} {holds}, but its longest row has {longest:,}"
                yield PlanError.unreadable(self.where, home.role.name, why)
            if tensor > of.reach and not self.ran and (not shares or self._cache_tokens(home, of.reach, 1.0)):
                domain = f"no domain there has more than {many(of.reach, 'device')}"
                name = f"{self.where}: {home.role.name}"
                yield ResourceError.not_here(name, f"tensor groups of {tensor} devices", domain)

    def overflows(self, forecast: Plan) -> Iterator[ResourceError]:
        """Yield an error for each pool of `forecast` in which a phase needs more of a device's bytes than allowed.

        A plan may fill nine tenths of a GPU, or all of a CPU device. The memory is computed again, whatever `forecast`
        says of it. Raises ResourceError if the cluster has no devices for a pool.
        """
        return overflows(forecast, self.problem, self.where)

    def faults(self) -> Iterator[FlowError]:
        """Yield an error for each fault of the plan: an invalid step, misplaced roles, unknown seconds, or memory.

        An invalid step, a pool without devices or unknown seconds end the check. Memory is checked only if nothing else
        is wrong; a plan that another system `ran` may fill its devices completely.
        """
        try:
            if self.plan.step is not None:
                step_seconds(self.plan.step, self.where)
            faults = list(self.role_faults())
            forecast = None if faults else self.timed_forecast()[0]
        except FlowError as error:
            yield error
            return
        if forecast is None or (self.ran and fullest_share(forecast) <= 1):
            yield from faults
        else:
            yield from self.overflows(forecast)

    def _cache_tokens(self, home: RolePlacement, tensor: int, share: float) -> int:
        device, precision = home.group.links.device, home.running.precision
        shape, serving = self.problem.shape(home.role), self.problem.serving_of(home.engine)
        return cache_tokens(shape, device, tensor, share, serving, precision)


def fullest_share(plan: Plan) -> float:
    """Return the largest share of a device's memory that a plan's forecast fills (1 is all); 0 without a forecast."""
    forecasts = {forecast.pool: forecast for forecast in plan.forecast}
    peaks = ((forecasts[pool.name].worst, pool_sizes(plan, pool)) for pool in plan.pools if pool.name in forecasts)
    return max((peak.memory_bytes / min(sizes) for peak, sizes in peaks if peak is not None and sizes), default=0.0)


def tightness(plan: Plan) -> str:
    """Return a note if a plan's forecast fills more than nine tenths of a device's memory; else "".

    A CPU device gets the note as well, although a plan may fill all of it.
    """
    share = fullest_share(plan)
    note = f"its fullest device takes {share:.0%} of its memory by the forecast, whose error is a tenth"
    return note if share > FITS_SHARE else ""


def step_seconds(step: StepForecast, where: str) -> float | None:
    """Return the simulated seconds from one step to the next; None if the seconds of a task are not known.

    `where` names the plan in errors. Raises PlanError if the step has no task or cannot be simulated: for example, if a
    task waits for one that does not exist, or if tasks wait in a circle.
    """
    if not step.tasks:
        raise PlanError.unreadable(where, "step", "has no task")
    try:
        return period(schedule_of(step.tasks, step.waits)).seconds
    except (FlowError, ValueError) as error:
        raise PlanError.unreadable(where, "step", str(error)) from None


def known_step_s(step: StepForecast | None, where: str) -> float:
    """Return the seconds from one step to the next that a forecast contains; `where` names the plan in errors.

    Raises PlanError if `step` is None, if the seconds of the step or of a task are unknown, or if the step cannot be
    simulated.
    """
    if step is None:
        why = "has no forecast of seconds; `plan` makes one on devices of a known kind"
        raise PlanError.unreadable(where, "", why)
    unknown = [task.name for task in step.tasks if task.seconds is None]
    if unknown or step.period_s is None:
        raise PlanError.unreadable(where, "step", f"the seconds of {', '.join(unknown) or 'a step'} are not known")
    step_seconds(step, where)
    return step.period_s
