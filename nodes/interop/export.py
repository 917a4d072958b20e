"""From a plan to what verl, OpenRLHF and NeMo RL start from: a command, or a configuration and its command.

Each version has a template, `SYSTEM/templates/VERSION.j2`, whose keys were read from the source of that version. What
the system runs is read back from the files, with the flow's own names: the planner forecasts whether it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from flowgraph.cluster.plan import Plan
from flowgraph.errors import FlowError, UnknownNameError
from flowgraph.language.graph import Graph
from nodes.interop.commands import started
from nodes.interop.config import Config
from nodes.interop.export_notes import note_shared_limits
from nodes.interop.export_spec import ExportSpec, LongestLengths, Part, export_spec
from nodes.interop.imported import SharedDevices, SystemRun
from nodes.interop.keys import FOLDERS, System, exported_versions, keys, system_of
from nodes.interop.nemo_rl.write import nemo_rl_run, nemo_rl_values
from nodes.interop.openrlhf.read import openrlhf_run
from nodes.interop.openrlhf.write import openrlhf_values
from nodes.interop.rendering import Remark, render
from nodes.interop.shipped_flows import ShippedFlow
from nodes.interop.unwritten_settings import unwritten_settings
from nodes.interop.verl.read import verl_run
from nodes.interop.verl.write import verl_values

VALUES: Mapping[System, Callable[[ExportSpec], dict[str, Any]]] = {
    "verl": verl_values,
    "openrlhf": openrlhf_values,
    "nemo-rl": nemo_rl_values,
}
SHIPPED_NAMES: Mapping[Part, str] = {"policy": "policy", "critic": "critic", "reference": "ref"}  # in shipped flows


@dataclass(frozen=True)
class Exported:
    """The exported files by name, notes on differences in the system, and where and how the system runs roles.

    `system_run` is read back from the files, so that the planner can check whether it fits; None if the files cannot
    run.
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
    """Return the files from which a system runs a plan, with notes on each thing that the system does differently.

    `version` is that of the system, by default the newest known one. `graph` is the plan's flow with the settings that
    it was planned with. `longest` are the lengths that the plan was forecast for, by default those that the plan
    records. The result's notes, also at the head of the first file, begin with `notes`. If the system cannot run the
    files, a note says why.

    Raises UnknownNameError for an unknown system or version, PlanError for a plan that does not record its models and
    batch, or whose models have adapters without a rank, and UsageError for a flow that trains no policy on responses
    that it generates.
    """
    name = system_of(system)
    versions = exported_versions(name)
    version = version or versions[-1]
    if version not in versions:
        raise UnknownNameError.of(f"version of {name} to export to", version, versions)
    spec = export_spec(plan, graph, name, version, longest, notes)
    files = _files(spec)
    engines = tuple((placed.role, placed.engine, placed.pool) for placed in plan.placed)
    unwritten = _unwritten(_WrittenFlow(name, version, graph, engines, spec))
    if unwritten:
        spec.note(f"settings without a key are left out: {', '.join(f'`{text}`' for text in unwritten)}")
        files = _files(spec)
    try:
        run = _read_back(spec, files)
    except FlowError as error:
        spec.note(f"{name} {version} cannot run what is written: {error.what}")
        run, files = None, _files(spec)
    return Exported(name, version, files, tuple(spec.notes), run)


@dataclass(frozen=True)
class _WrittenFlow:
    """A flow that is written for a version of a system; what is unwritten depends only on `engines` of its plan."""

    system: System
    version: str
    graph: Graph
    engines: tuple[tuple[str, str, str], ...]  # role, engine, pool
    spec: ExportSpec = field(compare=False)


@lru_cache(maxsize=8)
def _unwritten(written: _WrittenFlow) -> tuple[str, ...]:
    spec = written.spec

    def text(graph: Graph) -> str:
        changed = export_spec(spec.plan, graph, spec.system, spec.version, spec.longest)
        return "\n".join(_files(changed).values())

    return unwritten_settings(written.graph, spec.algorithm.unsaid, text)


def _files(spec: ExportSpec) -> dict[str, str]:
    values = VALUES[spec.system](spec)
    note_shared_limits(spec)
    values |= {
        "spec": spec,
        "a": spec.algorithm,
        "policy": spec.model("policy"),
        "critic_model": spec.model("critic"),
        "title": Remark(f"The plan of {spec.plan.flow} for {spec.system} {spec.version}, written by flowgraph."),
        "notes": [Remark(note) for note in spec.notes],
    }
    text = render(f"{FOLDERS[spec.system].name}/templates/{spec.version}.j2", spec.system, values)
    if spec.system != "nemo-rl":
        return {"run.sh": text}
    return {"nemo_rl.yaml": text, "run.sh": render("nemo_rl/templates/run.sh.j2", "shell", values)}


def _read_back(spec: ExportSpec, files: Mapping[str, str]) -> SystemRun:
    params = {name: spec.parts[part] for part, name in SHIPPED_NAMES.items() if part in spec.parts}
    if spec.system == "nemo-rl":
        run = nemo_rl_run(spec)
    else:
        flow, read = ShippedFlow(spec.plan.flow, tuple(params)), verl_run if spec.system == "verl" else openrlhf_run
        run = read(Config.of(started(files["run.sh"]), keys(spec.system, spec.version)), flow)
    names = {role: f"{params[role.partition('.')[0]]}.{role.partition('.')[2]}" for role in run.layouts}
    layouts = {names[role]: layout for role, layout in run.layouts.items()}
    running = {names[role]: settings for role, settings in run.running.items()}
    if spec.system != "verl":
        # All logits of a micro-batch are there at once, though float32 copies may come in chunks. Source: OpenRLHF,
        # models/actor.py; NeMo RL 0.7.0, nemo_rl/models/policy/__init__.py: `logprob_chunk_size`.
        for role in running.keys() - {names["policy.sample"]}:
            running[role] = running[role].model_copy(update={"logits": "whole"})
    parts = [replace(part, roles=tuple(names[role] for role in part.roles)) for part in run.parts]
    unnamed = [placed for placed in spec.plan.placed if placed.role not in layouts]
    for placed in unnamed:  # such as reward models
        pool_roles = {role.role for role in spec.plan.placed if role.pool == placed.pool} - {placed.role}
        index = next((index for index, part in enumerate(parts) if pool_roles & set(part.roles)), None)
        if index is None:
            devices = spec.devices(placed.pool)
            parts.append(SharedDevices((placed.role,), devices.devices, devices.per_node))
        else:
            parts[index] = replace(parts[index], roles=(*parts[index].roles, placed.role))
    layouts |= {placed.role: placed.layout for placed in unnamed}
    running |= {placed.role: placed.running for placed in unnamed}
    return replace(run, parts=tuple(parts), layouts=layouts, running=running)
