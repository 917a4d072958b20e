"""From a plan to OpenRLHF: which of its groups of models share devices, and what has no flag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowgraph.cluster.plan import Layout
from nodes.interop.algorithm import aggregation_text
from nodes.interop.export_notes import kl_estimator, note_aggregations, note_recomputed, note_uneven
from nodes.interop.export_spec import ROLES, ExportDevices, ExportSpec, RoleName

# Source: OpenRLHF 0.11.2, the choices of `--algo.advantage.estimator` and trainer/ppo_utils/experience_maker.py.
ESTIMATORS: Mapping[str, str] = {
    "gae": "gae",
    "centred_whitened": "reinforce_baseline",
    "discounted_returns": "reinforce",
    "rloo_advantages": "rloo",
}
STAGES = {"none": 0, "optimizer": 1, "gradients": 2, "full": 3}
MODELS: tuple[RoleName, ...] = ("policy", "critic", "reference", "reward")
SEPARATE: tuple[tuple[RoleName, RoleName], ...] = (  # pairs that cannot share devices
    *(("policy", "critic"), ("policy", "reward")),
    *(("reference", "critic"), ("reference", "reward")),
)
NO_CLIP = 1e6  # a bound that no value exceeds


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Which models share devices, and the devices of each model; `ahead` means that responses are generated ahead."""

    devices: Mapping[RoleName, ExportDevices]
    everything: bool = False  # DeepSpeed's models share one pool; vLLM too, unless it runs ahead
    actor_reference: bool = False
    critic_reward: bool = False
    ahead: bool = False


