"""From a plan to what verl, OpenRLHF and NeMo RL start from: a command, or a configuration and its command.

Each version has a template, `templates/SYSTEM/VERSION.j2`, whose keys were read from the source of that version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from flowgraph.cluster.plan import Plan
from flowgraph.errors import FlowError, UnknownNameError
from flowgraph.language.graph import Graph
from nodes.interop.export_notes import ExportNotes, say_of_all
from nodes.interop.export_spec import ExportSpec, LongestLengths, job_of
from nodes.interop.imported import SystemRun
from nodes.interop.keys import System, exported_versions, system_of
from nodes.interop.leftovers import left_out
from nodes.interop.readback import as_run
from nodes.interop.rendering import Remark, render
from nodes.interop.to_nemo_rl import nemo_rl_values
from nodes.interop.to_openrlhf import openrlhf_values
from nodes.interop.to_verl import verl_values

Values = Callable[[ExportSpec, str, ExportNotes], dict[str, Any]]
VALUES: Mapping[System, Values] = {"verl": verl_values, "openrlhf": openrlhf_values, "nemo-rl": nemo_rl_values}
FILES: Mapping[System, str] = {"verl": "run.sh", "openrlhf": "run.sh", "nemo-rl": "nemo_rl.yaml"}


@dataclass(frozen=True)
class Exported:
    """Files by name, what the system does otherwise than the plan, one sentence each, and where and how it runs roles.

    `as_run` is what the files say, read back, None where that is no run; whether it fits is for the planner to say.
    """

    system: str
    version: str
    files: Mapping[str, str] = field(hash=False)
    notes: tuple[str, ...]
    as_run: SystemRun | None


def export(
    plan: Plan,
    system: str,
    version: str = "",
    *,
    graph: Graph,
    longest: LongestLengths | None = None,
    notes: Sequence[str] = (),
) -> Exported:
    """Write a plan as a system starts it, for the newest version that is known unless one is named.

    `graph` is the plan's flow with the settings it was planned with, `longest` the prompt and the response that it was
    forecast for where its own text does not tell. What the system cannot do is told in `notes`, after those that are
    given, and at the head of what is written, with what was done in its place.

    Raises UnknownNameError for a system or version that is not known, PlanError for a plan that does not say what it
    was made for, UsageError for a flow that draws no responses.
    """
    name = system_of(system)
    known = exported_versions(name)
    chosen = version or known[-1]
    if chosen not in known:
        raise UnknownNameError.of(f"version of {name} to export to", chosen, known)
    job, told_of = job_of(plan, graph, longest), ExportNotes(name, list(notes))
    told = _told(job, name, chosen, told_of)
    engines = tuple((each.role, each.engine, each.pool) for each in plan.placed)
    lost = _lost(WrittenFlow(name, chosen, graph, engines, plan, longest))
    if lost:
        told_of.say(f"settings without a key are left out: {', '.join(f'`{each}`' for each in lost)}")
    files = _files(name, chosen, told | _head(told_of))
    try:
        run = as_run(job, name, chosen, files)
    except FlowError as error:
        told_of.say(f"{name} {chosen} cannot run what is written: {error.what}")
        return Exported(name, chosen, _files(name, chosen, told | _head(told_of)), tuple(told_of.said), None)
    return Exported(name, chosen, files, tuple(told_of.said), run)


def _told(job: ExportSpec, name: System, version: str, notes: ExportNotes) -> dict[str, Any]:
    """Give what templates are filled with, and say in notes what they have no place for."""
    values = VALUES[name](job, version, notes)
    say_of_all(job, notes)
    return {
        "job": job,
        "a": job.algorithm,
        "policy": job.model("policy"),
        "critic_model": job.model("critic") if job.has("critic") else None,
        "title": Remark(f"The plan of {job.plan.flow} for {name} {version}, written by flowgraph."),
        **_head(notes),
        **values,
    }


@dataclass(frozen=True)
class WrittenFlow:
    """A flow as it is written for a version of a system; what is lost depends on no more of its plan than `engines`."""

    system: System
    version: str
    graph: Graph
    engines: tuple[tuple[str, str, str], ...]  # role, engine, pool
    plan: Plan = field(compare=False)
    longest: LongestLengths | None = field(compare=False)

    def text(self, graph: Graph) -> str:
        """Return the files of this flow with other settings, notes at their head."""
        job = job_of(self.plan, graph, self.longest)
        told = _told(job, self.system, self.version, ExportNotes(self.system))
        return "\n".join(_files(self.system, self.version, told).values())


@lru_cache(maxsize=8)
def _lost(written: WrittenFlow) -> tuple[str, ...]:
    """Return the settings of a flow that change nothing in what is written."""
    unsaid = job_of(written.plan, written.graph, written.longest).algorithm.unsaid
    return left_out(written.graph, unsaid, written.text)


def _head(notes: ExportNotes) -> dict[str, Any]:
    return {"notes": [Remark(note) for note in notes.said]}


def _files(name: System, version: str, told: Mapping[str, Any]) -> dict[str, str]:
    files = {FILES[name]: render(f"{name}/{version}.j2", name, told)}
    return files | ({"run.sh": render("nemo-rl/run.sh.j2", "shell", told)} if name == "nemo-rl" else {})
