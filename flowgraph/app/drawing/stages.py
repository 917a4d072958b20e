"""`show`: a flow at a stage, as text or data; the diff of two stages; facts about a step. No torch is loaded."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flowgraph.analysis.facts import ValueFacts, value_facts
from flowgraph.analysis.flat_graph import flat, full_hash, structure_hash
from flowgraph.analysis.state import StateItem, carried_state, state_json, state_text
from flowgraph.app.planning.flow_inputs import compiled_flow, described_flow
from flowgraph.app.planning.make_plan import planned_for
from flowgraph.app.request import Request, Say
from flowgraph.cluster.cluster import show_bytes
from flowgraph.errors import UsageError, nearest
from flowgraph.language.graph import Graph
from flowgraph.language.laws import STAGES
from flowgraph.lowering.lower import lower
from flowgraph.passes import named
from flowgraph.serialize.columns import columns
from flowgraph.serialize.graph_text import graph_text
from flowgraph.serialize.placed_text import placed_text
from flowgraph.serialize.program import program_to_json
from flowgraph.serialize.program_text import program_text
from nodes.mismatch import watch_engines
from placements import report

if TYPE_CHECKING:
    from flowgraph.app.planning.plan_result import PlanResult
    from flowgraph.lowering.program import Program
    from placements import report


@dataclass(frozen=True)
class FlowStage:
    """A flow at one stage of compilation; `say` receives the notes of planning.

    The stages are `described` (as written), `named` (after passes), `placed` (with a plan), and `lowered` (the
    program). Raises UsageError for an unknown stage.
    """

    request: Request
    stage: str
    say: Say

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise UsageError(f"no stage `{self.stage}`", where="--stage", hint=nearest(self.stage, STAGES))

    def text(self, *, sites: bool = True) -> str:
        """Return the flow at this stage as text; `sites` adds the file and line of each node, except at `lowered`.

        The stages after `named` make a plan first, and raise the errors of planning.
        """
        if (graph := self._graph) is not None:
            return graph_text(graph, sites=sites)
        planned = self._planned
        if self.stage == "placed":
            return placed_text(planned.graph, planned.plan, sites=sites)
        return program_text(self._lowered)

    def data(self) -> dict[str, Any]:
        """Return the flow at this stage as JSON-compatible data, with the version of its schema.

        At `described` and `named`, it is the graph as `flat` returns it, at `named` with `structure_hash` and
        `full_hash`; at `placed`, `graph` and `plan`; at `lowered`, the data of `program_to_json`. The stages after
        `named` make a plan first, and raise the errors of planning.
        """
        if (graph := self._graph) is not None:
            hashes = {"structure_hash": structure_hash(graph), "full_hash": full_hash(graph)}
            return flat(graph) | (hashes if self.stage == "named" else {})
        if self.stage == "placed":
            return {"graph": flat(self._planned.graph), "plan": json.loads(self._planned.plan.to_json())}
        data: dict[str, Any] = json.loads(program_to_json(self._lowered))
        return data

    def compared_text(self) -> str:
        """Return the stage's text for a diff: all nodes are named, without files and lines; raises as `text` does."""
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
    """Return a unified diff, with all lines, of `compared_text` of a flow at two stages; "" if the texts are equal."""
    old_name, new_name = (f"{stage.request.flow} {stage.stage}" for stage in (old, new))
    return unified_diff(old.compared_text(), new.compared_text(), old_name, new_name)


def unified_diff(old: str, new: str, old_name: str, new_name: str) -> str:
    """Return a unified diff of two texts, with all lines, and the names at its head; "" if the texts are equal."""
    old_lines, new_lines = (f"{text}\n".splitlines(keepends=True) for text in (old, new))
    lines = difflib.unified_diff(old_lines, new_lines, old_name, new_name, n=max(len(old_lines), len(new_lines)))
    return "".join(lines)


@dataclass(frozen=True)
class FlowFacts:
    """Facts about a step before it runs: FLOPs of nodes, bytes on edges, carried state, and values."""

    planned: PlanResult

    def text(self) -> str:
        """Return the facts as tables of plain text; `?` marks a value that is not known."""
        facts, state = self._step_facts, carried_state(self.planned.graph)
        values = values_text(value_facts(self.planned.graph))
        return f"{facts_text(facts, state)}\n\nfacts of each value\n{values}"

    def data(self) -> dict[str, Any]:
        """Return the facts as JSON-compatible data: those of `facts_json`, and `values`, a list of ValueFacts as dicts.

        A number that is not known is None, and a fact of a value that is not known "".
        """
        values = [asdict(value) for value in value_facts(self.planned.graph)]
        return facts_json(self._step_facts, carried_state(self.planned.graph)) | {"values": values}

    @property
    def _step_facts(self) -> report.StepFacts:
        planned = self.planned
        return report.step_facts(planned.graph, planned.problem.shapes, planned.problem.workload, planned.plan)


