"""Saved plans: their forecast and faults; `simulate`, `compare`, `explain` and `check`. No torch is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.analysis.placed_graph import PlacedGraph
from flowgraph.app.planning.plan_result import PlanLike, PlanResult, read_plan
from flowgraph.app.planning.problem import PreparedProblem, cluster_of, prepare, prepare_from
from flowgraph.app.request import Request, Say, Workload
from flowgraph.checks.placed import check_forecast, check_pools, unsupported_parts
from flowgraph.cluster.plan import Plan
from flowgraph.cluster.this_machine import core_warnings
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.errors import FlowError, UsageError, nearest
from flowgraph.language import laws
from flowgraph.language.flow import Flow
from placements import SavedPlan, compare, explain, known_step_s, report, simulate, step_seconds

if TYPE_CHECKING:
    from flowgraph.cluster.cluster import Cluster
    from placements import PlanningProblem


@dataclass(frozen=True, kw_only=True)
class NamedPlan:
    """A plan with its name in errors, and the workload of its flow if that flow is an object in memory."""

    plan: Plan
    where: str
    workload: Workload | None = None

    @classmethod
    def of(cls, plan: PlanLike) -> NamedPlan:
        """Return a plan with a name for errors; a path is read. Raises PlanError for a file that holds no plan."""
        if isinstance(plan, str | Path):
            return cls(plan=read_plan(Path(plan)), where=str(plan))
        if isinstance(plan, Plan):
            return cls(plan=plan, where=f"plan of {plan.flow}")
        flow = plan.workload.flow if plan.workload is not None else ""
        workload = Workload(flow=flow) if isinstance(flow, Flow) else None
        return cls(plan=plan.plan, where=f"plan of {plan.plan.flow}", workload=workload)

    def prepare(self, cluster: Cluster | None = None) -> PreparedProblem:
        """Return the problem that the plan solves, on its own cluster or another; raises as `prepare_from` does."""
        return prepare_from(self.plan, self.where, cluster, self.workload)


def prepare_again(plan: Plan, request: Request, where: str) -> PreparedProblem:
    """Return the problem that a saved plan solves, with the flow, models, rows and lengths that its file names.

    The request overrides the plan's flow, models, data, columns, batch, passes and calibration, and adds settings. For
    a plan that records no assumptions, the request provides all of these. `where` names the plan in errors. Raises the
    errors of `prepare_from`, or those of `prepare` without recorded assumptions.
    """
    if plan.assumed is None:
        return prepare(request, cluster=plan.cluster)
    prepared = prepare_from(plan, where, workload=request.workload)
    calibration = request.search.calibration
    return prepared if calibration is None else prepared.having(calibration=calibration)


def saved_plan(
    plan: Plan, prepared: PreparedProblem, where: str, cluster: Cluster | None = None, *, ran: bool = False
) -> SavedPlan:
    """Return a plan with the problem that it solves, on its own cluster or, if `cluster` is given, on that one.

    `prepared` is the problem on that cluster. `where` names the plan in errors; `ran` is true if another system has run
    the plan. Raises the FlowError of the first law that the plan breaks.
    """
    refuse(law_faults(plan, prepared.problem, where))
    return SavedPlan(
        problem=prepared.problem,
        plan=plan,
        assumed=prepared.assumed,
        where=where,
        elsewhere=cluster is not None,
        ran=ran,
    )


def plan_again(plan: Plan, prepared: PreparedProblem, where: str, say: Say, *, fits: bool = True) -> PlanResult:
    """Return a saved plan with a new forecast.

    `where` names the plan in errors, and `say` receives warnings about the cluster. Raises the FlowError of the first
    law that the plan breaks. If `fits` is true, also raises an error if a role cannot run, if the sizes of a step
    (batch, minibatches and ranks) do not go together (BatchError), or if the memory of a device overflows.
    """
    for line in core_warnings(prepared.problem.cluster):
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
    """Yield an error for each fault of a plan, on its own cluster or on another: in laws, forecast, seconds and bytes.

    `prepared` is the problem on that cluster; `cluster` is given only if it is not the plan's own. `where` names the
    plan in errors. The recorded forecast is checked only if the plan breaks no law, and seconds and bytes only if
    neither has a fault. `ran` is true if another system has run the plan.
    """
    broken = [*law_faults(plan, prepared.problem, where)] or [*check_forecast(plan, where)]
    yield from broken or saved_plan(plan, prepared, where, cluster, ran=ran).faults()


def law_faults(plan: Plan, problem: PlanningProblem, where: str) -> Iterator[FlowError]:
    """Yield an error for each breach of a law by a plan as a solution of its problem; `where` names the plan in errors.

    The memory and the seconds that the plan's file records are not checked.
    """
    return laws.faults("placed", PlacedGraph(problem.graph, plan, where, experts_of(problem)))


def refuse_broken(plan: Plan, where: str) -> None:
    """Raise PlanError, with the plan's name `where`, for the first fault in a plan's pools, forecast or step."""
    refuse(chain(check_pools(plan, where), check_forecast(plan, where)))
    if plan.step is not None:
        step_seconds(plan.step, where)


def refuse(faults: Iterator[FlowError]) -> None:
    """Raise the first of the faults; do nothing if there is none."""
    for fault in faults:
        raise fault


def experts_of(problem: PlanningProblem) -> dict[str, int]:
    """Return the number of experts per layer of each model, by parameter; 0 for a model without experts."""
    return {name: shape.experts for name, shape in problem.shapes.items()}


SETTLED_SHARE = 1e-3  # of a step, within which the steps that are simulated take what they do in the long run


@dataclass(frozen=True, kw_only=True)
class SimulatedPlan:
    """The simulated steps of a plan, and `period_s`, the seconds from one step to the next in steady state."""

    plan: Plan
    simulated: report.Simulation
    period_s: float

    def data(self) -> dict[str, Any]:
        """Return JSON-compatible data with the keys `period_s`, `simulated_s`, `events` and `bubbles`.

        `period_s` is the seconds of a step in steady state, and `simulated_s` those between the last simulated steps,
        None for a single step. An event is a run of a `task` on a `pool` in a `step`, and a bubble a time in which a
        `pool` is idle, with the reason (`why`); both have `start_s` and `end_s`.
        """
        event_keys, idle_keys = ("task", "pool", "step", "start_s", "end_s"), ("pool", "start_s", "end_s", "why")
        return {
            "period_s": self.period_s,
            "simulated_s": self.simulated.period_s,
            "events": [{key: getattr(event, key) for key in event_keys} for event in self.simulated.events],
            "bubbles": [{key: getattr(idle, key) for key in idle_keys} for idle in self.simulated.idle],
        }

    def text(self, columns: int = 100) -> str:
        """Return a timeline with a lane for each pool and why it is idle, and lines about the errors of the forecasts.

        Lanes are at most `columns` characters wide, or 10 besides the pool's name if that is more; other lines are not
        broken. For a single step, and if the simulated steps are more than 0.1% away from the steady state, another
        line has the seconds of a step in the steady state.
        """
        lines, simulated_s = [self.simulated.text(columns)], self.simulated.period_s
        if simulated_s is None or not isclose(simulated_s, self.period_s, rel_tol=SETTLED_SHARE):
            lines.append(f"a step takes {self.period_s:,.1f} s once steps follow each other")
        return "\n".join([*lines, "\n".join(report.error_lines(self.plan))])

    def trace(self) -> str:
        """Return the simulated steps as the JSON text of a Chrome trace, for ui.perfetto.dev."""
        return json.dumps(self.simulated.trace(f"{self.plan.flow}, predicted"), indent=1) + "\n"


def simulate_plan(plan: PlanLike, steps: int) -> SimulatedPlan:
    """Simulate `steps` steps of a plan, and return when each pool works and what it waits for.

    Raises ValueError for fewer than one step, and PlanError for a file that holds no plan, for a broken plan, and for
    one whose seconds are not known.
    """
    saved = NamedPlan.of(plan)
    refuse_broken(saved.plan, saved.where)
    step, step_s = saved.plan.step, known_step_s(saved.plan.step, saved.where)
    assert step is not None, "its seconds are known"
    return SimulatedPlan(plan=saved.plan, simulated=simulate(step, steps), period_s=step_s)


@dataclass(frozen=True)
class ComparedPlans:
    """Plans to compare, each with its name."""

    plans: tuple[tuple[str, Plan], ...]

    def data(self) -> dict[str, Any]:
        """Return each plan as JSON-compatible data, by its name."""
        return {name: json.loads(plan.to_json()) for name, plan in self.plans}

    def text(self, columns: int = 100) -> str:
        """Return a table with a column for each plan: seconds, cost if known, layouts and the fullest device.

        If the table is wider than `columns` characters, the plans are listed one below the other.
        """
        return compare(self.plans, columns)


def compare_plans(plans: Sequence[PlanLike]) -> ComparedPlans:
    """Return plans to compare, each named by its path, or by number and name if any plan is not given by path.

    Raises UsageError for fewer than two plans, and PlanError for a file that holds no plan and for a broken plan.
    """
    if len(plans) < 2:
        raise UsageError("compare needs two plans or more", where="compare", hint="compare A.json B.json")
    saved = [NamedPlan.of(plan) for plan in plans]
    for named in saved:
        refuse_broken(named.plan, named.where)
    in_files = all(isinstance(plan, str | Path) for plan in plans)
    names = (named.where if in_files else f"{place}: {named.where}" for place, named in enumerate(saved, 1))
    return ComparedPlans(tuple((name, named.plan) for name, named in zip(names, saved, strict=True)))


@dataclass(frozen=True, kw_only=True)
class ExplainedPlan:
    """The reasons for the place of each role of a plan; `faults` say why the plan does not fit.

    If one role was asked for, `roles` has only that role, `layouts` is true, and the text also compares its layouts.
    """

    roles: tuple[str, ...]
    layouts: bool
    step_s: float
    faults: tuple[str, ...]
    explanation: report.Explanation

    @cached_property
    def elsewhere(self) -> dict[str, Any]:
        """Return, by role, the other pools on which the role could be, each with the best plan that places it there.

        They are searched on first use. A role that shares its pool also has the alternative of a pool of its own. The
        plan is None if it does not fit.
        """
        return {role: self.explanation.alternatives(role) for role in self.roles}

    def data(self) -> list[dict[str, Any]]:
        """Return a JSON-compatible row for each role: the seconds of a step now, and with the role on each other pool.

        A row has the `role`, all roles on its pool (`beside`), `step_s` of the plan, and `elsewhere`: for each other
        pool, the roles on it (`beside`, empty for a pool of its own) and `step_s` of the best plan with the role there,
        None if it does not fit.
        """
        return [
            {
                "role": role,
                "beside": list(self.explanation.neighbours(role)),
                "step_s": self.step_s,
                "elsewhere": [
                    {"beside": list(move.neighbours), "step_s": move.ranked.step_s if move.ranked else None}
                    for move in self.elsewhere[role]
                ],
            }
            for role in self.roles
        ]

    def text(self) -> str:
        """Return, for each role, the seconds of a step with it on each other pool; for one role, also its layouts.

        If other layouts of the same roles on each pool make a step faster, the first line says so.
        """
        faster = self.explanation.faster_text()
        lines = [faster] if faster else []
        for role in self.roles:
            lines.append(self.explanation.text(role, self.elsewhere[role]))
            lines += [self.explanation.layouts_text(role)] if self.layouts else []
        return "\n".join(lines)


def explain_plan(plan: PlanLike, role: str | None) -> ExplainedPlan:
    """Return why each role of a plan, or only `role`, is on its pool: the seconds of a step with the role elsewhere.

    A plan that does not fit is explained too, with its faults. Raises UsageError for an unknown role, PlanError, for
    example, for a plan that does not record its flow or whose seconds are not known, and ResourceError for a role that
    cannot run as placed.
    """
    saved = NamedPlan.of(plan)
    prepared, where = saved.prepare(), saved.where
    roles = [role.name for role in prepared.problem.roles]
    if role is not None and role not in roles:
        raise UsageError(f"no role `{role}`", where=f"explain {where}", hint=nearest(role, roles))
    checked = saved_plan(saved.plan, prepared, where)
    forecast, step_s = checked.timed_forecast()
    return ExplainedPlan(
        roles=tuple(roles) if role is None else (role,),
        layouts=role is not None,
        step_s=step_s,
        faults=tuple(map(str, checked.overflows(forecast))),
        explanation=explain(prepared.problem, forecast),
    )


@dataclass(frozen=True, kw_only=True)
class CheckedPlan:
    """The faults of a plan's file, and notes on its seconds and on what cannot run here; `pruned` is always empty."""

    plan: str
    faults: tuple[str, ...]
    notes: tuple[str, ...] = ()
    pruned: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """Return the name of the plan's file and its faults as JSON-compatible data."""
        return {"plan": self.plan, "faults": list(self.faults)}


