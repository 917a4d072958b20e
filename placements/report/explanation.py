"""Why each role of a plan is where it is: the alternatives of a plan, as data and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from flowgraph.plan import Plan
from placements.report.explain_report import alternatives_text, fastest_text, layouts_text
from placements.search.alternatives import (
    AlternativePool,
    CurrentPlan,
    alternative_layouts,
    alternative_pools,
    parts_of,
)
from placements.search.named_placements import Parts
from placements.search.pool_options import PoolOptions
from placements.search.search import solved
from placements.workload.planning_problem import PlanningProblem


@dataclass(frozen=True)
class Explanation:
    """A plan of a problem, with the seconds of its step, to be asked about alternatives."""

    problem: PlanningProblem
    plan: Plan
    current: CurrentPlan

    @cached_property
    def parts(self) -> Parts:
        """Return the roles by the pool that they share."""
        return parts_of(self.plan)

    def neighbours(self, role: str) -> tuple[str, ...]:
        """Return the roles on the pool of a role, itself included."""
        return next(part for part in self.parts if role in part)

    def alternatives(self, role: str) -> tuple[AlternativePool, ...]:
        """Return what comes of the role on each other pool, or on one of its own."""
        return tuple(alternative_pools(self.problem, self.parts, role))

    def faster_text(self) -> str:
        """Say what the same pools take at their fastest; "" where the plan is as fast."""
        return fastest_text(self.current, solved(self.problem, PoolOptions(self.problem), self.parts))

    def text(self, role: str, found: Sequence[AlternativePool]) -> str:
        """Print what a step would take with the role elsewhere, the best first."""
        return alternatives_text(role, self.neighbours(role), self.current, found)

    def layouts_text(self, role: str) -> str:
        """Print the layouts that the role could have on its pool."""
        home = next(each for each in self.plan.placed if each.role == role)
        pool = next(each for each in self.plan.pools if each.name == home.pool)
        return layouts_text(role, alternative_layouts(self.problem, self.plan, role), len(pool.devices))


def explain(problem: PlanningProblem, plan: Plan) -> Explanation:
    """Return why the roles of a plan are where they are; its step must have all its seconds."""
    assert plan.step is not None and plan.step.period_s is not None, "a plan of known seconds is explained"
    return Explanation(problem, plan, CurrentPlan(plan.step, plan.step.period_s, len(plan.used())))
