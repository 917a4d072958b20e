"""`show`: a flow at a stage, as text or JSON; two side by side; its facts. No torch is loaded."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from flowgraph.analysis.facts import values_of
from flowgraph.analysis.flat_graph import flat, full_hash, structure_hash
from flowgraph.analysis.state import state_of
from flowgraph.cli.described import compiled_flow, described_flow
from flowgraph.cli.facts import facts_json, facts_text, values_text
from flowgraph.errors import UsageError, nearest
from flowgraph.language.laws import STAGES
from flowgraph.lowering.lower import lower
from flowgraph.passes import named
from flowgraph.serialize.graph_text import graph_text
from flowgraph.serialize.placed_text import placed_text
from flowgraph.serialize.program import program_to_json
from flowgraph.serialize.program_text import program_text
from nodes.mismatch import watch_engines

if TYPE_CHECKING:
    from flowgraph.cli.flow_request import FlowRequest
    from flowgraph.cli.plan_result import PlanResult, PlanTarget
    from flowgraph.lowering.program import Program


@dataclass(frozen=True)
class ShowTarget:
    """What is shown: a flow, at a stage, planned for somewhere."""

    asked: FlowRequest
    stage: str
    where: PlanTarget


def show_flow(shown: ShowTarget, diff: tuple[str, str] | None, as_json: bool) -> None:
    """Print what stands at a stage, or how two of them differ."""
    _check_stage(shown.stage, STAGES)
    if diff is not None:
        _show_diff(shown, diff)
        return
    print(json.dumps(_as_data(shown), indent=1) if as_json else text_of(shown))


def _show_diff(shown: ShowTarget, diff: tuple[str, str]) -> None:
    """Print a unified diff of two stages of a flow; nothing when they are the same."""
    one, other = (_named(shown, name) for name in diff)
    texts = [f"{_bare(each)}\n".splitlines(keepends=True) for each in (one, other)]
    names = [f"{each.asked.flow} {each.stage}" for each in (one, other)]
    whole = max(map(len, texts))
    if texts[0] == texts[1]:
        print("no difference", file=sys.stderr)
    sys.stdout.writelines(difflib.unified_diff(texts[0], texts[1], names[0], names[1], n=whole))


def _bare(shown: ShowTarget) -> str:
    """Give what stands at a stage as it is compared: without lines of files, and by names where passes come first."""
    if shown.stage == "described":
        return graph_text(named(described_flow(shown.asked.flow, shown.asked.sets)[1]), sites=False)
    return text_of(shown, sites=False)


def _named(shown: ShowTarget, stage: str) -> ShowTarget:
    """Give the stage that one side of a comparison names."""
    _check_stage(stage, STAGES)
    return replace(shown, stage=stage)


def text_of(shown: ShowTarget, *, sites: bool = True) -> str:
    """Give what stands at a stage as text; `sites` adds the flow's file and line."""
    asked = shown.asked
    if shown.stage == "described":
        return graph_text(described_flow(asked.flow, asked.sets)[1], sites=sites)
    if shown.stage == "named":
        return graph_text(compiled_flow(asked), sites=sites)
    found = plan_for(shown)
    if shown.stage == "placed":
        return placed_text(found.graph, found.plan, sites=sites)
    return program_text(_lowered(found, shown.where))


def _as_data(shown: ShowTarget) -> dict[str, Any]:
    """Give what stands at a stage as data, with its schema's version; all but the described graph can be read back."""
    asked = shown.asked
    if shown.stage == "described":
        return flat(described_flow(asked.flow, asked.sets)[1])
    if shown.stage == "named":
        graph = compiled_flow(asked)
        return flat(graph) | {"structure_hash": structure_hash(graph), "full_hash": full_hash(graph)}
    found = plan_for(shown)
    if shown.stage == "placed":
        return {"graph": flat(found.graph), "plan": json.loads(found.plan.to_json())}
    data: dict[str, Any] = json.loads(program_to_json(_lowered(found, shown.where)))
    return data


def plan_for(shown: ShowTarget) -> PlanResult:
    """Plan a flow, whether the plan fits or not."""
    from flowgraph.cli.plan import planned_for

    return planned_for(shown.where.question(shown.asked), shown.where, fits=False)


def _lowered(found: PlanResult, where: PlanTarget) -> Program:

    return lower(found.graph, found.plan, where=str(where), watch=watch_engines)


def show_facts(asked: FlowRequest, where: PlanTarget, as_json: bool) -> None:
    """Print what is known of a step before it runs: work of nodes, bytes on edges, and the state it carries."""
    from flowgraph.cli.plan import planned_for
    from flowgraph.cli.replan import work_of
    from placements.step_facts import step_facts

    found = planned_for(where.question(asked), where, fits=False)
    facts = step_facts(found.graph, found.setting.shapes, work_of(found.setting), found.plan)
    state = state_of(found.graph)
    values = values_of(found.graph)
    if as_json:
        print(json.dumps(facts_json(facts, state) | {"values": [asdict(each) for each in values]}, indent=1))
    else:
        print(f"{facts_text(facts, state)}\n\nwhat is known of each value\n{values_text(values)}")


def _check_stage(stage: str, known: Sequence[str]) -> None:
    if stage not in known:
        hint = nearest(stage, known) or f"known: {', '.join(known)}"
        raise UsageError(f"no stage `{stage}`", where="--stage", hint=hint)
