"""From a plan to NeMo RL: which of its two trainers runs the flow, where it generates, and what has no key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowgraph.analysis.roles import Use
from nodes.interop.algorithm import Algorithm, aggregation_text
from nodes.interop.export_notes import ExportNotes, kl_estimator, note_uneven, recomputes
from nodes.interop.export_spec import ExportDevices, ExportSpec, Part

# Source: NeMo RL 0.7.0, nemo_rl/algorithms/advantage_estimator.py: an estimator's name, and whether it leaves one out.
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
"""Tokens of a row whose logits are converted to float32 at once (`logprob_chunk_size`)."""


@dataclass(frozen=True)
class NemoRlCluster:
    """All machines, and the devices of training and of generation.

    `sampling_nodes` and `sampling_per_node` are those of separate generation; None on one machine, or if it is shared.
    """

    nodes: int
    per_node: int
    training: ExportDevices
    sampling: ExportDevices
    separate: bool = False
    sampling_nodes: int | None = None
    sampling_per_node: int | None = None


def nemo_rl_values(spec: ExportSpec, version: str, notes: ExportNotes) -> dict[str, Any]:
    """Return the values of a version's template, and note what NeMo RL does differently because it has no key."""
    cluster = cluster_of(spec, notes)
    if spec.lag and not cluster.separate:
        notes.add("NeMo RL needs separate devices for generation to have a lag; here they are shared, so there is none")
    trained: tuple[Part, ...] = ("policy", "critic")
    for part in trained:
        _note_layout(spec, part, notes)
    if spec.engine("policy", "sample", "vllm") == "sglang":
        notes.add("sampling runs on sglang; the exported configuration is for vllm")
    if spec.has("reference") and spec.layout("reference", "infer") != spec.layout("policy", "train"):
        notes.add("NeMo RL keeps the reference in the policy's workers, in the policy's layout")
    actor, value = spec.layout("policy", "train"), spec.layout("critic", "train")
    trainer = _trainer(spec)
    return {
        "trainer": trainer,
        "base": f"{trainer}_math_1B.yaml",
        "cluster": cluster,
        "lag": spec.lag if cluster.separate else 0,
        "reward": spec.model("reward").name if spec.has("reward") else None,
        "reward_devices": spec.devices(spec.pool("reward", "infer")),
        "reward_layout": spec.layout("reward", "infer"),
        "reward_offloads": "parameters" in spec.running("reward", "infer").offload,
        "megatron": uses_megatron(spec, "policy"),
        "value_megatron": uses_megatron(spec, "critic"),
        "actor": actor,
        "actor_running": spec.running("policy", "train"),
        "value": value,
        "value_running": spec.running("critic", "train"),
        "value_rows": max(1, spec.budget_tokens("critic", "train") * value.sequence // spec.total_tokens),
        "rollout": spec.layout("policy", "sample"),
        "rollout_running": spec.running("policy", "sample"),
        "logprob_chunk": LOGPROB_CHUNK if spec.running("policy", "train").logits == "chunked" else None,
        "budget": spec.budget_tokens("policy", "train") * actor.sequence,
        "train_rows": spec.minibatch * spec.algorithm.n,
        **_algorithm(spec, notes),
    }


def uses_megatron(spec: ExportSpec, part: Part) -> bool:
    """Return whether Megatron trains a part, not DTensor."""
    return spec.engine(part, "train", "") == "megatron"


def cluster_of(spec: ExportSpec, notes: ExportNotes) -> NemoRlCluster:
    """Return the machines; separate generation has whole machines, or some devices of the only one."""
    home, pool = spec.pool("policy", "train"), spec.pool("policy", "sample")
    pools = {home}
    others: tuple[tuple[Part, Use], ...] = (("critic", "train"), ("reference", "infer"))
    for part, use in others:
        placed = spec.placed(part, use)
        if placed is not None and placed.pool != home:
            pools |= {placed.pool} - {pool}
            notes.add(
                f"{placed.role} has the pool `{placed.pool}`; NeMo RL has policy, critic and reference on one: "
                f"they share {spec.devices(*pools).devices} devices"
            )
    separate = pool not in ("", *pools)
    if separate and _trainer(spec) == "ppo":
        notes.add("NeMo RL's PPO generates on the policy's devices; the devices of both pools are shared")
        pools, separate = pools | {pool}, False
    training, sampling = spec.devices(*pools), spec.devices(pool)
    note_uneven(training, "the trainer's pool", notes)
    reward_pool = spec.pool("reward", "infer")
    reward = spec.devices(reward_pool) if reward_pool not in ("", *pools, pool) else None
    reward_nodes, reward_per_node = (reward.nodes, reward.per_node) if reward is not None else (0, 0)
    if not separate and training.nodes > 1:
        return NemoRlCluster(training.nodes + reward_nodes, training.per_node, training, training)
    if not separate:
        return NemoRlCluster(1, training.per_node + reward_per_node, training, training)
    if training.nodes == 1 and training.machines == sampling.machines:
        per_node = training.per_node + sampling.per_node + reward_per_node
        return NemoRlCluster(1, per_node, training, sampling, True, None, sampling.per_node)
    if sampling.per_node != training.per_node:
        nodes = max(1, sampling.devices // training.per_node)
        notes.add(
            f"generation has {sampling.devices} devices, {sampling.per_node} on each machine; NeMo RL gives it whole "
            f"machines: {nodes} with {training.per_node} each"
        )
        sampling = ExportDevices((training.per_node,) * nodes)
    nodes = training.nodes + sampling.nodes + (reward is not None)
    return NemoRlCluster(nodes, training.per_node, training, sampling, True, sampling.nodes, sampling.per_node)


def _trainer(spec: ExportSpec) -> str:
    return "ppo" if spec.algorithm.estimator == "gae" else "grpo"


def _note_layout(spec: ExportSpec, part: Part, notes: ExportNotes) -> None:
    """Note what the engine of a trained part cannot do of its layout and settings."""
    placed = spec.placed(part, "train")
    if placed is None:
        return
    layout, running, role = placed.layout, placed.running, placed.role
    if placed.engine == "megatron":
        if layout.sharding in ("gradients", "full") and layout.data > 1:
            sharded = "is fully sharded" if layout.sharding == "full" else "shards gradients"
            notes.add(
                f"{role} {sharded}; NeMo RL's Megatron shards the optimizer only: each of {layout.data} data ranks "
                "holds all weights of its part"
            )
        return
    if layout.pipeline > 1 or layout.expert > 1:
        notes.add(f"{role} has the layout {layout}; NeMo RL's DTensor has data, tensor and context ranks only")
    if layout.sharding != "full" and layout.data > 1:
        notes.add(f"{role} shards {layout.sharding}; NeMo RL's DTensor shards weights, gradients and optimizer")
    if running.checkpointing == "selective":
        notes.add(f"{role} checkpoints some activations; NeMo RL's DTensor all or none: all")
    if running.offload and len(running.offload) < 3:
        notes.add(f"{role} offloads {'+'.join(running.offload)}; NeMo RL's DTensor all or nothing: cpu_offload")


def _algorithm(spec: ExportSpec, notes: ExportNotes) -> dict[str, Any]:
    algorithm, surrogate, refill = spec.algorithm, spec.algorithm.surrogate, spec.algorithm.refill
    estimator, leave_one_out = ESTIMATORS.get(algorithm.estimator, ("grpo", False))
    if algorithm.estimator not in ESTIMATORS:
        notes.add("NeMo RL does not have the flow's advantages: grpo replaces them")
    if algorithm.estimator == "gpg_advantages":
        notes.add("GPG's advantages are centred scores times alpha; NeMo RL has centred scores, alpha 1")
    if surrogate.op not in LOSSES:
        notes.add(f"NeMo RL does not have the loss `{surrogate.op}`: the clipped surrogate replaces it")
    if algorithm.entropy_weight:
        notes.add(f"the entropy bonus of {algorithm.entropy_weight:g} is left out: NeMo RL has none")
    if surrogate.old == "sampler":
        notes.add(recomputes(spec, "NeMo RL"))
    kl = algorithm.kl_loss or algorithm.kl_reward
    kl_type = kl_estimator(kl, "NeMo RL", notes)
    if kl is not None and kl.adaptive is not None:
        notes.add("the flow adapts the weight of the KL; NeMo RL keeps the initial weight")
    if algorithm.policy.epochs > 1 and algorithm.estimator != "gae":
        notes.add(f"the flow makes {algorithm.policy.epochs} passes over a batch; NeMo RL's GRPO makes one")
    if algorithm.policy.optimizer == "sgd":
        notes.add("the optimizer is SGD; NeMo RL uses AdamW")
    if algorithm.rejection is not None:
        notes.add("the flow leaves out tokens whose log-probs differ too much; NeMo RL does not")
    by_row = surrogate.op == "gspo_loss" or surrogate.aggregation == "sequence-mean"
    _note_aggregation(algorithm, "sequence-mean" if by_row else "token-mean", notes)
    return {
        "estimator": estimator,
        "leave_one_out": leave_one_out,
        "normalizes": bool(algorithm.advantages.get("deviation", False)),
        "minus_baseline": algorithm.estimator == "centred_whitened",
        "by_token": not by_row,
        "kl": kl,
        "kl_type": kl_type,
        "correction": _correction(spec, notes),
        "multiplier": round(max(1.0, spec.assumed.batch / (refill["rounds"] if refill else 1) / spec.batch), 3),
    }


def _note_aggregation(algorithm: Algorithm, aggregation: str, notes: ExportNotes) -> None:
    own = algorithm.surrogate.aggregation
    if own not in ("token-mean", "sequence-mean"):
        notes.add(f"terms are aggregated as {aggregation_text(own)}; NeMo RL averages over tokens")
    for name, own in algorithm.aggregations.items():
        if own != aggregation and "entropy" not in name:
            what = f"`{name}` is aggregated as {aggregation_text(own)}"
            notes.add(f"{what}; NeMo RL aggregates it as the surrogate: {aggregation}")


def _correction(spec: ExportSpec, notes: ExportNotes) -> dict[str, Any] | None:
    correction = spec.algorithm.correction
    if correction is None:
        return None
    if correction["normalized"] or correction["level"] == "sequence":
        notes.add("importance weights are of whole responses or normalised; NeMo RL's are of tokens, not normalised")
    if correction["cap"] is not None:
        return {"type": "tis", "high": correction["cap"], "low": None}
    return {"type": "icepop", "high": correction["high"] or 1e6, "low": correction["low"] or 0.0}
