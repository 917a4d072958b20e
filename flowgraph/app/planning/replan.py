"""A plan that is read from its file: forecast again, and what is wrong with it. No torch is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.analysis.placed_graph import PlacedGraph
from flowgraph.app.planning.plan_result import PlanLike, PlanResult, read_plan
from flowgraph.app.planning.problem import PreparedProblem, prepare, prepare_from
from flowgraph.app.request import Request, Say, Workload
from flowgraph.checks.placed import forecast_faults, pool_faults
from flowgraph.cluster.plan import Plan
from flowgraph.cluster.this_machine import warnings_for
from flowgraph.errors import FlowError
from flowgraph.language import laws
from flowgraph.language.flow import Flow
from placements import SavedPlan, step_seconds

if TYPE_CHECKING:
    from flowgraph.cluster.cluster import Cluster
    from placements import PlanningProblem


@dataclass(frozen=True, kw_only=True)
class NamedPlan:
    """A plan with the name that errors have for it, and its flow where that is in no file."""

    plan: Plan
    where: str
    workload: Workload | None = None

    @classmethod
    def of(cls, plan: PlanLike) -> NamedPlan:
        """Return a plan, or read it from its file."""
        if isinstance(plan, str | Path):
            return cls(plan=read_plan(Path(plan)), where=str(plan))
        if isinstance(plan, Plan):
            return cls(plan=plan, where=f"plan of {plan.flow}")
        flow = plan.workload.flow if plan.workload is not None else ""
        workload = Workload(flow=flow) if isinstance(flow, Flow) else None
        return cls(plan=plan.plan, where=f"plan of {plan.plan.flow}", workload=workload)

    def prepare(self, cluster: Cluster | None = None) -> PreparedProblem:
        """Prepare again the problem that the plan answers, on its own cluster or on another."""
        return prepare_from(self.plan, self.where, cluster, self.workload)


def prepare_again(plan: Plan, request: Request, where: str) -> PreparedProblem:
    """Return the problem that a plan from a file answers: the flow, models, rows and lengths that its file names.

    What the request says of them goes before it; a file that names none answers what the request says.
    """
    if plan.assumed is None:
        return prepare(request, cluster=plan.cluster)
    prepared = prepare_from(plan, where, workload=request.workload)
    calibration = request.search.calibration
    return prepared if calibration is None else prepared.having(calibration=calibration)


def saved_plan(
    plan: Plan, prepared: PreparedProblem, where: str, cluster: Cluster | None = None, *, ran: bool = False
) -> SavedPlan:
    """Return a plan with the problem that it answers, on its own cluster or on another. Raises the law that it breaks.

    Another system may have `ran` it.
    """
    refuse(law_faults(plan, prepared.setting, where))
    return SavedPlan(
        problem=prepared.setting,
        plan=plan,
        assumed=prepared.assumed,
        where=where,
        elsewhere=cluster is not None,
        ran=ran,
    )


def plan_again(plan: Plan, prepared: PreparedProblem, where: str, say: Say, *, fits: bool = True) -> PlanResult:
    """Forecast a plan from a file again. Raises what is wrong with it; if `fits`, that it does not fit too."""
    for line in warnings_for(prepared.setting.cluster):
        say(line)
    saved = saved_plan(plan, prepared, where)
    if fits:
        refuse(saved.role_faults())
    result = PlanResult(prepared=prepared, plan=saved.forecast(), where=where)
    if fits:
        _ = result.batch  # refuses sizes that do not go together
        refuse(saved.overflows(result.plan))
    return result


def faults_of(
    plan: Plan, prepared: PreparedProblem, where: str, cluster: Cluster | None = None, *, ran: bool = False
) -> Iterator[FlowError]:
    """Find what is wrong with a plan on its own cluster, or on another: its laws, its forecast, seconds and bytes.

    What is found last is looked for only in a plan that keeps the laws. Another system may have `ran` it.
    """
    broken = [*law_faults(plan, prepared.setting, where)] or [*forecast_faults(plan, where)]
    yield from broken or saved_plan(plan, prepared, where, cluster, ran=ran).faults()


def law_faults(plan: Plan, problem: PlanningProblem, where: str) -> Iterator[FlowError]:
    """Find the laws that a plan breaks. What its file says of memory and seconds is made anew, whatever it names."""
    return laws.faults("placed", PlacedGraph(problem.graph, plan, where, experts_of(problem)))


def refuse_broken(plan: Plan, where: str) -> None:
    """Raise the first fault of a plan that can be seen without its flow: of its pools, its forecast or its step."""
    refuse(chain(pool_faults(plan, where), forecast_faults(plan, where)))
    if plan.step is not None:
        step_seconds(plan.step, where)


def refuse(faults: Iterator[FlowError]) -> None:
    """Raise the first fault, if there is one."""
    for fault in faults:
        raise fault


def experts_of(problem: PlanningProblem) -> dict[str, int]:
    """Return how many experts a layer of each model has; 0 for a model without."""
    return {name: shape.experts for name, shape in problem.shapes.items()}
