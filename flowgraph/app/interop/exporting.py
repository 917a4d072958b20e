"""`export`: a plan as the flags and files of another system, and a forecast of the plan as that system runs it.

No torch is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.analysis.placed_graph import check_plan
from flowgraph.app.planning.flow_inputs import compiled_flow
from flowgraph.app.planning.plan_result import PlanLike
from flowgraph.app.planning.problem import PreparedProblem, workload_of
from flowgraph.app.planning.saved_plans import NamedPlan, experts_of
from flowgraph.app.user_files import write_text
from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.errors import ModelError, PlanError, ResourceError, UsageError
from nodes.interop import LongestLengths, export
from placements import plan as search_plan
from placements import report
from placements.search import as_run

if TYPE_CHECKING:
    from nodes.interop import Exported

WORTH_SHARE = 0.02  # of a step, that another plan has to save before it is written to be compared


@dataclass(frozen=True, kw_only=True)
class ExportTarget:
    """A system to export to (`verl`, `openrlhf` or `nemo-rl`) and its version; "" is the newest known version."""

    system: str
    version: str = ""


@dataclass(frozen=True)
class ExportResult:
    """A plan exported to another system.

    `plan` is the plan as that system runs it, None if that is not known. `faults` say why this plan does not fit.
    """

    exported: Exported
    plan: Plan | None
    faults: tuple[str, ...] = ()

    @property
    def step_s(self) -> float | None:
        """Return the forecast seconds of a step on the other system; None if they are not known."""
        return self.plan.step.period_s if self.plan is not None and self.plan.step is not None else None

    @property
    def runs(self) -> bool:
        """Return whether the other system can run the plan, by forecast: no faults, and known seconds of a step."""
        return not self.faults and self.step_s is not None

    @property
    def files(self) -> Mapping[str, str]:
        """Return the text of each exported file, by file name."""
        return dict(self.exported.files)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes on what the other system cannot express or does differently, one text for each."""
        return tuple(self.exported.notes)

    def data(self) -> dict[str, Any]:
        """Return what `flowgraph export --json` prints: system, version, files, notes, seconds of a step and faults."""
        return {
            "system": self.exported.system,
            "version": self.exported.version,
            "files": self.files,
            "notes": list(self.notes),
            "step_s": self.step_s,
            "faults": list(self.faults),
        }

    def text(self) -> str:
        """Return the texts of all files, joined by a newline; white space at the end of each text is removed."""
        return "\n".join(text.rstrip() for text in self.files.values())

    def save(self, folder: str | Path) -> list[Path]:
        """Write the files into a folder and return their paths; the folder is created, and existing files are replaced.

        Raises UsageError if the folder or a file cannot be written.
        """
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot be written: {error.strerror}", where=str(folder)) from error
        for name, text in self.files.items():
            write_text(folder / name, text)
        return [folder / name for name in self.files]


def export_plan(plan_like: PlanLike, system: str, version: str) -> ExportResult:
    """Return a plan as the flags and files of another system, with the plan's forecast on that system.

    `system` is "verl", "openrlhf" or "nemo-rl"; `version` "" is the newest known version. If the plan does not fit as
    that system runs it, other layouts of the trained policy are tried, fastest first, and the files have the first that
    fits; a note says what was changed, or that nothing fits. If the sizes of a model are not known, the plan has no
    forecast, and a note says why. Raises UnknownNameError for an unknown system or version, UsageError for a flow that
    trains no policy on its own responses, and PlanError, for example, for a plan that does not record its flow and
    models, or with a role that does not use its whole pool.
    """
    saved = NamedPlan.of(plan_like)
    plan, where = saved.plan, saved.where
    if plan.assumed is None:
        raise PlanError.unreadable(where, "", "does not state its flow, models and data, so no command can be written")
    graph = compiled_flow(workload_of(plan.assumed, saved.workload))
    check_plan(plan, graph, where)
    for placed in plan.placed:  # other systems have no role on a part of its pool
        pool = plan.pool(placed.pool)
        needs, has = placed.layout.devices, 0 if pool is None else len(pool.devices)
        if needs != has:
            raise PlanError.too_few_devices(where, placed.role, str(placed.layout), needs, has)
    try:
        prepared = saved.prepare()
        check_plan(plan, graph, where, experts=experts_of(prepared.problem))
        return _fitting(prepared, plan, ExportTarget(system=system, version=version))
    except ModelError as error:
        unknown = f"it is not known whether the exported file fits: {error}".replace("\n", " ")
        return ExportResult(export(plan, system, version, graph=graph, notes=[unknown]), None)


