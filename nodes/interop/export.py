"""From a plan to what verl, OpenRLHF and NeMo RL start from: a command, or a configuration and its command.

Each version has a template, `templates/SYSTEM/VERSION.j2`, whose keys were read from the source of that version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowgraph.errors import UnknownNameError
from flowgraph.graph import Graph
from flowgraph.plan import Plan
from nodes.interop.job import Job, job_of
from nodes.interop.keys import System, exported_versions, system_of
from nodes.interop.rendering import Remark, render
from nodes.interop.to_nemo_rl import nemo_rl_values
from nodes.interop.to_openrlhf import openrlhf_values
from nodes.interop.to_verl import verl_values
from nodes.interop.told import Notes, say_of_all

Values = Callable[[Job, str, Notes], dict[str, Any]]
VALUES: Mapping[System, Values] = {"verl": verl_values, "openrlhf": openrlhf_values, "nemo-rl": nemo_rl_values}
FILES: Mapping[System, str] = {"verl": "run.sh", "openrlhf": "run.sh", "nemo-rl": "nemo_rl.yaml"}


@dataclass(frozen=True)
class Exported:
    """Files by name, and what the system does otherwise than the plan, one sentence each."""

    system: str
    version: str
    files: Mapping[str, str] = field(hash=False)
    notes: tuple[str, ...]


def export(plan: Plan, system: str, version: str = "", *, graph: Graph) -> Exported:
    """Write a plan as a system starts it, for the newest version that is known unless one is named.

    `graph` is the plan's flow with the settings it was planned with. What the system cannot do is told in `notes`, and
    at the head of what is written, with what was done in its place.

    Raises UnknownNameError for a system or version that is not known, PlanError for a plan that does not say what it
    was made for, UsageError for a flow that draws no responses.
    """
    name = system_of(system)
    known = exported_versions(name)
    chosen = version or known[-1]
    if chosen not in known:
        raise UnknownNameError.of(f"version of {name} to export to", chosen, known)
    job, notes = job_of(plan, graph), Notes(name)
    values = VALUES[name](job, chosen, notes)
    say_of_all(job, notes)
    told = {
        "job": job,
        "a": job.algorithm,
        "policy": job.model("policy"),
        "critic_model": job.model("critic") if job.has("critic") else None,
        "title": Remark(f"The plan of {plan.flow} for {name} {chosen}, written by flowgraph."),
        "notes": [Remark(note) for note in notes.said],
        **values,
    }
    files = {FILES[name]: render(f"{name}/{chosen}.j2", name, told)}
    if name == "nemo-rl":
        files["run.sh"] = render("nemo-rl/run.sh.j2", "shell", told)
    return Exported(name, chosen, files, tuple(notes.said))
