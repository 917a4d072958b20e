"""From a plan to what verl, OpenRLHF and NeMo RL start from: a command, or a configuration and its command.

Each version has a template, `SYSTEM/templates/VERSION.j2`, whose keys were read from the source of that version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from flowgraph.cluster.plan import Plan
from flowgraph.errors import FlowError, UnknownNameError
from flowgraph.language.graph import Graph
from nodes.interop.export_notes import ExportNotes, note_shared_limits
from nodes.interop.export_spec import ExportSpec, LongestLengths, export_spec
from nodes.interop.imported import SystemRun
from nodes.interop.keys import FOLDERS, System, exported_versions, system_of
from nodes.interop.nemo_rl.write import nemo_rl_values
from nodes.interop.openrlhf.write import openrlhf_values
from nodes.interop.readback import read_back
from nodes.interop.rendering import Remark, render
from nodes.interop.unwritten_settings import unwritten_settings
from nodes.interop.verl.write import verl_values

VALUES: Mapping[System, Callable[[ExportSpec, str, ExportNotes], dict[str, Any]]] = {
    "verl": verl_values,
    "openrlhf": openrlhf_values,
    "nemo-rl": nemo_rl_values,
}


@dataclass(frozen=True)
class Exported:
    """Files by name, a note on each thing that the system does differently, and where and how it runs roles.

    `system_run` is read back from the files, None if they cannot run; the planner says whether it fits.
    """

    system: str
    version: str
    files: Mapping[str, str] = field(hash=False)
    notes: tuple[str, ...]
    system_run: SystemRun | None


def export(
    plan: Plan,
    system: str,
    version: str = "",
    *,
    graph: Graph,
    longest: LongestLengths | None = None,
    notes: Sequence[str] = (),
) -> Exported:
    """Return the files that a system starts a plan from, for the newest known version unless one is named.

    `graph` is the plan's flow with the settings that it was planned with, `longest` the lengths that it was forecast
    for, if the plan does not have them. What the system cannot do is in the notes, after those that you pass, and at
    the head of the first file.

    Raises UnknownNameError for an unknown system or version, PlanError for a plan that does not say what it was made
    for, UsageError for a flow that generates no responses.
    """
    name = system_of(system)
    known = exported_versions(name)
    version = version or known[-1]
    if version not in known:
        raise UnknownNameError.of(f"version of {name} to export to", version, known)
    spec, all_notes = export_spec(plan, graph, longest), ExportNotes(name, list(notes))
    values = _values(spec, name, version, all_notes)
    engines = tuple((placed.role, placed.engine, placed.pool) for placed in plan.placed)
    unwritten = _unwritten(WrittenFlow(name, version, graph, engines, plan, longest))
    if unwritten:
        all_notes.add(f"settings without a key are left out: {', '.join(f'`{text}`' for text in unwritten)}")
    files = _files(name, version, values, all_notes)
    try:
        run = read_back(spec, name, version, files)
    except FlowError as error:
        run = None
        all_notes.add(f"{name} {version} cannot run what is written: {error.what}")
        files = _files(name, version, values, all_notes)
    return Exported(name, version, files, tuple(all_notes.texts), run)


@dataclass(frozen=True)
class WrittenFlow:
    """A flow as it is written for a version of a system; what is unwritten depends only on `engines` of its plan."""

    system: System
    version: str
    graph: Graph
    engines: tuple[tuple[str, str, str], ...]  # role, engine, pool
    plan: Plan = field(compare=False)
    longest: LongestLengths | None = field(compare=False)

    def text(self, graph: Graph) -> str:
        """Return the files of this flow with the settings of another graph, including their notes."""
        notes = ExportNotes(self.system)
        values = _values(export_spec(self.plan, graph, self.longest), self.system, self.version, notes)
        return "\n".join(_files(self.system, self.version, values, notes).values())


@lru_cache(maxsize=8)
def _unwritten(written: WrittenFlow) -> tuple[str, ...]:
    unsaid = export_spec(written.plan, written.graph, written.longest).algorithm.unsaid
    return unwritten_settings(written.graph, unsaid, written.text)


def _values(spec: ExportSpec, name: System, version: str, notes: ExportNotes) -> dict[str, Any]:
    """Return the values of a template, and note what they have no place for."""
    values = VALUES[name](spec, version, notes)
    note_shared_limits(spec, notes)
    return {
        "spec": spec,
        "a": spec.algorithm,
        "policy": spec.model("policy"),
        "critic_model": spec.model("critic") if spec.has("critic") else None,
        "title": Remark(f"The plan of {spec.plan.flow} for {name} {version}, written by flowgraph."),
        **values,
    }


def _files(name: System, version: str, values: Mapping[str, Any], notes: ExportNotes) -> dict[str, str]:
    filled = {**values, "notes": [Remark(note) for note in notes.texts]}
    text = render(f"{FOLDERS[name].name}/templates/{version}.j2", name, filled)
    if name != "nemo-rl":
        return {"run.sh": text}
    return {"nemo_rl.yaml": text, "run.sh": render("nemo_rl/templates/run.sh.j2", "shell", filled)}
