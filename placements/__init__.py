"""Where roles run: a search from a graph, models and a cluster to a plan, with its bytes and seconds."""

from __future__ import annotations

from placements.search.infeasibility import overflows
from placements.search.plan_builder import forecast_again, plan_of
from placements.search.search import PlanRequest, SearchResult, find
from placements.workload.planning_problem import PlanningProblem

__all__ = ["PlanRequest", "PlanningProblem", "SearchResult", "find", "forecast_again", "overflows", "plan_of"]
