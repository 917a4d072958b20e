"""The result of planning: the plan, its problem and search, and the sizes of a step, as text and as data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.app.request import Target, Workload
from flowgraph.app.user_files import text_of, write_text
from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.errors import PlanError
from flowgraph.language.notebook import mimebundle
from flowgraph.runtime.record.fingerprint import irreproducible_parts
from placements import report

if TYPE_CHECKING:
    from flowgraph.app.planning.flow_inputs import FlowInputs
    from flowgraph.app.planning.problem import PreparedProblem
    from flowgraph.language.graph import Graph
    from placements import PlanningProblem

TOP = 5  # of the plans that a search found, how many are shown


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanResult:
    """A plan, its problem, and the search that found it; `search` is None for a plan from a file.

    `where` names the cluster or the plan's file. `notes` tell the user what was assumed, and what a run would do
    differently.
    """

    prepared: PreparedProblem
    plan: Plan
    where: str
    search: report.SearchResult | None = None
    notes: tuple[str, ...] = ()
    workload: Workload | None = None

    @property
    def problem(self) -> PlanningProblem:
        """Return the planning problem that the plan solves."""
        return self.prepared.problem

    @property
    def graph(self) -> Graph:
        """Return the flow's graph after passes."""
        return self.problem.graph

    @property
    def inputs(self) -> FlowInputs | None:
        """Return the rows, models and settings of the flow; None if the plan was made from lengths, without rows."""
        return self.prepared.inputs

    @property
    def step_s(self) -> float | None:
        """Return the forecast seconds of a step; None if the speed of a device is not known."""
        return self.plan.step.period_s if self.plan.step is not None else None

    @property
    def batch(self) -> report.BatchSizes:
        """Return the sizes of a step: rows, rows per rank, minibatches. Raises BatchError if they disagree."""
        return self.problem.batch_sizes(self.plan, **({} if self.inputs is None else self.inputs.row_origins()))

    def to_json(self) -> str:
        """Return the plan as JSON, in the form that `run`, `draw` and `export` read."""
        return self.plan.to_json()

    def save(self, path: str | Path) -> Path:
        """Write the plan as JSON, replacing an existing file; return the path. Raises UsageError if not writable."""
        write_text(Path(path), self.plan.to_json())
        return Path(path)

    def data(self, *, top: int = TOP) -> dict[str, Any]:
        """Return the data that `flowgraph plan --json` prints: the `plan` and, after a search, those of `answer_data`.

        `top` is the number of best plans of the search to list.
        """
        plan = json.loads(self.plan.to_json())
        if self.search is None:
            return {"plan": plan}
        return {"plan": plan, **report.answer_data(self.search, top, self.prepared.notes)}

    def text(self, *, top: int = TOP) -> str:
        """Return what `flowgraph plan` prints: the plan, after a search its `top` best plans, and the sizes of a step.

        Raises BatchError if these sizes do not go together.
        """
        if self.search is None:
            return "\n".join([*report.plan_lines(self.plan), *report.error_lines(self.plan), *self._batch_lines()])
        return "\n\n".join([report.answer_text(self.search, self.plan, top), "\n".join(self._batch_lines())])

    def _batch_lines(self) -> list[str]:
        lines = report.batch_lines(self.batch)
        if loose := irreproducible_parts(self.plan):
            alike = "repeated and resumed runs are statistically equivalent"
            lines += ["not bit-reproducible", *report.indented([f"{', '.join(loose)}: {alike}"])]
        return lines

    def __repr__(self) -> str:
        step = "seconds not known" if self.step_s is None else f"{show_s(self.step_s)} a step"
        return f"<plan of {self.plan.flow} on {self.where}: {len(self.plan.used())} devices, {step}>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {**mimebundle(self.plan), "text/plain": self.text()}


PlanLike = str | Path | Plan | PlanResult
"""A plan, what `plan` returned, or a plan's file."""


def plan_of(target: Target) -> Plan | None:
    """Return a target's plan, None if it has none; a file is read. Raises PlanError for a file without a plan."""
    return read_plan(target.plan) if isinstance(target.plan, Path) else target.plan


def read_plan(path: Path) -> Plan:
    """Return the plan in a JSON file. Raises PlanError for a file that cannot be read or does not contain a plan."""
    text = text_of(path, "plan", lambda why: PlanError.unreadable(str(path), "", why))
    return Plan.from_json(text, str(path))
