"""The planner: from a planning problem to a plan with its bytes and seconds, and questions about a plan.

result = plan(PlanningProblem(...), PlanRequest(staleness="auto"))      search, with other staleness and what-ifs
forecast(problem, plan)                                                a plan's bytes and seconds, forecast again
SavedPlan(problem=..., plan=...)                                       the same for a plan from a file, with its faults
step_seconds(step, where)                                              the simulated seconds of a step
simulate(step, steps)                when each task of its steps runs, and what pools wait for
explain(problem, plan)               the seconds of a step with a role on another pool
compare([(name, plan), ...])         a table with one column for each plan

Packages: `calibration` fits scales of forecasts to measured runs, `report` writes texts and charts, and
`search.as_run` forecasts plans as another system runs them.
"""

from __future__ import annotations

from placements.hardware.device_profiles import known_devices
from placements.report.explain_report import explain
from placements.report.explain_report import plans_text as compare
from placements.report.simulation import simulate
from placements.search.answer import answer as plan
from placements.search.plan_builder import forecast_again as forecast
from placements.search.plan_request import PlanRequest
from placements.search.saved_plan import SavedPlan, known_step_s, step_seconds
from placements.workload.lengths import LengthDistribution
from placements.workload.planning_problem import PlanningProblem

__all__ = [
    "LengthDistribution",
    "PlanRequest",
    "PlanningProblem",
    "SavedPlan",
    "compare",
    "explain",
    "forecast",
    "known_devices",
    "known_step_s",
    "plan",
    "simulate",
    "step_seconds",
]
