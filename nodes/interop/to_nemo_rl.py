"""From a plan to NeMo RL: which of its two trainers runs the flow, where it generates, and what it has no key for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowgraph.analysis.roles import Use
from flowgraph.cluster.plan import Layout, Offloaded, RoleSettings, Sharding
from nodes.interop.algorithm import aggregated
from nodes.interop.export_notes import ExportNotes, say_uneven
from nodes.interop.export_spec import ExportDevices, ExportSpec, Part
from nodes.interop.imported import SharedDevices, SystemRun

# Source: NeMo RL 0.7.0, nemo_rl/algorithms/advantage_estimator.py: the estimator's name and what it is told.
ESTIMATORS: Mapping[str, tuple[str, bool]] = {
    "group_normalize": ("grpo", False),
    "rloo_advantages": ("grpo", True),
    "gpg_advantages": ("grpo", False),
    "centred_whitened": ("reinforce_plus_plus", False),
    "discounted_returns": ("reinforce_plus_plus", False),
    "gdpo": ("gdpo", False),
    "gae": ("gae", False),
}
LOSSES = {"clipped", "policy_gradient", "cispo_loss", "gspo_loss"}
LOGPROB_CHUNK = 1024
"""Tokens whose logits are made float32 at once, which `logprob_chunk_size` counts in a row."""

OFFLOADED: tuple[Offloaded, ...] = ("parameters", "gradients", "optimizer")


@dataclass(frozen=True)
class NemoRlCluster:
    """All machines, and of them what generation and the reward model have of their own."""

    nodes: int
    per_node: int
    apart: bool
    sampling_nodes: int | None
    sampling_per_node: int | None
    trains: ExportDevices
    drawn: ExportDevices


def nemo_rl_values(job: ExportSpec, version: str, notes: ExportNotes) -> dict[str, Any]:
    """Give what the template of a version is filled with, and say what NeMo RL does instead where it has no key."""
    trainer = "ppo" if job.algorithm.estimator == "gae" else "grpo"
    cluster = _cluster(job, trainer, notes)
    lag = _lag(job) if cluster.apart else 0
    if _lag(job) and not cluster.apart:
        notes.say("a lag needs generation on devices of its own in NeMo RL; here it shares them, so there is none")
    return {
        "trainer": trainer,
        "base": f"{trainer}_math_1B.yaml",
        "cluster": cluster,
        "lag": lag,
        "reward": _reward(job, cluster),
        "megatron": _megatron(job, "policy", notes),
        "value_megatron": job.has("critic") and _megatron(job, "critic", notes),
        **_parts(job, notes),
        **_algorithm(job, notes),
    }


def nemo_rl_run(job: ExportSpec) -> SystemRun:
    """Give where and how NeMo RL runs what is written for it, roles named as those of flows that are shipped.

    Source: NeMo RL 0.7.0: models/megatron/setup.py hands Megatron no FSDP; the policy's worker keeps the reference in
    host memory and puts it in the place of the policy's weights; where generation shares devices it offloads all else.
    """
    trainer = "ppo" if job.algorithm.estimator == "gae" else "grpo"
    unsaid = ExportNotes("NeMo RL")
    cluster = _cluster(job, trainer, unsaid)
    drawn = cluster.drawn if cluster.apart else cluster.trains
    uses: tuple[tuple[Part, Use, str], ...] = (
        ("policy", "train", "policy.train"),
        ("critic", "train", "critic.train"),
        ("reference", "infer", "ref.infer"),
    )
    homes: dict[str, Part] = {name: part for part, use, name in uses if job.placed(part, use) is not None}
    layouts = {name: _as_run(job, "critic" if part == "critic" else "policy", cluster) for name, part in homes.items()}
    running = {name: _running(job, part, cluster) for name, part in homes.items()}
    sampled = job.layout("policy", "sample")
    data = max(1, drawn.devices // (sampled.tensor * sampled.pipeline))
    layouts["policy.sample"] = sampled.model_copy(update={"data": data})
    running["policy.sample"] = job.running("policy", "sample").model_copy(update={"sleeps": not cluster.apart})
    own = SharedDevices(
        (*homes, *(() if cluster.apart else ("policy.sample",))), cluster.trains.devices, cluster.per_node
    )
    apart = (SharedDevices(("policy.sample",), drawn.devices, drawn.per_node),) if cluster.apart else ()
    placed = job.placed("policy", "train")
    engine = "megatron" if placed is not None and placed.engine == "megatron" else "fsdp"
    engines: dict[Use, str] = {"train": engine, "sample": "vllm", "infer": engine}
    return SystemRun((own, *apart), engines, layouts, running, _lag(job) if cluster.apart else 0)


def _as_run(job: ExportSpec, part: Part, cluster: NemoRlCluster) -> Layout:
    """Give how the policy or the critic is cut; the reference is cut as the policy."""
    layout, placed = job.layout(part, "train"), job.placed(part, "train")
    megatron = placed is not None and placed.engine == "megatron"
    degree = layout.tensor * layout.sequence * (layout.pipeline if megatron else 1)
    data = max(1, cluster.trains.devices // degree)
    if megatron:
        sharding: Sharding = "none" if layout.sharding == "none" else "optimizer"
        return layout.model_copy(update={"data": data, "sharding": sharding})
    return Layout(data=data, tensor=layout.tensor, sequence=layout.sequence, sharding="full" if data > 1 else "none")


def _running(job: ExportSpec, part: Part, cluster: NemoRlCluster) -> RoleSettings:
    """Give what a model of the trainer holds where; the reference's weights take the place of the policy's."""
    told, placed = job.running(part, "infer" if part == "reference" else "train"), job.placed(part, "train")
    sleeps = not cluster.apart
    if part == "reference":
        return told.model_copy(update={"sleeps": sleeps, "offload": () if sleeps else ("parameters",)})
    if placed is not None and placed.engine == "megatron":
        offload: tuple[Offloaded, ...] = ("optimizer",) if "optimizer" in told.offload else ()
        return told.model_copy(update={"sleeps": sleeps, "offload": offload})
    checkpointing = "none" if told.checkpointing == "none" else "full"
    if told.offload:
        return told.model_copy(update={"sleeps": False, "offload": OFFLOADED, "checkpointing": checkpointing})
    return told.model_copy(update={"sleeps": sleeps, "checkpointing": checkpointing})


def _lag(job: ExportSpec) -> int:
    placed = job.placed("policy", "sample")
    return placed.lag if placed is not None else 0


def _cluster(job: ExportSpec, trainer: str, notes: ExportNotes) -> NemoRlCluster:
    """Give the machines: those of generation are whole machines, or devices of the only one."""
    home, sampling = job.pool("policy", "train"), job.pool("policy", "sample")
    pools = {home}
    pairs: tuple[tuple[Part, str], ...] = (("critic", "train"), ("reference", "infer"))
    for part, use in pairs:
        placed = job.placed(part, "train" if use == "train" else "infer")
        if placed is not None and placed.pool != home:
            pools |= {placed.pool} - {sampling}
            notes.say(
                f"{placed.role} has the pool `{placed.pool}`; NeMo RL keeps policy, critic and reference on one: "
                f"they share {job.site(*pools).devices} devices"
            )
    apart = sampling not in ("", *pools)
    if apart and trainer == "ppo":
        notes.say("NeMo RL's PPO generates on the policy's devices; the devices of both pools are shared")
        pools, apart = pools | {sampling}, False
    train, drawn = job.site(*pools), job.site(sampling)
    say_uneven(train, "the trainer's pool", notes)
    own = job.pool("reward", "infer") not in ("", *pools, sampling)
    reward = job.site(job.pool("reward", "infer")) if own else ExportDevices((0,))
    if not apart:
        return _beside(train, reward, own)
    return _parted(train, drawn, reward if own else None, notes)


def _beside(train: ExportDevices, reward: ExportDevices, own: bool) -> NemoRlCluster:
    if not own or train.nodes > 1:
        return NemoRlCluster(
            train.nodes + (reward.nodes if own else 0), train.per_node, False, None, None, train, train
        )
    return NemoRlCluster(1, train.per_node + reward.per_node, False, None, None, train, train)


def _parted(
    train: ExportDevices, drawn: ExportDevices, reward: ExportDevices | None, notes: ExportNotes
) -> NemoRlCluster:
    own = reward.per_node if reward is not None else 0
    if train.nodes == 1 and train.machines == drawn.machines:
        return NemoRlCluster(1, train.per_node + drawn.per_node + own, True, None, drawn.per_node, train, drawn)
    if drawn.per_node != train.per_node:
        nodes = max(1, drawn.devices // train.per_node)
        notes.say(
            f"generation has {drawn.devices} devices, {drawn.per_node} on each machine; NeMo RL gives it whole "
            f"machines: {nodes} with {train.per_node} each"
        )
        drawn = ExportDevices((train.per_node,) * nodes)
    nodes = train.nodes + drawn.nodes + (1 if own else 0)
    return NemoRlCluster(nodes, train.per_node, True, drawn.nodes, drawn.per_node, train, drawn)


def _reward(job: ExportSpec, cluster: NemoRlCluster) -> dict[str, Any] | None:
    if not job.has("reward"):
        return None
    site = job.site(job.pool("reward", "infer"))
    layout = job.layout("reward", "infer")
    return {
        "model": job.model("reward").name,
        "nodes": site.nodes,
        "per_node": site.per_node,
        "tensor": layout.tensor,
        "offloads": "parameters" in job.running("reward", "infer").offload,
    }


def _megatron(job: ExportSpec, part: Part, notes: ExportNotes) -> bool:
    placed, layout, running = job.placed(part, "train"), job.layout(part, "train"), job.running(part, "train")
    if placed is None:
        return False
    if placed.engine == "megatron":
        if layout.sharding in ("gradients", "full") and layout.data > 1:
            notes.say(
                f"{placed.role} shards {'whole' if layout.sharding == 'full' else 'gradients'}; NeMo RL's Megatron "
                f"shards the optimizer only: each of {layout.data} data ranks holds the weights of its part"
            )
        return True
    if layout.pipeline > 1 or layout.expert > 1:
        notes.say(f"{placed.role} is cut as {layout}; NeMo RL's DTensor cuts by data, tensor and context only")
    if layout.sharding != "full" and layout.data > 1:
        notes.say(f"{placed.role} shards {layout.sharding}; NeMo RL's DTensor shards weights, gradients and optimizer")
    if running.checkpointing == "selective":
        notes.say(f"{placed.role} checkpoints some activations; NeMo RL's DTensor all or none: all")
    if running.offload and len(running.offload) < 3:
        notes.say(f"{placed.role} offloads {'+'.join(running.offload)}; NeMo RL's DTensor all or nothing: cpu_offload")
    return False


def _parts(job: ExportSpec, notes: ExportNotes) -> dict[str, Any]:
    sample = job.placed("policy", "sample")
    if sample is not None and sample.engine == "sglang":
        notes.say("sampling runs on sglang; the exported configuration is for vllm")
    if job.has("reference") and job.layout("reference", "infer") != job.layout("policy", "train"):
        notes.say("NeMo RL keeps the reference in the policy's workers, in the policy's layout")
    if job.has("critic") and job.algorithm.critic is not None:
        rows = max(1, job.budget_tokens("critic", "train") * job.layout("critic", "train").sequence // job.total_tokens)
    else:
        rows = 1
    return {
        "actor": job.layout("policy", "train"),
        "actor_running": job.running("policy", "train"),
        "value": job.layout("critic", "train"),
        "value_running": job.running("critic", "train"),
        "value_rows": rows,
        "rollout": job.layout("policy", "sample"),
        "rollout_running": job.running("policy", "sample"),
        "logprob_chunk": LOGPROB_CHUNK if job.running("policy", "train").logits == "chunked" else None,
        "budget": job.budget_tokens("policy", "train") * job.layout("policy", "train").sequence,
        "train_rows": job.minibatch * job.algorithm.n,
    }


def _algorithm(job: ExportSpec, notes: ExportNotes) -> dict[str, Any]:
    algorithm, surrogate = job.algorithm, job.algorithm.surrogate
    estimator, left_out = ESTIMATORS.get(algorithm.estimator, ("grpo", False))
    if algorithm.estimator not in ESTIMATORS:
        notes.say("the flow's advantages are none of NeMo RL's estimators: grpo stands in their place")
    if algorithm.estimator == "gpg_advantages":
        notes.say("GPG's advantages are centred scores times alpha; NeMo RL has centred scores, alpha 1")
    if surrogate.op not in LOSSES:
        notes.say(f"`{surrogate.op}` is none of NeMo RL's losses: the clipped surrogate stands in its place")
    _say_of_terms(job, notes)
    kl = algorithm.kl_loss or algorithm.kl_reward
    by_row = surrogate.op == "gspo_loss" or surrogate.aggregation == "sequence-mean"
    if surrogate.aggregation not in ("token-mean", "sequence-mean"):
        notes.say(f"terms are aggregated as {aggregated(surrogate.aggregation)}; NeMo RL takes the mean over tokens")
    told = "sequence-mean" if by_row else "token-mean"
    for name, own in algorithm.aggregations.items():
        if own != told and "entropy" not in name:
            notes.say(f"`{name}` is aggregated as {aggregated(own)}; NeMo RL aggregates it as the surrogate: {told}")
    return {
        "estimator": estimator,
        "leave_one_out": left_out,
        "normalizes": bool(algorithm.advantages.get("deviation", False)),
        "minus_baseline": algorithm.estimator == "centred_whitened",
        "by_token": not by_row,
        "kl": kl,
        "kl_type": "" if kl is None else "k2" if kl.estimator == "abs" or kl.straight_through else kl.estimator,
        "correction": _correction(job, notes),
        "multiplier": _multiplier(job),
    }


def _say_of_terms(job: ExportSpec, notes: ExportNotes) -> None:
    algorithm, surrogate = job.algorithm, job.algorithm.surrogate
    kl = algorithm.kl_loss or algorithm.kl_reward
    if algorithm.entropy_weight:
        notes.say(f"an entropy bonus of {algorithm.entropy_weight:g} is left out: NeMo RL has none")
    if surrogate.old == "sampler":
        more = "" if job.measures else ": one more forward pass"
        notes.say(f"the flow clips around the sampler's log-probs; NeMo RL computes them anew{more}")
    if kl is not None and (kl.straight_through or kl.estimator == "abs"):
        notes.say(f"NeMo RL's estimates of the KL are k1, k2 and k3, as they are: k2 for {kl.estimator}")
    if kl is not None and kl.adaptive is not None:
        notes.say("the weight of the KL adapts; NeMo RL's stays as it is at first")
    if algorithm.policy.epochs > 1 and algorithm.estimator != "gae":
        notes.say(f"{algorithm.policy.epochs} passes over a batch; NeMo RL's GRPO makes one")
    if algorithm.policy.optimizer == "sgd":
        notes.say("the optimizer is SGD; NeMo RL is told AdamW")
    if algorithm.rejection is not None:
        notes.say("tokens that were drawn too differently are left out by the flow; NeMo RL is not told to")


def _correction(job: ExportSpec, notes: ExportNotes) -> dict[str, Any] | None:
    told = job.algorithm.correction
    if told is None:
        return None
    if told["normalized"] or told["level"] == "sequence":
        notes.say("importance weights are of whole responses or normalised; NeMo RL's are of tokens, as they are")
    if told["cap"] is not None:
        return {"type": "tis", "most": told["cap"], "least": None}
    return {"type": "icepop", "most": told["high"] or 1e6, "least": told["low"] or 0.0}


def _multiplier(job: ExportSpec) -> float:
    """Give how many more prompts are drawn in a round than a batch keeps."""
    refill = job.algorithm.refill
    if refill is None:
        return 1.0
    return round(max(1.0, job.assumed.batch / int(refill["rounds"]) / job.batch), 3)
