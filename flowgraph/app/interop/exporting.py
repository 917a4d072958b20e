"""`export`: a plan as the flags and files that another system starts from. No torch is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowgraph.analysis.placed_graph import check_plan
from flowgraph.app.interop.exported_plan import ExportedPlan, ExportTarget, fitting
from flowgraph.app.planning.flow_inputs import compiled_flow
from flowgraph.app.planning.plan_result import PlanLike
from flowgraph.app.planning.problem import workload_of
from flowgraph.app.planning.replan import NamedPlan, experts_of
from flowgraph.app.written_files import write_text
from flowgraph.cluster.plan import Plan
from flowgraph.errors import ModelError, PlanError, UsageError
from nodes.interop import export


@dataclass(frozen=True)
class ExportResult:
    """A plan in the words of another system, and that plan as the system then runs it."""

    exported: ExportedPlan

    @property
    def files(self) -> Mapping[str, str]:
        """Return the texts of the files by their names."""
        return dict(self.exported.exported.files)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what the system cannot express or does otherwise."""
        return tuple(self.exported.exported.notes)

    def data(self) -> dict[str, Any]:
        """Return it as `flowgraph export --json` prints it."""
        return {
            "system": self.exported.exported.system,
            "version": self.exported.exported.version,
            "files": dict(self.files),
            "notes": list(self.notes),
            "step_s": self.exported.step_s,
            "faults": list(self.exported.faults),
        }

    def text(self) -> str:
        """Return all files, one after another."""
        return "\n".join(text.rstrip() for text in self.files.values())

    def save(self, folder: str | Path) -> list[Path]:
        """Write the files into a folder; return their paths."""
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot be written: {error.strerror}", where=str(folder)) from error
        for name, text in self.files.items():
            write_text(folder / name, text)
        return [folder / name for name in self.files]


def export_plan(plan_like: PlanLike, system: str, version: str) -> ExportResult:
    """Return a plan as the files that another system starts from."""
    saved = NamedPlan.of(plan_like)
    plan, where = saved.plan, saved.where
    if plan.assumed is None:
        raise PlanError.unreadable(where, "", "does not say what it was made for, so no command can be written")
    graph = compiled_flow(workload_of(plan.assumed, saved.workload))
    check_plan(plan, graph, where)
    _refuse_part_of_a_pool(plan, where)
    try:
        prepared = saved.prepare()
        check_plan(plan, graph, where, experts=experts_of(prepared.setting))
        return ExportResult(fitting(prepared, plan, ExportTarget(system=system, version=version)))
    except ModelError as error:
        unknown = f"whether what is written fits is not known: {error}".replace("\n", " ")
        return ExportResult(ExportedPlan(export(plan, system, version, graph=graph, notes=[unknown]), None))


def _refuse_part_of_a_pool(plan: Plan, where: str) -> None:
    """Raise PlanError for a role that runs on some devices of its pool: other systems have no such pools."""
    for each in plan.placed:
        pool = plan.pool(each.pool)
        needs, has = each.layout.devices, 0 if pool is None else len(pool.devices)
        if needs != has:
            raise PlanError.too_few_devices(where, each.role, str(each.layout), needs, has)
