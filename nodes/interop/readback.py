"""What a system runs when it starts from exported files: read back from them, with the flow's own names.

The planner forecasts from it whether the run fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nodes.interop.commands import started
from nodes.interop.config import Config
from nodes.interop.export_spec import ExportSpec, Part
from nodes.interop.imported import SharedDevices, SystemRun
from nodes.interop.keys import System, keys
from nodes.interop.nemo_rl.readback import nemo_rl_run
from nodes.interop.openrlhf.read import openrlhf_run
from nodes.interop.shipped_flows import ShippedFlow
from nodes.interop.verl.read import verl_run

SHIPPED_NAMES: Mapping[Part, str] = {"policy": "policy", "critic": "critic", "reference": "ref"}  # in shipped flows


def read_back(spec: ExportSpec, system: System, version: str, files: Mapping[str, str]) -> SystemRun:
    """Return where and how a version of a system runs a plan that was exported as these files."""
    if system == "nemo-rl":
        run = nemo_rl_run(spec)
    else:
        flow = ShippedFlow(spec.plan.flow, tuple(name for part, name in SHIPPED_NAMES.items() if spec.has(part)))
        config = Config.of(started(files["run.sh"]), keys(system, version))
        run = verl_run(config, flow) if system == "verl" else openrlhf_run(config, flow)
    if system != "verl":
        # All logits of a micro-batch are there at once, though float32 copies may come in chunks. Source: OpenRLHF,
        # models/actor.py; NeMo RL 0.7.0, nemo_rl/models/policy/__init__.py: `logprob_chunk_size`.
        for role in run.running.keys() - {"policy.sample"}:
            settings = run.running[role].model_copy(update={"logits": "whole"})
            run = replace(run, running={**run.running, role: settings})
    return _with_other_roles(spec, _renamed(spec, run))


def _renamed(spec: ExportSpec, run: SystemRun) -> SystemRun:
    """Return a run whose roles have the flow's names."""
    params = {name: spec.parts[part] for part, name in SHIPPED_NAMES.items() if spec.has(part)}
    names = {role: f"{params[role.partition('.')[0]]}.{role.partition('.')[2]}" for role in run.layouts}
    return replace(
        run,
        parts=tuple(replace(part, roles=tuple(names[role] for role in part.roles)) for part in run.parts),
        layouts={names[role]: layout for role, layout in run.layouts.items()},
        running={names[role]: running for role, running in run.running.items()},
    )


def _with_other_roles(spec: ExportSpec, run: SystemRun) -> SystemRun:
    """Return a run with the roles that the system does not name, as reward models, where the plan has them."""
    others = [placed for placed in spec.plan.placed if placed.role not in run.layouts]
    parts = list(run.parts)
    for placed in others:
        pool_roles = {other.role for other in spec.plan.placed if other.pool == placed.pool} - {placed.role}
        index = next((index for index, part in enumerate(parts) if pool_roles & set(part.roles)), None)
        if index is None:
            devices = spec.devices(placed.pool)
            parts.append(SharedDevices((placed.role,), devices.devices, devices.per_node))
        else:
            parts[index] = replace(parts[index], roles=(*parts[index].roles, placed.role))
    return replace(
        run,
        parts=tuple(parts),
        layouts={**run.layouts, **{placed.role: placed.layout for placed in others}},
        running={**run.running, **{placed.role: placed.running for placed in others}},
    )
