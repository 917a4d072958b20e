"""A plan written for another system, and forecast as that system runs it: whether it fits, and what does if not.

Not here: files (`exporting`). No torch is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.errors import ResourceError
from nodes.interop import LongestLengths, export
from placements import plan as find_plan
from placements import report
from placements.search import as_run

if TYPE_CHECKING:
    from flowgraph.app.problem import PreparedProblem
    from nodes.interop import Exported
    from placements.search.plan_builder import RankedPlan

WORTH_SHARE = 0.02  # of a step, that another plan has to save before it is written to be compared


@dataclass(frozen=True, kw_only=True)
class ExportTarget:
    """A system and its version, "" for the newest that is known."""

    system: str
    version: str = ""


@dataclass(frozen=True)
class ExportedPlan:
    """A plan as it was written, the plan that a system then runs, None where that is not known, and what it lacks."""

    exported: Exported
    plan: Plan | None
    faults: tuple[str, ...] = ()

    @property
    def step_s(self) -> float | None:
        """Return the seconds of a step as the system runs it."""
        return self.plan.step.period_s if self.plan is not None and self.plan.step is not None else None

    @property
    def runs(self) -> bool:
        """Return whether the system runs what was written, as far as can be forecast."""
        return self.plan is not None and not self.faults and self.step_s is not None


def exported(prepared: PreparedProblem, plan: Plan, target: ExportTarget, notes: Sequence[str] = ()) -> Exported:
    """Write a plan for a system, with the lengths that it was forecast for. Raises what `export` raises."""
    setting = prepared.setting
    response = int(setting.response.most) if setting.response is not None else None
    longest = LongestLengths(int(setting.prompt.most), response)
    return export(plan, target.system, target.version, graph=setting.graph, longest=longest, notes=notes)


def written(prepared: PreparedProblem, plan: Plan, target: ExportTarget, notes: Sequence[str] = ()) -> ExportedPlan:
    """Write a plan for a system, and forecast what the system then runs. Raises what `export` raises."""
    told = exported(prepared, plan, target, notes)
    if told.system_run is None:
        return ExportedPlan(told, None)
    return ExportedPlan(told, *as_run.forecast_run(prepared.setting, told.system_run, prepared.assumed))


def fitting(prepared: PreparedProblem, plan: Plan, target: ExportTarget) -> ExportedPlan:
    """Write a plan for a system; where that does not fit as the system runs it, in the fastest layouts that do.

    Either is told in a note, at the head of what is written.
    """
    first = written(prepared, plan, target)
    name, own_s = f"{first.exported.system} {first.exported.version}", plan.step.period_s if plan.step else None
    if not first.faults:
        slower = own_s is not None and (first.step_s or 0.0) > own_s * (1 + report.TIED_SHARE)
        return written(prepared, plan, target, [_takes(name, first.step_s, own_s)]) if slower else first
    why = [f"as {name} runs the plan, {fault}" for fault in first.faults]
    for other in as_run.other_layouts(prepared.setting, plan) if first.plan is not None else ():
        found = written(prepared, other, target)
        if found.runs:
            said = [*why, f"it is written otherwise, which fits: {_changed(first, found)}"]
            said.append(_takes(name, found.step_s, own_s))
            return written(prepared, other, target, said)
    return written(prepared, plan, target, [*why, "what is written DOES NOT FIT: no layouts are known that do"])


def _changed(first: ExportedPlan, found: ExportedPlan) -> str:
    """Name the layouts in which a system runs what was written otherwise."""
    assert first.plan is not None and found.plan is not None, "both are forecast"
    before = {each.role: each.layout for each in first.plan.placed}
    told = [f"{each.role} {each.layout}" for each in found.plan.placed if each.layout != before.get(each.role)]
    return "; ".join(told) or "all sleep while others work"


def _takes(name: str, step_s: float | None, own_s: float | None) -> str:
    return f"as {name} runs what is written, a step takes {show_s(step_s)}; the plan's takes {show_s(own_s)}"


@dataclass(frozen=True)
class ExportSearch:
    """What a search finds first, and of all that it finds the fastest that the system runs, None where it runs none."""

    best: RankedPlan
    found: ExportedPlan | None


def searched(prepared: PreparedProblem, target: ExportTarget) -> ExportSearch | None:
    """Search the devices of a run for what its system runs fastest; None where no plan fits.

    Plans are written in their own order, until none can be faster than one that the system runs.
    """
    try:
        ranked = find_plan(prepared.setting).ranked
    except ResourceError:
        return None
    found: ExportedPlan | None = None
    for each in ranked:
        if found is not None and each.step_s * (1 + WORTH_SHARE) >= (found.step_s or 0.0):
            break
        other = _of_ranked(prepared, each, target)
        if other is not None and other.runs and (found is None or (other.step_s or 0.0) < (found.step_s or 0.0)):
            found = other
    if found is None:
        first = _of_ranked(prepared, ranked[0], target, fits=True)
        found = first if first is not None and first.runs else None
    return ExportSearch(ranked[0], found)


def _of_ranked(
    prepared: PreparedProblem, ranked: RankedPlan, target: ExportTarget, *, fits: bool = False
) -> ExportedPlan | None:
    """Write a plan that was found; None for one whose pools cannot lie on the cluster."""
    try:
        plan = ranked.plan(prepared.assumed)
    except ResourceError:
        return None
    return (fitting if fits else written)(prepared, plan, target)
