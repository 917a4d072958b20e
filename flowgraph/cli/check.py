"""`check`: every fault of a flow, its settings, its passes and its plan that can be found; no torch is loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from flowgraph.cli.inputs import Asked, read_inputs
from flowgraph.cli.show import compiled_flow, described_flow
from flowgraph.errors import FlowError, ResourceError
from flowgraph.files import find_flow
from flowgraph.passes import named
from flowgraph.passes.verify import verified
from flowgraph.settings import setting_faults, split_assignments

if TYPE_CHECKING:
    from flowgraph.cli.plan import Where
    from flowgraph.plan import Plan


def check_flow(asked: Asked, where: Where, as_json: bool) -> int:
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


def _faults(asked: Asked, where: Where, notes: list[str]) -> Iterator[FlowError]:
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


def _where(asked: Asked, where: Where, notes: list[str]) -> Iterator[FlowError]:
    """Give the faults of a plan that is there, of the devices that are named, or of this machine."""
    from flowgraph.cli.plan import read_plan
    from flowgraph.cli.setting import cluster_of, has_profiles

    plan = None if where.plan is None else read_plan(where.plan)
    if plan is not None and plan.costed and plan.assumed is not None:
        yield from _in_costed(asked, plan, str(where))
    elif where.cluster is not None and has_profiles(cluster_of(where.cluster)):
        yield from _on_devices(asked, where.cluster, where.placement or "", notes)
    else:
        yield from _in_plan(asked, where)


def _in_costed(asked: Asked, plan: Plan, where: str) -> Iterator[FlowError]:
    """Give the faults of a plan for costing, for the models, rows and lengths that it names."""
    from flowgraph.cli.plan import sizes_of
    from flowgraph.cli.reforecast import faults_of, planned_again
    from flowgraph.cli.run import refuse_untrainable
    from flowgraph.cli.setting import posed_by

    posed = posed_by(plan, where, asked=asked)
    yield from _raised(lambda: refuse_untrainable(posed.setting.graph))
    found = list(faults_of(plan, posed, where))
    yield from found
    if not found:
        yield from _raised(lambda: sizes_of(planned_again(plan, asked, where, fits=False)))


def _on_devices(asked: Asked, cluster: str, placement: str, notes: list[str]) -> Iterator[FlowError]:
    """Give the faults of a flow on devices whose speed is known, and say whether it fits if its models are named."""
    from flowgraph.cli.costed import Sought, asked_of
    from flowgraph.cli.run import refuse_untrainable, refuse_what_cannot_run
    from flowgraph.cli.setting import Question, planned_graph, pose
    from placements.batch_sizes import solve_batch
    from placements.finding import find
    from placements.found_text import show_s

    graph = planned_graph(asked)
    if asked.data is not None:
        refuse_what_cannot_run(read_inputs(asked))
    refuse_untrainable(graph)
    if not asked.models:
        command = f"flowgraph check {asked.flow} --cluster {cluster} --model Qwen/Qwen3-8B"
        notes.append(f"whether it fits on {cluster} is not known: no model is named\n  hint: {command}")
        return
    posed = pose(Question(asked, cluster))
    rows = f"{posed.setting.prompts:,} prompts a step, of {posed.assumed.prompt_tokens} tokens"
    notes.append(f"taken: {rows}, and responses as long as they may be; `flowgraph plan` takes others")
    try:
        best = find(posed.setting, asked_of(Sought(placement=placement), posed.setting)).best
    except ResourceError as error:
        yield error
        return
    plan, tokens = best.plan(posed.assumed), int(posed.setting.prompt.most)
    yield from _raised(lambda: solve_batch(graph, posed.setting.prompts, plan=plan, prompt_tokens=tokens))
    devices = "1 device" if best.devices == 1 else f"{best.devices} devices"
    notes.append(f"it fits on {cluster}: {show_s(best.step_s)} a step on {devices}; `flowgraph plan` says how")


def _in_text(asked: Asked) -> Iterator[FlowError]:
    file = find_flow(asked.flow)
    own, _ = split_assignments(list(file.flow.signature.settings.model_fields), asked.sets)
    yield from file.flow.faults(own)


def _in_settings(asked: Asked) -> Iterator[FlowError]:
    _, graph, chosen = described_flow(asked.flow, asked.sets)
    yield from setting_faults(named(graph), chosen)


def _in_plan(asked: Asked, where: Where) -> Iterator[FlowError]:
    from flowgraph.cli.plan import planned, refuse_what_does_not_fit, sizes_of
    from flowgraph.cli.run import refuse_what_cannot_run
    from flowgraph.lowering.lower import lower
    from nodes.mismatch import watch_engines

    try:
        inputs = read_inputs(asked)
        yield from _raised(lambda: refuse_what_cannot_run(inputs))
        found = planned(inputs, where, fits=False)
    except FlowError as error:
        yield error
        return
    yield from _raised(lambda: sizes_of(found))
    yield from _raised(lambda: refuse_what_does_not_fit(found, where))
    yield from _raised(lambda: lower(inputs.graph, found.plan, where=str(where), watch=watch_engines))


def _raised(doing: Callable[[], object]) -> Iterator[FlowError]:
    try:
        doing()
    except FlowError as error:
        yield error
