"""What a system runs when it is started from what is written for it: read back from that, in the words of the flow.

So that whether it fits can be forecast. Not here: the forecast, which is the planner's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from flowgraph.cluster.plan import PlacedRole
from nodes.interop.commands import started
from nodes.interop.config import Config
from nodes.interop.export_spec import ExportSpec, Part
from nodes.interop.from_openrlhf import openrlhf_run
from nodes.interop.from_verl import verl_run
from nodes.interop.imported import SharedDevices, SystemRun
from nodes.interop.keys import System, keys
from nodes.interop.shipped_flows import ShippedFlow
from nodes.interop.to_nemo_rl import nemo_rl_run

NAMES: Mapping[Part, str] = {"policy": "policy", "critic": "critic", "reference": "ref"}  # in flows that are shipped


def as_run(job: ExportSpec, system: System, version: str, files: Mapping[str, str]) -> SystemRun:
    """Give where and how a system of a version runs a plan that was written as these files."""
    if system == "nemo-rl":
        return _whole(job, _renamed(job, _all_logits(nemo_rl_run(job))))
    flow = ShippedFlow(job.plan.flow, tuple(name for part, name in NAMES.items() if job.has(part)))
    config = Config.of(started(files["run.sh"]), keys(system, version))
    found = verl_run(config, flow) if system == "verl" else _all_logits(openrlhf_run(config, flow))
    return _whole(job, _renamed(job, found))


def _all_logits(found: SystemRun) -> SystemRun:
    """Add that all logits of a micro-batch are there at once, though float32 copies may come in chunks.

    Source: OpenRLHF, models/actor.py; NeMo RL 0.7.0, nemo_rl/models/policy/__init__.py: `logprob_chunk_size`.
    """
    running = {
        role: each if role.endswith(".sample") else each.model_copy(update={"logits": "whole"})
        for role, each in found.running.items()
    }
    return replace(found, running=running)


def _renamed(job: ExportSpec, found: SystemRun) -> SystemRun:
    """Name roles as the flow does."""
    params = {name: job.parts[part] for part, name in NAMES.items() if job.has(part)}

    def own(role: str) -> str:
        param, _, use = role.partition(".")
        return f"{params[param]}.{use}"

    return replace(
        found,
        parts=tuple(replace(part, roles=tuple(map(own, part.roles))) for part in found.parts),
        layouts={own(role): layout for role, layout in found.layouts.items()},
        running={own(role): running for role, running in found.running.items()},
    )


def _whole(job: ExportSpec, found: SystemRun) -> SystemRun:
    """Add the roles that the systems do not name, as reward models: as the plan has them, beside whom it puts them."""
    left = [each for each in job.plan.placed if each.role not in found.layouts]
    parts = list(found.parts)
    for placed in left:
        beside = {each.role for each in job.plan.placed if each.pool == placed.pool} - {placed.role}
        at = next((place for place, part in enumerate(parts) if beside & set(part.roles)), None)
        if at is None:
            parts.extend(_own(job, placed))
        else:
            parts[at] = replace(parts[at], roles=(*parts[at].roles, placed.role))
    return replace(
        found,
        parts=tuple(parts),
        layouts={**found.layouts, **{each.role: each.layout for each in left}},
        running={**found.running, **{each.role: each.running for each in left}},
    )


def _own(job: ExportSpec, placed: PlacedRole) -> Iterator[SharedDevices]:
    site = job.site(placed.pool)
    yield SharedDevices((placed.role,), site.devices, site.per_node)
