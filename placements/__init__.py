"""Where roles run: from a planning problem to a plan with its bytes and seconds, and what can be asked of a plan.

found = plan(PlanningProblem(...), PlanRequest(objective="step"))   search
forecast(problem, plan)         a plan's bytes and seconds as they are forecast now
overflows(plan, problem, where) the errors of a plan that does not fit
simulate(step, steps)           when each task of its steps runs, and what pools wait for
explain(problem, plan)          what a step would take with a role elsewhere
compare([(name, plan), ...])    plans beside each other
calibrate(runs, source)         scales of forecasts, fitted to measured runs
"""

from __future__ import annotations

from placements.calibration.measured_runs import repair as calibrate
from placements.report.explain_report import plans_text as compare
from placements.report.explanation import explain
from placements.report.simulation import simulate
from placements.search.infeasibility import overflows
from placements.search.plan_builder import forecast_again as forecast
from placements.search.search import PlanRequest, SearchResult
from placements.search.search import find as plan
from placements.workload.lengths import LengthDistribution
from placements.workload.planning_problem import PlanningProblem

__all__ = [
    "LengthDistribution",
    "PlanRequest",
    "PlanningProblem",
    "SearchResult",
    "calibrate",
    "compare",
    "explain",
    "forecast",
    "overflows",
    "plan",
    "simulate",
]
