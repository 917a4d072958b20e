"""From a plan to NeMo RL: which of its two trainers runs the flow, where it generates, and what has no key.

Its configurations cannot be read back, so what it runs of an exported plan follows from the plan too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowgraph.analysis.roles import Use
from flowgraph.cluster.plan import Layout, Offloaded, PlacedRole, RoleSettings, Sharding
from nodes.interop.algorithm import aggregation_text
from nodes.interop.export_notes import kl_estimator, note_recomputed, note_uneven, trainer_pools
from nodes.interop.export_spec import ExportDevices, ExportSpec, RoleName
from nodes.interop.imported import SharedDevices, SystemRun

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
OFFLOADED: tuple[Offloaded, ...] = ("parameters", "gradients", "optimizer")
TRAINED: tuple[RoleName, ...] = ("policy", "critic")
TRAINER: Mapping[RoleName, str] = {"policy": "policy.train", "critic": "critic.train", "reference": "ref.infer"}


@dataclass(frozen=True)
class NemoRlCluster:
    """The machines that NeMo RL needs, the devices on each, and the devices that train and that generate.

    `sampling_nodes` and `sampling_per_node` are the machines of separate generation and the devices on each; None for
    what NeMo RL does not need. `training` and `sampling` are the same devices if generation is not separate.
    """

    nodes: int
    per_node: int
    training: ExportDevices
    sampling: ExportDevices
    separate: bool = False
    sampling_nodes: int | None = None
    sampling_per_node: int | None = None


def nemo_rl_values(spec: ExportSpec) -> dict[str, Any]:
    """Return the values for the template of the spec's NeMo RL version, by their names in the template.

    Adds notes to `spec` on what NeMo RL does differently from the plan.
    """
    cluster = _cluster(spec)
    policy, critic, sampler = spec.role("policy"), spec.role("critic"), spec.role("sampler")
    if spec.lag and not cluster.separate:
        spec.note("NeMo RL needs separate devices for generation to have a lag; here they are shared, so there is none")
    for name in TRAINED:
        if spec.is_placed(name):
            _note_layout(spec, spec.role(name))
    if sampler.engine == "sglang":
        spec.note("sampling runs on sglang; the exported configuration is for vllm")
    if "reference" in spec.parts and spec.role("reference").layout != policy.layout:
        spec.note("NeMo RL keeps the reference in the policy's workers, in the policy's layout")
    reward = spec.role("reward")
    return {
        "trainer": _trainer(spec),
        "cluster": cluster,
        "lag": spec.lag if cluster.separate else 0,
        "reward": reward,
        "reward_devices": spec.devices(reward.pool),
        "actor": policy,
        "value": critic,
        "value_rows": max(1, spec.row_tokens("critic") // spec.total_tokens),
        "rollout": sampler,
        "logprob_chunk": LOGPROB_CHUNK if policy.running.logits == "chunked" else None,
        "budget": spec.row_tokens("policy"),
        "train_rows": spec.minibatch * spec.algorithm.n,
        **_algorithm(spec),
    }


def nemo_rl_run(spec: ExportSpec) -> SystemRun:
    """Return the devices, layouts and settings with which NeMo RL runs an exported plan; roles are named as in "ppo".

    Adds notes on devices that NeMo RL uses differently.
    Source: NeMo RL 0.7.0: models/megatron/setup.py gives Megatron no FSDP; the policy's worker keeps the reference in
    host memory and swaps it with the policy's weights; if generation shares devices, everything else is offloaded.
    """
    cluster, sampler = _cluster(spec), spec.role("sampler")
    trainer: dict[str, RoleName] = {shipped: name for name, shipped in TRAINER.items() if spec.is_placed(name)}
    layouts, running = dict[str, Layout](), dict[str, RoleSettings]()
    for shipped, name in trainer.items():
        placed, of_layout = spec.role(name), spec.role("policy" if name == "reference" else name)
        layout, megatron = of_layout.layout, of_layout.engine == "megatron"
        degree = layout.tensor * layout.sequence * (layout.pipeline if megatron else 1)
        data = max(1, cluster.training.devices // degree)
        sharding: Sharding = "full" if data > 1 else "none"
        if megatron:
            sharding = "none" if layout.sharding == "none" else "optimizer"
            layouts[shipped] = layout.model_copy(update={"data": data, "sharding": sharding})
        else:
            layouts[shipped] = Layout(data=data, tensor=layout.tensor, sequence=layout.sequence, sharding=sharding)
        update: dict[str, Any] = {"sleeps": not cluster.separate}
        if placed.role.endswith(".infer"):
            update["offload"] = ("parameters",) if cluster.separate else ()
        elif placed.engine == "megatron":
            update["offload"] = ("optimizer",) if "optimizer" in placed.running.offload else ()
        else:
            update["checkpointing"] = "none" if placed.running.checkpointing == "none" else "full"
            update |= {"sleeps": False, "offload": OFFLOADED} if placed.running.offload else {}
        running[shipped] = placed.running.model_copy(update=update)
    data = max(1, cluster.sampling.devices // (sampler.layout.tensor * sampler.layout.pipeline))
    layouts["policy.sample"] = sampler.layout.model_copy(update={"data": data})
    running["policy.sample"] = sampler.running.model_copy(update={"sleeps": not cluster.separate})
    home = SharedDevices((*trainer,), cluster.training.devices, cluster.per_node)
    parts = [SharedDevices(("policy.sample",), cluster.sampling.devices, cluster.sampling.per_node)]
    if not cluster.separate:
        home, parts = SharedDevices((*trainer, "policy.sample"), cluster.training.devices, cluster.per_node), []
    engine = "megatron" if spec.role("policy").engine == "megatron" else "fsdp"
    engines: dict[Use, str] = {"train": engine, "sample": "vllm", "infer": engine}
    return SystemRun(
        parts=(home, *parts), engines=engines, layouts=layouts, running=running, lag=spec.lag if cluster.separate else 0
    )


def _cluster(spec: ExportSpec) -> NemoRlCluster:
    pool, pools = spec.role("sampler").pool, trainer_pools(spec, "NeMo RL")
    separate = pool not in ("", *pools)
    if separate and _trainer(spec) == "ppo":
        spec.note("NeMo RL's PPO generates on the policy's devices; the devices of both pools are shared")
        pools, separate = pools | {pool}, False
    training, sampling = spec.devices(*pools), spec.devices(pool)
    note_uneven(spec, training, "the trainer's pool")
    reward_pool = spec.role("reward").pool
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
        spec.note(
            f"generation has {sampling.devices} devices, {sampling.per_node} on each machine; NeMo RL gives it whole "
            f"machines: {nodes} with {training.per_node} each"
        )
        sampling = ExportDevices((training.per_node,) * nodes)
    nodes = training.nodes + sampling.nodes + (reward is not None)
    return NemoRlCluster(nodes, training.per_node, training, sampling, True, sampling.nodes, sampling.per_node)


def _trainer(spec: ExportSpec) -> str:
    return "ppo" if spec.algorithm.estimator == "gae" else "grpo"


def _note_layout(spec: ExportSpec, placed: PlacedRole) -> None:
    layout, running, role = placed.layout, placed.running, placed.role
    if placed.engine == "megatron":
        if layout.sharding in ("gradients", "full") and layout.data > 1:
            sharded = "is fully sharded" if layout.sharding == "full" else "shards gradients"
            spec.note(
                f"{role} {sharded}; NeMo RL's Megatron shards the optimizer only: each of {layout.data} data ranks "
                "holds all weights of its part"
            )
        return
    if layout.pipeline > 1 or layout.expert > 1:
        spec.note(f"{role} has the layout {layout}; NeMo RL's DTensor has data, tensor and context ranks only")
    if layout.sharding != "full" and layout.data > 1:
        spec.note(f"{role} shards {layout.sharding}; NeMo RL's DTensor shards weights, gradients and optimizer")
    if running.checkpointing == "selective":
        spec.note(f"{role} checkpoints some activations; NeMo RL's DTensor all or none: all")
    if running.offload and len(running.offload) < 3:
        spec.note(f"{role} offloads {'+'.join(running.offload)}; NeMo RL's DTensor all or nothing: cpu_offload")


def _algorithm(spec: ExportSpec) -> dict[str, Any]:
    algorithm, surrogate, refill = spec.algorithm, spec.algorithm.surrogate, spec.algorithm.refill
    estimator, leave_one_out = ESTIMATORS.get(algorithm.estimator, ("grpo", False))
    if algorithm.estimator not in ESTIMATORS:
        spec.note("NeMo RL does not have the flow's advantages: grpo replaces them")
    if algorithm.estimator == "gpg_advantages":
        spec.note("GPG's advantages are centred scores times alpha; NeMo RL has centred scores, alpha 1")
    if surrogate.op not in LOSSES:
        spec.note(f"NeMo RL does not have the loss `{surrogate.op}`: the clipped surrogate replaces it")
    if algorithm.entropy_weight:
        spec.note(f"the entropy bonus of {algorithm.entropy_weight:g} is left out: NeMo RL has none")
    note_recomputed(spec)
    kl_type = kl_estimator(spec)
    if algorithm.kl is not None and algorithm.kl.adaptive is not None:
        spec.note("the flow adapts the weight of the KL; NeMo RL keeps the initial weight")
    if algorithm.policy.epochs > 1 and algorithm.estimator != "gae":
        spec.note(f"the flow makes {algorithm.policy.epochs} passes over a batch; NeMo RL's GRPO makes one")
    if algorithm.policy.optimizer == "sgd":
        spec.note("the optimizer is SGD; NeMo RL uses AdamW")
    if algorithm.rejection is not None:
        spec.note("the flow leaves out tokens whose log-probs differ too much; NeMo RL does not")
    by_row = surrogate.op == "gspo_loss" or surrogate.aggregation == "sequence-mean"
    aggregation = "sequence-mean" if by_row else "token-mean"
    if surrogate.aggregation not in ("token-mean", "sequence-mean"):
        spec.note(f"terms are aggregated as {aggregation_text(surrogate.aggregation)}; NeMo RL averages over tokens")
    for name, term in algorithm.aggregations.items():
        if term != aggregation and "entropy" not in name:
            what = f"`{name}` is aggregated as {aggregation_text(term)}"
            spec.note(f"{what}; NeMo RL aggregates it as the surrogate: {aggregation}")
    return {
        "estimator": estimator,
        "leave_one_out": leave_one_out,
        "normalizes": bool(algorithm.advantages.get("deviation", False)),
        "minus_baseline": algorithm.estimator == "centred_whitened",
        "by_token": not by_row,
        "kl_type": kl_type,
        "correction": _correction(spec),
        "multiplier": round(max(1.0, spec.assumed.batch / (refill["rounds"] if refill else 1) / spec.batch), 3),
    }


def _correction(spec: ExportSpec) -> dict[str, Any] | None:
    correction = spec.algorithm.correction
    if correction is None:
        return None
    if correction["normalized"] or correction["level"] == "sequence":
        spec.note("importance weights are of whole responses or normalised; NeMo RL's are of tokens, not normalised")
    if correction["cap"] is not None:
        return {"type": "tis", "high": correction["cap"], "low": None}
    return {"type": "icepop", "high": correction["high"] or 1e6, "low": correction["low"] or 0.0}
