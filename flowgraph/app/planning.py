"""`plan`, and what `run`, `show`, `draw` and `check` plan by: one search, or a plan's file forecast again. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from flowgraph.app.flow_inputs import FlowInputs
from flowgraph.app.plan_result import PlanResult, plan_of
from flowgraph.app.problem import prepare, scale_notes
from flowgraph.app.replan import plan_again, prepare_again
from flowgraph.app.request import Request, Say, Search, option
from flowgraph.app.searching import search_result, searched
from flowgraph.errors import UsageError
from flowgraph.language.graph import Graph


def make_plan(request: Request, say: Say) -> PlanResult:
    """Return the best plan that a request asks for, or the plan that it names, as it is forecast now."""
    notes = list[str]()

    def note(line: str) -> None:
        notes.append(line)
        say(line)

    if request.target.plan is None:
        result = search_result(request, note)
    else:
        _refuse_search_options(request)
        result = planned_for(request, note)
        for line in scale_notes(result.setting):
            note(line)
    return replace(result, notes=tuple(notes), workload=request.workload)


Check = Callable[[FlowInputs | None, Graph], None]
"""What refuses rows and settings, or where there are none a graph, before anything is planned."""


def planned_for(request: Request, say: Say, *, fits: bool = True, check: Check | None = None) -> PlanResult:
    """Plan a flow on its cluster, or forecast the plan that is named, which has its own.

    Refuses a plan that does not fit if it `fits` is asked of it, and first what `check` refuses.
    """
    plan, where = plan_of(request.target), str(request.target)
    prepared = prepare(request) if plan is None else prepare_again(plan, request, where)
    if check is not None:
        check(prepared.inputs, prepared.setting.graph)
    if plan is None:
        return searched(prepared, request.target, say)
    return plan_again(plan, prepared, where, say, fits=fits)


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


def _refuse_search_options(request: Request) -> None:
    """Refuse options that only a search answers beside a plan's file."""
    workload, plain, search = request.workload, Search(), request.search
    names = [name for name in ("prompt_tokens", "response_tokens") if getattr(workload, name) is not None]
    names += [
        name for name in Search.model_fields if name != "calibration" and getattr(search, name) != getattr(plain, name)
    ]
    if names:
        hint = f"leave out --plan: flowgraph plan {request.flow} --cluster 2x8xh100"
        what = f"{', '.join(map(option, names))}: nothing is searched where a plan is given"
        raise UsageError(what, where=f"--plan {request.target}", hint=hint)
