"""`show`: a flow at a stage, as text or data; two stages side by side; its facts. No torch is loaded."""

from __future__ import annotations

import difflib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flowgraph.analysis.facts import values_of
from flowgraph.analysis.flat_graph import flat, full_hash, structure_hash
from flowgraph.analysis.state import state_of
from flowgraph.app.drawing.facts_text import facts_json, facts_text, values_text
from flowgraph.app.planning.flow_inputs import compiled_flow, described_flow
from flowgraph.app.planning.make_plan import planned_for
from flowgraph.app.request import Request, Say
from flowgraph.errors import UsageError, nearest
from flowgraph.language.graph import Graph
from flowgraph.language.laws import STAGES
from flowgraph.lowering.lower import lower
from flowgraph.passes import named
from flowgraph.serialize.graph_text import graph_text
from flowgraph.serialize.placed_text import placed_text
from flowgraph.serialize.program import program_to_json
from flowgraph.serialize.program_text import program_text
from nodes.mismatch import watch_engines
from placements import report

if TYPE_CHECKING:
    from flowgraph.app.planning.plan_result import PlanResult
    from flowgraph.lowering.program import Program


@dataclass(frozen=True)
class FlowStage:
    """A flow at a stage: as it was described, as its passes left it, placed by a plan, or lowered."""

    request: Request
    stage: str
    say: Say

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            hint = nearest(self.stage, STAGES) or f"known: {', '.join(STAGES)}"
            raise UsageError(f"no stage `{self.stage}`", where="--stage", hint=hint)

    def text(self, *, sites: bool = True) -> str:
        """Return it as text; `sites` adds the flow's file and line."""
        if (graph := self._graph) is not None:
            return graph_text(graph, sites=sites)
        planned = self._planned
        if self.stage == "placed":
            return placed_text(planned.graph, planned.plan, sites=sites)
        return program_text(self._lowered)

    def data(self) -> dict[str, Any]:
        """Return it as data, with its schema's version."""
        if (graph := self._graph) is not None:
            hashes = {"structure_hash": structure_hash(graph), "full_hash": full_hash(graph)}
            return flat(graph) | (hashes if self.stage == "named" else {})
        if self.stage == "placed":
            return {"graph": flat(self._planned.graph), "plan": json.loads(self._planned.plan.to_json())}
        data: dict[str, Any] = json.loads(program_to_json(self._lowered))
        return data

    def compared_text(self) -> str:
        """Return it as it is compared: without lines of files, and by names where passes come first."""
        if self.stage == "described" and (graph := self._graph) is not None:
            return graph_text(named(graph), sites=False)
        return self.text(sites=False)

    @cached_property
    def _graph(self) -> Graph | None:
        # at the two stages that come before a plan
        workload = self.request.workload
        if self.stage == "described":
            return described_flow(workload.flow, workload.settings)[1]
        return compiled_flow(workload) if self.stage == "named" else None

    @cached_property
    def _planned(self) -> PlanResult:
        return planned_for(self.request, self.say, fits=False)

    @property
    def _lowered(self) -> Program:
        planned = self._planned
        return lower(planned.graph, planned.plan, where=str(self.request.target), watch=watch_engines)


def compared_stages(old: FlowStage, new: FlowStage) -> str:
    """Return a unified diff of two stages of a flow; "" when they are the same."""
    old_name, new_name = (f"{stage.request.flow} {stage.stage}" for stage in (old, new))
    return unified_diff(old.compared_text(), new.compared_text(), old_name, new_name)


def unified_diff(old: str, new: str, old_name: str, new_name: str) -> str:
    """Return a unified diff of two texts, with all their lines; "" when they are the same."""
    old_lines, new_lines = (f"{text}\n".splitlines(keepends=True) for text in (old, new))
    lines = difflib.unified_diff(old_lines, new_lines, old_name, new_name, n=max(len(old_lines), len(new_lines)))
    return "".join(lines)


@dataclass(frozen=True)
class FlowFacts:
    """What is known of a step before it runs: work of nodes, bytes on edges, and the state it carries."""

    planned: PlanResult

    def text(self) -> str:
        """Return tables; `?` is what is not known."""
        facts, state = self._step_facts, state_of(self.planned.graph)
        values = values_text(values_of(self.planned.graph))
        return f"{facts_text(facts, state)}\n\nwhat is known of each value\n{values}"

    def data(self) -> dict[str, Any]:
        """Return the facts as data."""
        values = [asdict(value) for value in values_of(self.planned.graph)]
        return facts_json(self._step_facts, state_of(self.planned.graph)) | {"values": values}

    @property
    def _step_facts(self) -> report.StepFacts:
        planned = self.planned
        return report.step_facts(planned.graph, planned.setting.shapes, planned.setting.workload, planned.plan)


def flow_facts(request: Request, say: Say) -> FlowFacts:
    """Return what is known of a step of a flow, whether its plan fits or not."""
    return FlowFacts(planned_for(request, say, fits=False))
