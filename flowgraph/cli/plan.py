"""`plan`, and what `run`, `show`, `draw` and `check` plan by: one search, or a plan's file forecast again. No torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.analysis.placed_graph import check_plan
from flowgraph.cli.flow_request import FlowInputs
from flowgraph.cli.plan_result import PlanResult, PlanTarget, SearchChoices, batch_lines, read_plan, warn
from flowgraph.cli.planning_request import PlanningProblem, PlanRequest, pose, scale_notes
from flowgraph.cli.replan import planned_again, posed_again
from flowgraph.cli.search_command import asked_of, given_options, print_costed
from flowgraph.cli.written_files import write_text
from flowgraph.errors import UsageError
from flowgraph.language.graph import Graph

if TYPE_CHECKING:
    pass


def plan_flow(question: PlanRequest, sought: SearchChoices, where: PlanTarget, out: Path | None, as_json: bool) -> None:
    """Print the plan of a flow, and write it to `out` as a file to edit; refuse one that does not fit."""
    if where.plan is None:
        print_costed(question, sought, out, as_json)
        return
    refuse_search_options(question, sought, where.plan)
    planned = planned_for(question, where)
    for note in scale_notes(planned.posed):
        print(note, file=sys.stderr)
    if out is not None:
        write_text(out, planned.plan.to_json())
    if as_json:
        print(json.dumps({"plan": json.loads(planned.plan.to_json())}, indent=1))
    else:
        from placements.found_text import plan_lines
        from placements.published_errors import error_lines

        print("\n".join([*plan_lines(planned.plan), *error_lines(planned.plan), *batch_lines(planned)]))
    if out is not None:
        print(out, file=sys.stderr)


Check = Callable[[FlowInputs | None, Graph], None]
"""What refuses rows and settings, or where there are none a graph, before anything is planned."""


def planned_for(
    question: PlanRequest, where: PlanTarget, *, fits: bool = True, check: Check | None = None
) -> PlanResult:
    """Plan a flow on its cluster, or read the plan that is named, which says itself what it was made for.

    Refuses a plan from a file that does not fit unless told not to, and first what `check` refuses.
    """
    plan = None if where.plan is None else read_plan(where.plan)
    posed = pose(question) if plan is None else posed_again(plan, question, str(where))
    if check is not None:
        check(posed.inputs, posed.setting.graph)
    if plan is None:
        return searched(posed, replace(SearchChoices(), placement=where.placement or ""), str(where))
    return planned_again(plan, posed, str(where), fits=fits)


def searched(posed: PlanningProblem, sought: SearchChoices, where: str) -> PlanResult:
    """Search the plan of a question. Raises ResourceError where nothing fits."""
    from placements.finding import find
    from placements.placing import plan_of

    asked = asked_of(sought, posed.setting)
    warn(posed)
    found = find(posed.setting, asked, robust=sought.robust)
    plan = plan_of(posed.setting, found.best.blocks, posed.assumed, asked.pins)
    check_plan(plan, posed.setting.graph, f"plan of {plan.flow}")
    return PlanResult(posed, plan, where, found)


def measured_plan(plan: Path | None, measured_on: Path | None, measured: Sequence[str]) -> Path | None:
    """Return the plan that seconds were measured on: the one named for them, else the one that is forecast again.

    Raises UsageError where both are named, for a plan without seconds, and for one that is not there.
    """
    if measured_on is not None and not measured:
        hint = "--measured policy.generate=142"
        raise UsageError("no seconds are given for it", where=f"--measured-on {measured_on}", hint=hint)
    if measured_on is not None and plan is not None:
        what = f"--plan {plan} is given too, and is what --measured is of"
        raise UsageError(what, where=f"--measured-on {measured_on}", hint="leave one of them out")
    if measured_on is not None and not measured_on.exists():
        raise UsageError("there is no such file", where=f"--measured-on {measured_on}", hint="the plan of that run")
    return measured_on or plan


def refuse_search_options(question: PlanRequest, sought: SearchChoices, plan: Path) -> None:
    """Refuse options that only a search answers beside a plan's file."""
    if given := given_options(replace(question, calibration=None), sought):
        hint = f"leave out --plan: flowgraph plan {question.asked.flow} --cluster 2x8xh100"
        raise UsageError(f"{given}: nothing is searched where a plan is given", where=f"--plan {plan}", hint=hint)