def flow_facts(request: Request, say: Say) -> FlowFacts:
    """Return the facts about a step of the flow that a request names, by the plan that it names or that is found.

    A named plan need not fit. `say` receives each note of planning. Raises the errors of `planned_for`.
    """
    return FlowFacts(planned_for(request, say, fits=False))


COLUMNS = 120
UNKNOWN = "?"
PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z")


def facts_text(facts: report.StepFacts, state: Sequence[StateItem]) -> str:
    """Return the facts about a step and the state that a run carries as plain-text tables; `?` is an unknown value."""
    prompts = f"{facts.prompts:,} prompt{'' if facts.prompts == 1 else 's'} of at most {facts.prompt_tokens:,} tokens"
    rows = [["node", "kind", "role", "rows", "tokens", "FLOPs"]]
    for node in facts.nodes:
        counts = (UNKNOWN if count is None else f"{count:,}" for count in (node.rows, node.tokens))
        rows.append([node.node, node.kind, node.role, *counts, show_flops(node.flops)])
    nodes = _table([*rows, ["all", "", "", "", "", show_flops(facts.flops)]], right=(3, 4, 5))
    lines = [f"facts of a step of {facts.flow}: {prompts}, every response at its maximum length"]
    lines += ["", *nodes, "", *_edges(facts.edges), "", "state that a run carries and a checkpoint stores"]
    return "\n".join([*lines, *(f"  {line}" for line in state_text(state).splitlines())])


def values_text(values: Sequence[ValueFacts]) -> str:
    """Return a plain-text table with a row for each value of a flow.

    Its columns are the value's type, its kind, whose rows the value has, which mask aligns its tokens, and which
    weights computed the value, at which temperature.
    """
    heads = ["value", "type", "kind", "rows of", "mask", "weights, at temperature"]
    cells = [[value.value, value.type, value.kind, value.rows, value.mask, value.weights] for value in values]
    return "\n".join(_table([heads, *cells]))


def _edges(edges: Sequence[report.EdgeFacts]) -> Iterator[str]:
    planned = any(edge.crosses is not None for edge in edges)
    rows = [["value", "read by", "bytes", *(["travels"] if planned else [])]]
    for edge in edges:
        size = show_bytes(edge.known_bytes)
        if edge.size_bytes is None:
            size = f"{size} + {UNKNOWN}" if edge.known_bytes else UNKNOWN
        rows.append([edge.value, edge.reader, size, *(["yes" if edge.crosses else "no"] if planned else [])])
    heads = list(_table(rows, right=(2,)))
    place = max(map(len, heads)) + 2
    yield f"{heads[0].ljust(place)}parts"
    for head, edge in zip(heads[1:], edges, strict=True):
        start, line = head.ljust(place), ""
        for part in edge.parts:
            text = f"{part.name} {UNKNOWN if part.size_bytes is None else show_bytes(part.size_bytes)}"
            if line and len(f"{line} · {text}") > COLUMNS - place:
                yield start + line
                start, line = " " * place, ""
            line = f"{line} · {text}" if line else text
        yield start + line


def _table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    return (f"  {line}" for line in columns(rows, right))


def show_flops(flops: int | None) -> str:
    """Return a number of floating-point operations as text in the largest decimal unit, up to Z; `?` for None.

    Numbers from 1,000 on have two decimals.

    >>> show_flops(1_234_000_000), show_flops(999), show_flops(999_999), show_flops(0), show_flops(None)
    ('1.23 G', '999', '1.00 M', '0', '?')
    """
    if flops is None:
        return UNKNOWN
    scale = 0
    while scale < len(PREFIXES) - 1 and float(f"{flops / 1000**scale:.3g}") >= 1000:
        scale += 1
    return f"{flops / 1000**scale:.2f} {PREFIXES[scale]}" if scale else str(flops)


def facts_json(facts: report.StepFacts, state: Sequence[StateItem]) -> dict[str, Any]:
    """Return the facts about a step, and the state that a run carries, as JSON-compatible data; None is unknown.

    The keys are `flow`, `prompts` (in a step), `prompt_tokens` (at most), `nodes` (NodeFacts as dicts), `edges` and
    `state` (as `state_json` returns it). An edge has its `value`, `reader`, `bytes`, the bytes of its `parts`, and
    `crosses`: whether the plan sends the value to the reader from another place.
    """
    edges = [
        {
            "value": edge.value,
            "reader": edge.reader,
            "crosses": edge.crosses,
            "bytes": edge.size_bytes,
            "parts": {part.name: part.size_bytes for part in edge.parts},
        }
        for edge in facts.edges
    ]
    return {
        "flow": facts.flow,
        "prompts": facts.prompts,
        "prompt_tokens": facts.prompt_tokens,
        "nodes": [asdict(node) for node in facts.nodes],
        "edges": edges,
        "state": state_json(state),
    }
