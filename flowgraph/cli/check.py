"""`check`: every fault of a flow, its settings, its passes and its plan that can be found; no torch is loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from flowgraph.checks.placed import unsupported
from flowgraph.cli.described import compiled_flow, described_flow
from flowgraph.cli.flow_request import FlowRequest
from flowgraph.cli.plan import searched
from flowgraph.cli.plan_result import SearchChoices, read_plan, sizes_of
from flowgraph.cli.planning_request import pose
from flowgraph.cli.refusals import refuse_untrainable, refuse_what_cannot_run
from flowgraph.cli.replan import faults_of, planned_again, posed_again
from flowgraph.errors import FlowError, ResourceError
from flowgraph.flows.flow_files import find_flow
from flowgraph.flows.settings import setting_faults, split_assignments
from flowgraph.lowering.lower import lower
from flowgraph.passes import named
from flowgraph.passes.verify import verified
from nodes.mismatch import watch_engines

if TYPE_CHECKING:
    from flowgraph.cli.plan_result import PlanTarget
    from flowgraph.cli.planning_request import PlanningProblem
    from flowgraph.cluster.plan import Plan
    from flowgraph.language.graph import Graph


def check_flow(asked: FlowRequest, where: PlanTarget, as_json: bool) -> int:
    """Print every fault, and give the exit code: 0 if there is none.

    A stage is looked at when the one before it has no fault: the flow's text; the settings; the passes, the models,
    the data and the plan.
    """
    notes = list[str]()  # what was taken for granted, what was not looked at, and that it fits
    with verified():
        found = list(dict.fromkeys(map(str, _faults(asked, where, notes))))
    if as_json:
        print(json.dumps({"flow": asked.flow, "faults": found, "notes": notes}, indent=1))
    else:
        for text in found:
            print(text)
        for line in notes:
            print(line, file=sys.stderr)
        for line in compiled_flow(asked).pruned if not found else ():
            print(f"left out: {line}", file=sys.stderr)
        print(count_faults(len(found), asked.flow), file=sys.stderr)
    return 1 if found else 0


def count_faults(faults: int, flow: str) -> str:
    """Sum a check up.

    >>> count_faults(0, "grpo"), count_faults(2, "grpo")
    ('grpo: no fault', 'grpo: 2 faults')
    """
    if not faults:
        return f"{flow}: no fault"
    return f"{flow}: {faults} fault{'s' if faults > 1 else ''}"


def _faults(asked: FlowRequest, where: PlanTarget, notes: list[str]) -> Iterator[FlowError]:
    """Give the faults of the first stage that has any."""
    for stage in (_in_text, _in_settings):
        found = list(stage(asked))
        if found:
            yield from found
            return
    try:
        yield from _where(asked, where, notes)
    except FlowError as error:
        yield error


def _where(asked: FlowRequest, where: PlanTarget, notes: list[str]) -> Iterator[FlowError]:
    """Return the faults of a plan that is there, or of the flow on the devices that are named or on this machine."""
    if where.plan is not None:
        yield from _in_plan(asked, read_plan(where.plan), where, notes)
    else:
        yield from _on_devices(asked, where, notes)


def _in_plan(asked: FlowRequest, plan: Plan, where: PlanTarget, notes: list[str]) -> Iterator[FlowError]:
    """Return the faults of a plan from a file, for the models, rows and lengths that it or the command line names."""
    posed = posed_again(plan, where.question(asked), str(where))
    yield from _raised(lambda: _refuse(posed))
    found = list(faults_of(plan, posed, str(where)))
    yield from found
    only_modelled = unsupported(plan)
    if not found:
        yield from _raised(lambda: sizes_of(planned_again(plan, posed, str(where), fits=False)))
    if not found and not only_modelled:
        yield from _raised(lambda: _lower(posed.setting.graph, plan, where))
    notes += [f"the plan names {name}, which cannot be run here" for name in only_modelled]


def _on_devices(asked: FlowRequest, where: PlanTarget, notes: list[str]) -> Iterator[FlowError]:
    """Return the faults of a flow on devices of a cluster, and note whether it fits if its models are named."""
    from placements.found_text import show_s

    posed = pose(where.question(asked))
    yield from _raised(lambda: _refuse(posed))
    if not asked.models and posed.inputs is None:
        command = f"flowgraph check {asked.flow} --cluster {where} --model Qwen/Qwen3-8B"
        notes.append(f"whether it fits on {where} is not known: no model is named\n  hint: {command}")
        return
    if posed.inputs is None:
        rows = f"{posed.setting.prompts:,} prompts a step, of {posed.assumed.prompt_tokens} tokens"
        notes.append(f"taken: {rows}, and responses as long as they may be; `flowgraph plan` takes others")
    try:
        made = searched(posed, SearchChoices(placement=where.placement or ""), str(where))
    except ResourceError as error:
        yield error
        return
    yield from _raised(lambda: sizes_of(made))
    yield from _raised(lambda: _lower(made.graph, made.plan, where))
    if posed.inputs is None and made.found is not None:
        best = made.found.best
        devices = "1 device" if best.devices == 1 else f"{best.devices} devices"
        notes.append(f"it fits on {where}: {show_s(best.step_s)} a step on {devices}; `flowgraph plan` says how")


def _refuse(posed: PlanningProblem) -> None:
    """Raise what a run of the question's flow would be refused for, wherever it runs."""
    if posed.inputs is None:
        refuse_untrainable(posed.setting.graph)
    else:
        refuse_what_cannot_run(posed.inputs)


def _lower(graph: Graph, plan: Plan, where: PlanTarget) -> None:

    lower(graph, plan, where=str(where), watch=watch_engines)


def _in_text(asked: FlowRequest) -> Iterator[FlowError]:
    file = find_flow(asked.flow)
    own, _ = split_assignments(list(file.flow.signature.settings.model_fields), asked.sets)
    yield from file.flow.faults(own)


def _in_settings(asked: FlowRequest) -> Iterator[FlowError]:
    _, graph, chosen = described_flow(asked.flow, asked.sets)
    yield from setting_faults(named(graph), chosen)


def _raised(doing: Callable[[], object]) -> Iterator[FlowError]:
    try:
        doing()
    except FlowError as error:
        yield error
