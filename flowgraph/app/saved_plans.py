"""What you ask of a plan that is there: `simulate`, `compare`, `explain`, `check`. No torch is loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isclose
from pathlib import Path
from typing import Any

from flowgraph.app.plan_result import PlanLike
from flowgraph.app.problem import cluster_of
from flowgraph.app.replan import NamedPlan, faults_of, refuse_broken, saved_plan
from flowgraph.checks.placed import unsupported
from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.errors import FlowError, UsageError, nearest
from placements import compare, explain, known_step_s, report, simulate

SETTLED_SHARE = 1e-3  # of a step, within which the steps that are played take what they do in the long run


@dataclass(frozen=True, kw_only=True)
class SimulatedPlan:
    """The steps of a plan as they are played, and the seconds between steps once they follow each other."""

    plan: Plan
    played: report.Simulation
    period_s: float

    def data(self) -> dict[str, Any]:
        """Return each task and each time that a pool waits, in seconds."""
        idle, events = self.played.idle, self.played.events
        return {
            "period_s": self.period_s,
            "played_s": self.played.period_s,
            "events": [
                {"task": each.task, "pool": each.pool, "step": each.step, "start_s": each.start_s, "end_s": each.end_s}
                for each in events
            ],
            "bubbles": [
                {"pool": each.pool, "start_s": each.start_s, "end_s": each.end_s, "why": each.why} for each in idle
            ],
        }

    def text(self, columns: int = 100) -> str:
        """Return a timeline of at most this many columns."""
        lines, played_s = [self.played.text(columns)], self.played.period_s
        if played_s is None or not isclose(played_s, self.period_s, rel_tol=SETTLED_SHARE):
            lines.append(f"a step takes {self.period_s:,.1f} s once steps follow each other")
        return "\n".join([*lines, "\n".join(report.error_lines(self.plan))])

    def trace(self) -> str:
        """Return it as a Chrome trace, for ui.perfetto.dev."""
        return json.dumps(self.played.trace(f"{self.plan.flow}, predicted"), indent=1) + "\n"


def simulate_plan(plan: PlanLike, steps: int) -> SimulatedPlan:
    """Play the steps of a plan."""
    saved = NamedPlan.of(plan)
    refuse_broken(saved.plan, saved.where)
    step, step_s = saved.plan.step, known_step_s(saved.plan.step, saved.where)
    assert step is not None, "its seconds are known"
    return SimulatedPlan(plan=saved.plan, played=simulate(step, steps), period_s=step_s)


@dataclass(frozen=True)
class ComparedPlans:
    """Plans by the names of their files."""

    plans: tuple[tuple[str, Plan], ...]

    def data(self) -> dict[str, Any]:
        """Return each plan."""
        return {name: json.loads(plan.to_json()) for name, plan in self.plans}

    def text(self, columns: int = 100) -> str:
        """Return a table of at most this many columns."""
        return compare(self.plans, columns)


def compare_plans(plans: Sequence[PlanLike]) -> ComparedPlans:
    """Return plans that are compared."""
    if len(plans) < 2:
        raise UsageError("one plan is nothing to compare", where="compare", hint="compare A.json B.json")
    saved = [NamedPlan.of(each) for each in plans]
    for each in saved:
        refuse_broken(each.plan, each.where)
    in_files = all(isinstance(plan, str | Path) for plan in plans)
    names = [each.where if in_files else f"{place}: {each.where}" for place, each in enumerate(saved, 1)]
    return ComparedPlans(tuple((name, each.plan) for name, each in zip(names, saved, strict=True)))


@dataclass(frozen=True, kw_only=True)
class ExplainedPlan:
    """Why each role of a plan, or `one` of them, is where it is; `faults` say why the plan does not fit."""

    roles: tuple[str, ...]
    one: bool
    step_s: float
    faults: tuple[str, ...]
    explanation: report.Explanation

    @cached_property
    def elsewhere(self) -> dict[str, Any]:
        """Return what a step would take with each role on another pool."""
        return {role: self.explanation.alternatives(role) for role in self.roles}

    def data(self) -> list[dict[str, Any]]:
        """Return for each role its neighbours, and the seconds of a step with it elsewhere."""
        return [
            {
                "role": role,
                "beside": list(self.explanation.neighbours(role)),
                "step_s": self.step_s,
                "elsewhere": [
                    {"beside": list(other.neighbours), "step_s": other.ranked.step_s if other.ranked else None}
                    for other in self.elsewhere[role]
                ],
            }
            for role in self.roles
        ]

    def text(self) -> str:
        """Return for each role what a step would take with it elsewhere; of one role, its layouts too."""
        faster = self.explanation.faster_text()
        lines = [faster] if faster else []
        for role in self.roles:
            lines.append(self.explanation.text(role, self.elsewhere[role]))
            lines += [self.explanation.layouts_text(role)] if self.one else []
        return "\n".join(lines)


def explain_plan(plan: PlanLike, role: str | None) -> ExplainedPlan:
    """Find why each role of a plan, or one, is where it is, and what a step would take with it elsewhere."""
    saved = NamedPlan.of(plan)
    prepared, where = saved.prepare(), saved.where
    roles = [each.name for each in prepared.setting.roles]
    if role is not None and role not in roles:
        raise UsageError(f"no role `{role}`", where=f"explain {where}", hint=nearest(role, roles))
    checked = saved_plan(saved.plan, prepared, where)
    forecast, step_s = checked.timed_forecast()
    return ExplainedPlan(
        roles=tuple(roles) if role is None else (role,),
        one=role is not None,
        step_s=step_s,
        faults=tuple(map(str, checked.overflows(forecast))),
        explanation=explain(prepared.setting, forecast),
    )


@dataclass(frozen=True, kw_only=True)
class CheckedPlan:
    """The faults of a plan's file; `notes` say what it takes now, and what cannot be run here."""

    plan: str
    faults: tuple[str, ...]
    notes: tuple[str, ...] = ()
    pruned: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """Return the faults by the plan's file."""
        return {"plan": self.plan, "faults": list(self.faults)}


def check_plan_file(path: Path, cluster: str | None) -> CheckedPlan:
    """Return whether a plan is for its flow and fits its cluster, or another."""
    saved = NamedPlan.of(path)
    plan, where = saved.plan, saved.where
    other = None if cluster is None else cluster_of(cluster)
    try:
        prepared = saved.prepare(other)
        faults = tuple(str(each) for each in faults_of(plan, prepared, cluster or where, other))
    except FlowError as error:
        return CheckedPlan(plan=where, faults=(str(error),))
    if faults:
        return CheckedPlan(plan=where, faults=faults)
    notes = list[str]()
    _, step_s = saved_plan(plan, prepared, where, other).timed_forecast()
    saved_s = plan.step.period_s if plan.step is not None else None
    if other is not None:
        notes.append(f"a step takes {show_s(step_s)} there")
    elif saved_s is not None and not isclose(saved_s, step_s, rel_tol=SETTLED_SHARE):
        notes.append(f"its file says {show_s(saved_s)} a step; it is forecast to take {show_s(step_s)}")
    notes += [f"it names {name}, which cannot be run here" for name in unsupported(plan)]
    return CheckedPlan(plan=where, faults=(), notes=tuple(notes))