def check_plan_file(path: Path, cluster: str | None) -> CheckedPlan:
    """Check a plan's file against its flow and its cluster, or another `cluster`, and return the faults and notes.

    `cluster` is a short form such as `2x8xh100`, or a TOML file. Raises PlanError for a file that contains no plan, and
    ClusterError for a text that describes no cluster; other faults of the plan or its flow are returned, not raised.
    """
    saved = NamedPlan.of(path)
    plan, where = saved.plan, saved.where
    elsewhere = None if cluster is None else cluster_of(cluster)
    try:
        prepared = saved.prepare(elsewhere)
        faults = tuple(map(str, faults_of(plan, prepared, cluster or where, elsewhere)))
    except FlowError as error:
        return CheckedPlan(plan=where, faults=(str(error),))
    if faults:
        return CheckedPlan(plan=where, faults=faults)
    notes = list[str]()
    _, step_s = saved_plan(plan, prepared, where, elsewhere).timed_forecast()
    saved_s = plan.step.period_s if plan.step is not None else None
    if elsewhere is not None:
        notes.append(f"a step takes {show_s(step_s)} there")
    elif saved_s is not None and not isclose(saved_s, step_s, rel_tol=SETTLED_SHARE):
        notes.append(f"its file says {show_s(saved_s)} a step; the forecast is now {show_s(step_s)}")
    notes += [f"it names {name}, which cannot be run here" for name in unsupported_parts(plan)]
    return CheckedPlan(plan=where, faults=(), notes=tuple(notes))
