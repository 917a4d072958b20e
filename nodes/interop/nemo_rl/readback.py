"""What NeMo RL runs of an exported plan. Its configurations cannot be read, so this follows from the plan."""

from __future__ import annotations

from flowgraph.analysis.roles import Use
from flowgraph.cluster.plan import Layout, Offloaded, RoleSettings, Sharding
from nodes.interop.export_notes import ExportNotes
from nodes.interop.export_spec import ExportSpec, Part
from nodes.interop.imported import SharedDevices, SystemRun
from nodes.interop.nemo_rl.write import NemoRlCluster, cluster_of, uses_megatron

OFFLOADED: tuple[Offloaded, ...] = ("parameters", "gradients", "optimizer")
ROLES: tuple[tuple[str, Part, Use], ...] = (
    ("policy.train", "policy", "train"),
    ("critic.train", "critic", "train"),
    ("ref.infer", "reference", "infer"),
)


def nemo_rl_run(spec: ExportSpec) -> SystemRun:
    """Return where and how NeMo RL runs what is written for it, with the role names of shipped flows.

    Source: NeMo RL 0.7.0: models/megatron/setup.py gives Megatron no FSDP; the policy's worker keeps the reference in
    host memory and swaps it with the policy's weights; if generation shares devices, everything else is offloaded.
    """
    cluster = cluster_of(spec, ExportNotes("nemo-rl"))
    trainer: list[tuple[str, Part, Use]] = [
        (role, part, use) for role, part, use in ROLES if spec.placed(part, use) is not None
    ]
    layouts = {role: _layout(spec, "critic" if part == "critic" else "policy", cluster) for role, part, _ in trainer}
    running = {role: _running(spec, part, use, cluster) for role, part, use in trainer}
    sampled = spec.layout("policy", "sample")
    data = max(1, cluster.sampling.devices // (sampled.tensor * sampled.pipeline))
    layouts["policy.sample"] = sampled.model_copy(update={"data": data})
    running["policy.sample"] = spec.running("policy", "sample").model_copy(update={"sleeps": not cluster.separate})
    home = tuple(role for role, _, _ in trainer)
    if cluster.separate:
        sampling = SharedDevices(("policy.sample",), cluster.sampling.devices, cluster.sampling.per_node)
        parts: tuple[SharedDevices, ...] = (SharedDevices(home, cluster.training.devices, cluster.per_node), sampling)
    else:
        parts = (SharedDevices((*home, "policy.sample"), cluster.training.devices, cluster.per_node),)
    engine = "megatron" if uses_megatron(spec, "policy") else "fsdp"
    engines: dict[Use, str] = {"train": engine, "sample": "vllm", "infer": engine}
    return SystemRun(parts, engines, layouts, running, spec.lag if cluster.separate else 0)


def _layout(spec: ExportSpec, part: Part, cluster: NemoRlCluster) -> Layout:
    """Return the layout of the policy or the critic; the reference has the policy's."""
    layout, megatron = spec.layout(part, "train"), uses_megatron(spec, part)
    degree = layout.tensor * layout.sequence * (layout.pipeline if megatron else 1)
    data = max(1, cluster.training.devices // degree)
    if megatron:
        sharding: Sharding = "none" if layout.sharding == "none" else "optimizer"
        return layout.model_copy(update={"data": data, "sharding": sharding})
    return Layout(data=data, tensor=layout.tensor, sequence=layout.sequence, sharding="full" if data > 1 else "none")


def _running(spec: ExportSpec, part: Part, use: Use, cluster: NemoRlCluster) -> RoleSettings:
    """Return how a model of the trainer runs."""
    planned, sleeps = spec.running(part, use), not cluster.separate
    if part == "reference":
        return planned.model_copy(update={"sleeps": sleeps, "offload": () if sleeps else ("parameters",)})
    if uses_megatron(spec, part):
        offload: tuple[Offloaded, ...] = ("optimizer",) if "optimizer" in planned.offload else ()
        return planned.model_copy(update={"sleeps": sleeps, "offload": offload})
    checkpointing = "none" if planned.checkpointing == "none" else "full"
    if planned.offload:
        return planned.model_copy(update={"sleeps": False, "offload": OFFLOADED, "checkpointing": checkpointing})
    return planned.model_copy(update={"sleeps": sleeps, "checkpointing": checkpointing})
