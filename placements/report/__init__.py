"""Search results, plans and timelines as text and as data of charts."""

from placements.format import show_devices
from placements.memory.footprint import FILLS
from placements.report.answer_report import answer_data, answer_text, batch_lines, indented
from placements.report.charts import arrow_sizes, comparison_chart, search_chart
from placements.report.explain_report import Explanation
from placements.report.published_errors import error_lines, step_error
from placements.report.search_report import plan_lines, pool_lines, pools_of
from placements.report.simulation import Simulation
from placements.search.notes import planner_notes, scale_notes
from placements.search.saved_plan import tightness
from placements.search.search import TIED_SHARE, SearchResult
from placements.workload.batch_partition import BatchSizes
from placements.workload.step_facts import EdgeFacts, StepFacts, step_facts

__all__ = [
    "FILLS",
    "TIED_SHARE",
    "BatchSizes",
    "EdgeFacts",
    "Explanation",
    "SearchResult",
    "Simulation",
    "StepFacts",
    "answer_data",
    "answer_text",
    "arrow_sizes",
    "batch_lines",
    "comparison_chart",
    "error_lines",
    "indented",
    "plan_lines",
    "planner_notes",
    "pool_lines",
    "pools_of",
    "scale_notes",
    "search_chart",
    "show_devices",
    "step_error",
    "step_facts",
    "tightness",
]
