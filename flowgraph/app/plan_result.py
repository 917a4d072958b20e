"""A plan as an answer: what it was made for, the search that found it, the sizes of a step, as text and as data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.app.request import Target, Workload
from flowgraph.cluster.plan import Plan
from flowgraph.errors import PlanError
from flowgraph.files.untrusted import read_text
from flowgraph.language.notebook import mimebundle
from flowgraph.runtime.record.fingerprint import without_bits

if TYPE_CHECKING:
    from flowgraph.app.flow_inputs import FlowInputs
    from flowgraph.app.problem import PreparedProblem
    from flowgraph.language.graph import Graph
    from placements import PlanningProblem, SearchResult
    from placements.search.ranked_plan import RankedPlan
    from placements.search.staleness import StalenessOption
    from placements.search.what_if import WhatIf
    from placements.solver.problem import Objective
    from placements.workload.batch_partition import BatchSizes

TOP = 5  # of the plans that a search found, how many are shown


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanResult:
    """A plan and how it was found; `search` is None for a plan from a file.

    `what_if` are the searches with one thing changed, `staleness` the plans with other staleness, where these were
    asked for. `notes` are for you: what was assumed, and what a run would do otherwise.
    """

    prepared: PreparedProblem
    plan: Plan
    where: str
    search: SearchResult | None = None
    what_if: tuple[WhatIf, ...] = ()
    staleness: tuple[StalenessOption, ...] = ()
    notes: tuple[str, ...] = ()
    workload: Workload | None = None

    @property
    def setting(self) -> PlanningProblem:
        """Return the planning problem."""
        return self.prepared.setting

    @property
    def graph(self) -> Graph:
        """Return the flow's graph."""
        return self.setting.graph

    @property
    def inputs(self) -> FlowInputs | None:
        """Return the rows and settings of a run; None where only lengths are known."""
        return self.prepared.inputs

    @property
    def step_s(self) -> float | None:
        """Return the forecast seconds of a step; None where the speed of a device is not known."""
        return self.plan.step.period_s if self.plan.step is not None else None

    @property
    def batch(self) -> BatchSizes:
        """Return the sizes of a step: rows, shares of ranks, minibatches. Raises BatchError where they do not fit."""
        return sizes_of(self)

    def to_json(self) -> str:
        """Return the plan's file, which `run`, `draw` and `export` take."""
        return self.plan.to_json()

    def save(self, path: str | Path) -> Path:
        """Write the plan's file, which `run`, `draw` and `export` take; return its path."""
        from flowgraph.app.written_files import write_text

        write_text(Path(path), self.plan.to_json())
        return Path(path)

    def data(self, *, top: int = TOP) -> dict[str, Any]:
        """Return what `flowgraph plan --json` prints, with at most `top` of the plans that were found."""
        plan = json.loads(self.plan.to_json())
        if self.search is None:
            return {"plan": plan}
        objective = self.search.objective
        return {
            "plan": plan,
            **_search_data(self.search, top),
            "notes": list(self.prepared.notes),
            "what_if": {
                each.change: None if each.found is None else _ranked_data(each.found.best, objective)
                for each in self.what_if
            },
            "staleness": [_staleness_data(each) for each in self.staleness],
        }

    def text(self, *, top: int = TOP) -> str:
        """Return what `flowgraph plan` prints, with at most `top` of the plans that were found."""
        from placements.report.published_errors import error_lines
        from placements.report.search_report import plan_lines, search_report, what_if_text
        from placements.report.staleness_report import staleness_text

        if self.search is None:
            return "\n".join([*plan_lines(self.plan), *error_lines(self.plan), *batch_lines(self)])
        objective = self.search.objective
        parts = [search_report(self.search, self.plan, top=top, objective=objective)]
        parts += [staleness_text(self.staleness, self.setting.lag)] if self.staleness else []
        parts += [what_if_text(self.search, self.what_if, objective)] if self.what_if else []
        return "\n\n".join([*parts, "\n".join(batch_lines(self))])

    def __repr__(self) -> str:
        from placements.report.search_report import show_s

        step = "seconds not known" if self.step_s is None else f"{show_s(self.step_s)} a step"
        return f"<plan of {self.plan.flow} on {self.where}: {len(self.plan.used())} devices, {step}>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {**mimebundle(self.plan), "text/plain": self.text()}


