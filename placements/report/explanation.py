"""Why each role of a plan is on its pool: the alternatives of a plan, as data and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from flowgraph.cluster.plan import Plan
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
    """The alternatives of a plan whose seconds are known."""

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
        """Return the best plan with the role on each other pool, and on one of its own."""
        return tuple(alternative_pools(self.problem, self.parts, role))

    def faster_text(self) -> str:
        """Return the step of the same pools at their fastest; "" where the plan is as fast."""
        return fastest_text(self.current, solved(self.problem, PoolOptions(self.problem), self.parts))

    def text(self, role: str, pools: Sequence[AlternativePool]) -> str:
        """Return the seconds of a step with the role on these pools, the best first, as text."""
        return alternatives_text(role, self.neighbours(role), self.current, pools)

    def layouts_text(self, role: str) -> str:
        """Return the layouts that the role could have on its pool, as text."""
        home = next(placed for placed in self.plan.placed if placed.role == role)
        pool = next(pool for pool in self.plan.pools if pool.name == home.pool)
        return layouts_text(role, alternative_layouts(self.problem, self.plan, role), len(pool.devices))


def explain(problem: PlanningProblem, plan: Plan) -> Explanation:
    """Return the alternatives of a plan; all seconds of its step must be known."""
    assert plan.step is not None and plan.step.period_s is not None, "only a plan of known seconds can be explained"
    return Explanation(problem, plan, CurrentPlan(plan.step, plan.step.period_s, len(plan.used())))