def exported_files(prepared: PreparedProblem, plan: Plan, target: ExportTarget, notes: Sequence[str] = ()) -> Exported:
    """Return a plan as the files of another system, with the longest prompt and response of its problem as limits.

    `notes` come before those of the export. Raises UnknownNameError for an unknown system or version, PlanError for a
    plan that cannot be exported, and UsageError for a flow that trains no policy on its own responses.
    """
    problem = prepared.problem
    response = int(problem.response.most) if problem.response is not None else None
    longest = LongestLengths(int(problem.prompt.most), response)
    return export(plan, target.system, target.version, graph=problem.graph, longest=longest, notes=notes)


def _written(prepared: PreparedProblem, plan: Plan, target: ExportTarget, notes: Sequence[str] = ()) -> ExportResult:
    files = exported_files(prepared, plan, target, notes)
    if files.system_run is None:
        return ExportResult(files, None)
    return ExportResult(files, *as_run.forecast_run(prepared.problem, files.system_run, prepared.assumed))


def _fitting(prepared: PreparedProblem, plan: Plan, target: ExportTarget) -> ExportResult:
    first = _written(prepared, plan, target)
    name, step_s = f"{first.exported.system} {first.exported.version}", plan.step.period_s if plan.step else None

    def takes(seconds: float | None) -> str:
        return f"{name} needs {show_s(seconds)} for a step of the exported file; the plan needs {show_s(step_s)}"

    if not first.faults:
        slower = step_s is not None and (first.step_s or 0.0) > step_s * (1 + report.TIED_SHARE)
        return _written(prepared, plan, target, [takes(first.step_s)]) if slower else first
    why = [f"as {name} runs the plan, {fault}" for fault in first.faults]
    for other_plan in as_run.other_layouts(prepared.problem, plan) if first.plan is not None else ():
        candidate = _written(prepared, other_plan, target)
        if candidate.runs:
            assert first.plan is not None and candidate.plan is not None, "both are forecast"
            before = {placed.role: placed.layout for placed in first.plan.placed}
            layouts = {placed.role: placed.layout for placed in candidate.plan.placed}
            changes = [f"{role} {layout}" for role, layout in layouts.items() if layout != before.get(role)]
            changed = "; ".join(changes) or "every role sleeps while others work"
            notes = [*why, f"the exported file was changed so that it fits: {changed}", takes(candidate.step_s)]
            return _written(prepared, other_plan, target, notes)
    return _written(prepared, plan, target, [*why, "the exported file DOES NOT FIT, and no layout that fits is known"])


@dataclass(frozen=True)
class ExportSearch:
    """A search, and the fastest plan found that the other system can run; `fastest` is None if it can run none."""

    search: report.SearchResult
    fastest: ExportResult | None


def search_exportable_plan(prepared: PreparedProblem, target: ExportTarget) -> ExportSearch | None:
    """Search for plans of a problem; return the search and the fastest plan found that the target system can run.

    Plans are exported in the order of their seconds. This ends at the first that would save less than 2% of a step
    compared with the fastest so far as the system runs it. If the system can run none of them unchanged, the first is
    exported in other layouts that fit; without such layouts, `fastest` is None. The result is None if no plan fits the
    cluster. Raises the errors of `export`.
    """
    try:
        search = search_plan(prepared.problem)
    except ResourceError:
        return None

    def runs(place: int, write: Callable[[PreparedProblem, Plan, ExportTarget], ExportResult]) -> ExportResult | None:
        try:
            plan = search.ranked[place].plan(prepared.assumed)
        except ResourceError:
            return None
        candidate = write(prepared, plan, target)
        return candidate if candidate.runs else None

    fastest: ExportResult | None = None
    for place, ranked in enumerate(search.ranked):
        if fastest is not None and ranked.step_s * (1 + WORTH_SHARE) >= (fastest.step_s or 0.0):
            break
        candidate = runs(place, _written)
        if candidate is not None and (fastest is None or (candidate.step_s or 0.0) < (fastest.step_s or 0.0)):
            fastest = candidate
    return ExportSearch(search, fastest if fastest is not None else runs(0, _fitting))