def _staleness_data(option: StalenessOption) -> dict[str, Any]:
    rollout, training = option.ratio
    return {
        "staleness": option.staleness,
        "step_s": option.step_s,
        "devices_that_draw": rollout,
        "devices_that_train": training,
        "sync_every": option.sync_every,
    }


def _search_data(search: SearchResult, top: int) -> dict[str, Any]:
    """Return what a search found as data; `value` and `bound` are in the `unit` of the objective, both as played."""
    from placements.report.search_report import MEASURES
    from placements.search.search import value_of

    objective = search.objective
    return {
        "search": {
            "objective": objective,
            "unit": MEASURES[objective].unit,
            "value": value_of(search.best, objective),
            "bound": search.bound,
            "bound_s": search.bound_s,
            "gap": search.gap,
            "proven": search.proven,
            "cut": search.cut,
            "played": search.played,
            "search_s": search.seconds,
        },
        "ranked": [_ranked_data(each, objective) for each in search.ranked[:top]],
        "named": {v.name: None if each is None else _ranked_data(each, objective) for v, each in search.named},
    }


def _ranked_data(ranked: RankedPlan, objective: Objective) -> dict[str, Any]:
    from placements.search.search import value_of

    blocks = zip(ranked.parts(), ranked.blocks, strict=True)
    return {
        "step_s": ranked.step_s,
        "value": value_of(ranked, objective),
        "bound": ranked.bound,
        "devices": ranked.devices,
        "pools": [{"roles": list(part), "devices": sum(option.devices)} for part, (_, option) in blocks],
    }


def batch_lines(planned: PlanResult) -> list[str]:
    """Return the sizes of a step as lines, then what of a plan promises no same bits."""
    from placements.workload.batch_partition import batch_text

    lines = ["batch", *_indented(batch_text(sizes_of(planned)).splitlines())]
    if loose := without_bits(planned.plan):
        alike = "the same command, or `resume`, gives a run alike on average"
        lines += ["no same bits", *_indented([f"{', '.join(loose)}: {alike}"])]
    return lines


def _indented(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines as they stand beneath a heading, each broken after a comma where it is too long."""
    from placements.format import COLUMNS, broken

    for line in lines:
        first, *rest = broken(line, ", ", COLUMNS - 4)
        yield f"  {first}"
        yield from (f"    {more}" for more in rest)


def batch_sizes(inputs: FlowInputs) -> BatchSizes:
    """Solve for the sizes of a step, wherever it runs: rows and minibatches; refuse what does not go together."""
    from placements.workload.batch_sizes import solve_batch

    return solve_batch(inputs.graph, inputs.batch, **_rows_of(inputs))


def sizes_of(planned: PlanResult) -> BatchSizes:
    """Solve for the sizes of a planned step: rows, shares of ranks, minibatches; refuse what does not go together."""
    from placements.workload.batch_sizes import solve_batch

    setting, rows = planned.setting, {} if planned.inputs is None else _rows_of(planned.inputs)
    prompt, response = int(setting.prompt.most), None if setting.response is None else int(setting.response.most)
    return solve_batch(
        setting.graph, setting.prompts, plan=planned.plan, prompt_tokens=prompt, response_tokens=response, **rows
    )


def _rows_of(inputs: FlowInputs) -> dict[str, Any]:
    origins = {each.name: each.origin for each in inputs.resolved}
    return {"data_rows": inputs.data.train.num_rows, "origins": origins}


PlanLike = str | Path | Plan | PlanResult
"""A plan, what `plan` returned, or a plan's file."""


def plan_of(target: Target) -> Plan | None:
    """Return the plan of a target: itself, or read from its file; None where a cluster is named."""
    return read_plan(target.plan) if isinstance(target.plan, Path) else target.plan


def read_plan(path: Path) -> Plan:
    """Read a plan from its file. Raises PlanError for a file that is not there or holds no plan."""
    try:
        text = read_text(path)
    except OSError as error:
        raise PlanError.unreadable(str(path), "", f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise PlanError.unreadable(str(path), "", "is no text, so no plan") from None
    return Plan.from_json(text, str(path))