def openrlhf_values(spec: ExportSpec) -> dict[str, Any]:
    """Return the values for the template of the spec's OpenRLHF version, by their names in the template.

    Adds notes to `spec` on what OpenRLHF does differently from the plan.
    """
    groups, layout, sampler = _groups(spec), _layout(spec), spec.role("sampler")
    if sampler.engine == "sglang":
        spec.note(f"{sampler.role} runs on `sglang`; OpenRLHF samples with vllm")
    trained: tuple[RoleName, ...] = ("policy", "critic")
    checkpointing = {spec.role(name).running.checkpointing for name in trained if name in spec.parts}
    if len(checkpointing) > 1 or "selective" in checkpointing:
        spec.note("OpenRLHF checkpoints all activations of all trained models, or none")
    engine_devices, row_devices = sampler.layout.tensor * sampler.layout.pipeline, layout.tensor * layout.sequence
    read: RoleName = "reference" if spec.is_placed("reference") else "policy"
    return {
        "groups": groups,
        "engines": max(1, groups.devices["sampler"].devices // engine_devices),
        "engine_tensor": engine_devices,
        "share": sampler.running.cache_share,
        "lag": max(1, spec.lag),
        "layout": layout,
        "stage": STAGES[layout.sharding],
        **_offload(spec, groups),
        "checkpointing": checkpointing != {"none"},
        # OpenRLHF multiplies a device's tokens by the devices that share a row.
        "budget": -(-spec.row_tokens("policy") // row_devices),
        "rollout_budget": -(-spec.row_tokens(read) // row_devices),
        "train_rows": spec.minibatch * spec.algorithm.n,
        **_algorithm(spec),
    }


def _groups(spec: ExportSpec) -> Groups:
    pools: dict[RoleName, str] = {name: spec.role(name).pool for name in MODELS if spec.is_placed(name)}
    home, sampling = pools["policy"], spec.role("sampler").pool
    if sampling == home:  # vLLM shares devices with all models, or with none
        names = sorted(set(pools.values()))
        devices = spec.devices(*names)
        if len(names) > 1:
            spec.note(
                "if vLLM shares the policy's devices, all models of OpenRLHF share them: "
                f"{devices.devices} devices, the pools {', '.join(f'`{name}`' for name in names)} together"
            )
        if spec.lag:
            spec.note("OpenRLHF needs separate devices for vLLM to have a lag; here they are shared, so there is none")
        note_uneven(spec, devices, "the pool of all models")
        return Groups(devices=dict.fromkeys(ROLES, devices), everything=True)
    ahead = spec.lag > 0
    shared = len(set(pools.values())) == 1 and len(pools) > 1 and "critic" in pools
    if shared and not ahead:
        spec.note(
            "OpenRLHF keeps all models but vLLM on one pool in its asynchronous mode only: "
            "responses are generated up to one batch ahead"
        )
    if not shared:
        _note_split_pools(spec, pools, sampling)
    for pool in {*pools.values(), sampling}:
        note_uneven(spec, spec.devices(pool), f"`{pool}`")
    by_role: dict[RoleName, ExportDevices] = {name: spec.devices(pools.get(name, home)) for name in MODELS}
    return Groups(
        devices={**by_role, "sampler": spec.devices(sampling)},
        everything=shared,
        actor_reference=not shared and pools.get("reference") == home,
        critic_reward=not shared and "critic" in pools and pools.get("reward") == pools["critic"],
        ahead=ahead or shared,
    )


def _note_split_pools(spec: ExportSpec, pools: Mapping[RoleName, str], sampling: str) -> None:
    for first, second in SEPARATE:
        if first in pools and pools.get(second) == pools[first]:
            spec.note(
                f"the {first} and the {second} share a pool, which OpenRLHF has no flag for here: "
                f"the {second} takes {spec.devices(pools[second]).devices} more devices"
            )
    for name, pool in pools.items():
        if pool == sampling:
            spec.note(
                f"the {name} and vLLM share a pool, which OpenRLHF has no flag for without the policy: "
                f"the {name} takes {spec.devices(pool).devices} more devices"
            )


def _layout(spec: ExportSpec) -> Layout:
    policy = spec.role("policy")
    layout = policy.layout
    if policy.engine not in ("fsdp", "local"):
        spec.note(f"{policy.role} runs on `{policy.engine}`; OpenRLHF trains with DeepSpeed")
    if layout.pipeline > 1 or layout.expert > 1:
        spec.note(f"the policy has the layout {layout}; DeepSpeed has data, tensor and sequence ranks only")
    read: tuple[RoleName, ...] = ("critic", "reference")
    for name in read:
        planned = spec.role(name).layout
        same = (planned.tensor, planned.sequence, planned.sharding) == (layout.tensor, layout.sequence, layout.sharding)
        if name in spec.parts and not same:
            spec.note(f"the {name} has the layout {planned}; OpenRLHF gives all its models the policy's: {layout}")
    return layout


def _offload(spec: ExportSpec, groups: Groups) -> dict[str, bool]:
    """Return the flags for host memory; DeepSpeed's sleep moves all of a trained model there."""
    running, critic, reference = (spec.role(name).running for name in MODELS[:3])
    one_pool = groups.everything and not groups.ahead
    leaves = running.sleeps or "parameters" in running.offload
    sleeps = one_pool and leaves
    if sleeps and not running.sleeps and "optimizer" not in running.offload:
        spec.note("the policy's weights leave the device between uses; with DeepSpeed's sleep its optimizer does too")
    if leaves and not one_pool:
        spec.note(
            "the policy's weights leave the device between uses; DeepSpeed sleeps only if all models share devices"
        )
    if spec.is_placed("critic") and (critic.offload, critic.sleeps) != (running.offload, running.sleeps):
        spec.note("the critic's offload differs from the policy's; OpenRLHF has one flag for both")
    if reference.sleeps:
        spec.note("the reference leaves the device between uses; DeepSpeed loads its weights for each pass")
    return {
        "adam_offload": ("optimizer" in running.offload or running.sleeps) and not sleeps,
        "sleeps": sleeps,
        "vllm_sleeps": one_pool,
        "reference_offload": reference.sleeps or "parameters" in reference.offload,
        "reward_offload": "parameters" in spec.role("reward").running.offload,
    }


def _algorithm(spec: ExportSpec) -> dict[str, Any]:
    algorithm, surrogate = spec.algorithm, spec.algorithm.surrogate
    if surrogate.op not in ("clipped", "gspo_loss"):
        same = "; its gradient is the same for one step per batch" if surrogate.op == "policy_gradient" else ""
        spec.note(f"OpenRLHF does not have the loss `{surrogate.op}`, only ppo and gspo: ppo replaces it{same}")
    note_recomputed(spec)
    if algorithm.rejection is not None:
        spec.note("the flow leaves out tokens whose log-probs differ too much; OpenRLHF has no flag for that")
    # Source: trainer/ray/ppo_actor.py: `aggregate_loss` takes the aggregation of the surrogate only.
    note_aggregations(spec, "token-mean", "OpenRLHF aggregates all terms but the surrogate as one")
    kl_type = kl_estimator(spec)
    if algorithm.refill is not None:
        spec.note(
            f"the flow generates for at most {algorithm.refill['rounds']} rounds; OpenRLHF until the batch is full"
        )
        spec.note("the flow keeps groups whose scores differ; OpenRLHF those whose mean score is between 0 and 1")
    if algorithm.critic is not None and algorithm.value_clip is None:
        spec.note("the critic's loss is not clipped; OpenRLHF's bound is out of reach")
    estimator = ESTIMATORS.get(algorithm.estimator, "group_norm")
    if algorithm.estimator == "group_normalize":
        estimator = "group_norm" if algorithm.advantages["deviation"] else "dr_grpo"
    elif algorithm.estimator == "gpg_advantages":
        spec.note("GPG's advantages are centred scores times alpha; OpenRLHF has centred scores (dr_grpo), alpha 1")
        estimator = "dr_grpo"
    elif algorithm.estimator not in ESTIMATORS:
        spec.note("OpenRLHF does not have the flow's advantages: group_norm replaces them")
    planned, aggregation = surrogate.aggregation, "token-mean"
    if planned == "sequence-mean" and spec.version != "0.9.10":  # which has only the mean over tokens
        aggregation = "seq-mean-token-mean"
    elif planned != "token-mean":
        spec.note(f"terms are aggregated as {aggregation_text(planned)}; OpenRLHF {spec.version} averages over tokens")
    return {
        "estimator": estimator,
        "loss": "gspo" if surrogate.op == "gspo_loss" else "ppo",
        "aggregation": aggregation,
        "clips": surrogate.op in ("clipped", "gspo_loss"),
        "kl_estimator": kl_type,
        "value_clip": algorithm.value_clip or NO_CLIP,
        **_correction(spec),
    }


def _correction(spec: ExportSpec) -> dict[str, Any]:
    correction = spec.algorithm.correction
    if correction is None:
        return {"correction": ""}
    low, high = correction["low"] or 0.0, correction["high"] or 1e6
    if correction["normalized"]:
        spec.note("the flow normalises importance weights over the batch; OpenRLHF does not")
    if correction["level"] == "sequence":
        spec.note("importance weights are of whole responses; OpenRLHF leaves responses out by them, and weighs tokens")
        return {"correction": "sequence", "low": low, "high": correction["cap"] or high}
    if correction["cap"] is not None:
        return {"correction": "truncate", "low": 0.0, "high": correction["cap"]}
    return {"correction": "leave out", "low": low, "high": high}
