"""From a plan to OpenRLHF: which of its groups of models share devices, and what has no flag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowgraph.analysis.roles import Use
from flowgraph.cluster.plan import Layout
from nodes.interop.algorithm import aggregation_text
from nodes.interop.export_notes import ExportNotes, kl_estimator, note_aggregations, note_uneven, recomputes
from nodes.interop.export_spec import ExportDevices, ExportSpec, Part

# Source: OpenRLHF 0.11.2, the choices of `--algo.advantage.estimator` and trainer/ppo_utils/experience_maker.py.
ESTIMATORS: Mapping[str, str] = {
    "gae": "gae",
    "centred_whitened": "reinforce_baseline",
    "discounted_returns": "reinforce",
    "rloo_advantages": "rloo",
}
STAGES = {"none": 0, "optimizer": 1, "gradients": 2, "full": 3}
USES: Mapping[Part, Use] = {"policy": "train", "critic": "train", "reference": "infer", "reward": "infer"}
NO_CLIP = 1e6  # a bound that no value exceeds


@dataclass(frozen=True)
class Groups:
    """Which models share devices, and the devices of each model."""

    everything: bool  # DeepSpeed's models share one pool; vLLM too, unless it runs ahead
    actor_reference: bool
    critic_reward: bool
    ahead: bool
    actor: ExportDevices
    reference: ExportDevices
    critic: ExportDevices
    reward: ExportDevices
    sampling: ExportDevices


def openrlhf_values(spec: ExportSpec, version: str, notes: ExportNotes) -> dict[str, Any]:
    """Return the values of a version's template, and note what OpenRLHF does differently because it has no flag."""
    groups = _groups(spec, notes)
    layout = _layout(spec, notes)
    sampled = spec.layout("policy", "sample")
    if spec.engine("policy", "sample", "vllm") == "sglang":
        notes.add(f"{spec.parts['policy']}.sample runs on `sglang`; OpenRLHF samples with vllm")
    sampling = groups.actor if groups.everything and not groups.ahead else groups.sampling
    engine_devices = sampled.tensor * sampled.pipeline
    trained: tuple[Part, ...] = ("policy", "critic")
    checkpointing = {spec.running(part, "train").checkpointing for part in trained if spec.has(part)}
    if len(checkpointing) > 1 or "selective" in checkpointing:
        notes.add("OpenRLHF checkpoints all activations of all trained models, or none")
    return {
        "groups": groups,
        "engines": max(1, sampling.devices // engine_devices),
        "engine_tensor": engine_devices,
        "share": spec.running("policy", "sample").cache_share,
        "lag": max(1, spec.lag),
        "layout": layout,
        "stage": STAGES[layout.sharding],
        **_offload(spec, groups, notes),
        "checkpointing": checkpointing != {"none"},
        "budget": _token_budget(spec, "policy", layout),
        "rollout_budget": _token_budget(spec, "reference" if spec.placed("reference", "infer") else "policy", layout),
        "train_rows": spec.minibatch * spec.algorithm.n,
        "kl": spec.algorithm.kl_loss or spec.algorithm.kl_reward,
        **_algorithm(spec, version, notes),
    }


def _groups(spec: ExportSpec, notes: ExportNotes) -> Groups:
    """Return the groups that keep the plan's pools, as far as there are flags for them."""
    pools: dict[Part, str] = {part: spec.pool(part, use) for part, use in USES.items() if spec.pool(part, use)}
    home, sampling = pools["policy"], spec.pool("policy", "sample")
    if sampling == home:
        return _all_on_one(spec, set(pools.values()), notes)
    ahead = spec.lag > 0
    shared = len(set(pools.values())) == 1 and len(pools) > 1 and "critic" in pools
    if shared and not ahead:
        notes.add(
            "OpenRLHF keeps all models but vLLM on one pool in its asynchronous mode only: "
            "responses are generated up to one batch ahead"
        )
    if not shared:
        _note_split_pools(spec, pools, notes)
    devices = {part: spec.devices(pools.get(part, home)) for part in USES}
    for pool in {*pools.values(), sampling}:
        note_uneven(spec.devices(pool), f"`{pool}`", notes)
    return Groups(
        everything=shared,
        actor_reference=not shared and pools.get("reference") == home,
        critic_reward=not shared and "critic" in pools and pools.get("reward") == pools["critic"],
        ahead=ahead or shared,
        actor=devices["policy"],
        reference=devices["reference"],
        critic=devices["critic"],
        reward=devices["reward"],
        sampling=spec.devices(sampling),
    )


def _all_on_one(spec: ExportSpec, pools: set[str], notes: ExportNotes) -> Groups:
    """Return one group of all models, which is the only way for vLLM to share devices."""
    devices = spec.devices(*pools)
    if len(pools) > 1:
        names = ", ".join(f"`{pool}`" for pool in sorted(pools))
        notes.add(
            "if vLLM shares the policy's devices, all models of OpenRLHF share them: "
            f"{devices.devices} devices, the pools {names} together"
        )
    if spec.lag:
        notes.add("OpenRLHF needs separate devices for vLLM to have a lag; here they are shared, so there is none")
    note_uneven(devices, "the pool of all models", notes)
    return Groups(True, False, False, False, devices, devices, devices, devices, devices)


def _note_split_pools(spec: ExportSpec, pools: Mapping[Part, str], notes: ExportNotes) -> None:
    """Note which models share a pool in the plan, and cannot in OpenRLHF."""
    pairs: tuple[tuple[Part, Part], ...] = (
        *(("policy", "critic"), ("policy", "reward")),
        *(("reference", "critic"), ("reference", "reward")),
    )
    for first, second in pairs:
        if first in pools and pools.get(second) == pools[first]:
            notes.add(
                f"the {first} and the {second} share a pool, which OpenRLHF has no flag for here: "
                f"the {second} takes {spec.devices(pools[second]).devices} more devices"
            )
    for part, pool in pools.items():
        if pool == spec.pool("policy", "sample"):
            notes.add(
                f"the {part} and vLLM share a pool, which OpenRLHF has no flag for without the policy: "
                f"the {part} takes {spec.devices(pool).devices} more devices"
            )


def _layout(spec: ExportSpec, notes: ExportNotes) -> Layout:
    """Return the layout of the policy, which all models of DeepSpeed have."""
    layout, engine = spec.layout("policy", "train"), spec.engine("policy", "train", "fsdp")
    if engine not in ("fsdp", "local"):
        notes.add(f"{spec.parts['policy']}.train runs on `{engine}`; OpenRLHF trains with DeepSpeed")
    if layout.pipeline > 1 or layout.expert > 1:
        notes.add(f"the policy has the layout {layout}; DeepSpeed has data, tensor and sequence ranks only")
    others: tuple[Part, ...] = ("critic", "reference")
    for part in others:
        other = spec.layout(part, USES[part])
        same = (other.tensor, other.sequence, other.sharding) == (layout.tensor, layout.sequence, layout.sharding)
        if spec.has(part) and not same:
            notes.add(f"the {part} has the layout {other}; OpenRLHF gives all its models the policy's: {layout}")
    return layout


def _token_budget(spec: ExportSpec, part: Part, layout: Layout) -> int:
    """Return the tokens of a micro-batch on one device; OpenRLHF multiplies them by the devices that share a row."""
    row_tokens = spec.budget_tokens(part, USES[part]) * spec.layout(part, USES[part]).sequence
    return -(-row_tokens // (layout.tensor * layout.sequence))


def _offload(spec: ExportSpec, groups: Groups, notes: ExportNotes) -> dict[str, bool]:
    """Return the flags for host memory; DeepSpeed's sleep moves all of a trained model there."""
    running = spec.running("policy", "train")
    one_pool = groups.everything and not groups.ahead
    leaves = running.sleeps or "parameters" in running.offload
    sleeps = one_pool and leaves
    if sleeps and not running.sleeps and "optimizer" not in running.offload:
        notes.add("the policy's weights leave the device between uses; with DeepSpeed's sleep its optimizer does too")
    if leaves and not one_pool:
        notes.add(
            "the policy's weights leave the device between uses; DeepSpeed sleeps only if all models share devices"
        )
    critic, reference = spec.running("critic", "train"), spec.running("reference", "infer")
    if spec.placed("critic", "train") and (critic.offload, critic.sleeps) != (running.offload, running.sleeps):
        notes.add("the critic's offload differs from the policy's; OpenRLHF has one flag for both")
    if reference.sleeps:
        notes.add("the reference leaves the device between uses; DeepSpeed loads its weights for each pass")
    return {
        "adam_offload": ("optimizer" in running.offload or running.sleeps) and not sleeps,
        "sleeps": sleeps,
        "vllm_sleeps": one_pool,
        "reference_offload": reference.sleeps or "parameters" in reference.offload,
        "reward_offload": "parameters" in spec.running("reward", "infer").offload,
    }


def _algorithm(spec: ExportSpec, version: str, notes: ExportNotes) -> dict[str, Any]:
    algorithm, surrogate = spec.algorithm, spec.algorithm.surrogate
    if surrogate.op not in ("clipped", "gspo_loss"):
        same = "; its gradient is the same for one step per batch" if surrogate.op == "policy_gradient" else ""
        notes.add(f"OpenRLHF does not have the loss `{surrogate.op}`, only ppo and gspo: ppo replaces it{same}")
    if surrogate.old == "sampler":
        notes.add(recomputes(spec, "OpenRLHF"))
    if algorithm.rejection is not None:
        notes.add("the flow leaves out tokens whose log-probs differ too much; OpenRLHF has no flag for that")
    # Source: trainer/ray/ppo_actor.py: `aggregate_loss` takes the aggregation of the surrogate only.
    note_aggregations(algorithm, "token-mean", "OpenRLHF aggregates all terms but the surrogate as one", notes)
    kl = algorithm.kl_loss or algorithm.kl_reward
    kl_type = kl_estimator(kl, "OpenRLHF", notes)
    if algorithm.refill is not None:
        notes.add(
            f"the flow generates for at most {algorithm.refill['rounds']} rounds; OpenRLHF until the batch is full"
        )
        notes.add("the flow keeps groups whose scores differ; OpenRLHF those whose mean score is between 0 and 1")
    if algorithm.critic is not None and algorithm.value_clip is None:
        notes.add("the critic's loss is not clipped; OpenRLHF's bound is out of reach")
    return {
        "estimator": _estimator(spec, notes),
        "loss": "gspo" if surrogate.op == "gspo_loss" else "ppo",
        "aggregation": _aggregation(spec, version, notes),
        "clips": surrogate.op in ("clipped", "gspo_loss"),
        "kl_estimator": kl_type,
        "value_clip": algorithm.value_clip or NO_CLIP,
        **_correction(spec, notes),
    }


def _estimator(spec: ExportSpec, notes: ExportNotes) -> str:
    algorithm = spec.algorithm
    if algorithm.estimator == "group_normalize":
        return "group_norm" if algorithm.advantages["deviation"] else "dr_grpo"
    if algorithm.estimator in ESTIMATORS:
        return ESTIMATORS[algorithm.estimator]
    if algorithm.estimator == "gpg_advantages":
        notes.add("GPG's advantages are centred scores times alpha; OpenRLHF has centred scores (dr_grpo), alpha 1")
        return "dr_grpo"
    notes.add("OpenRLHF does not have the flow's advantages: group_norm replaces them")
    return "group_norm"


def _aggregation(spec: ExportSpec, version: str, notes: ExportNotes) -> str:
    """Return the aggregation of the surrogate; 0.9.10 has only the mean over tokens."""
    aggregation = spec.algorithm.surrogate.aggregation
    if aggregation == "sequence-mean" and version != "0.9.10":
        return "seq-mean-token-mean"
    if aggregation != "token-mean":
        notes.add(f"terms are aggregated as {aggregation_text(aggregation)}; OpenRLHF {version} averages over tokens")
    return "token-mean"


def _correction(spec: ExportSpec, notes: ExportNotes) -> dict[str, Any]:
    """Return how importance weights are bounded: truncated, or left out beyond the bounds."""
    correction = spec.algorithm.correction
    if correction is None:
        return {"correction": ""}
    low, high = correction["low"] or 0.0, correction["high"] or 1e6
    if correction["normalized"]:
        notes.add("the flow normalises importance weights over the batch; OpenRLHF does not")
    if correction["level"] == "sequence":
        notes.add("importance weights are of whole responses; OpenRLHF leaves responses out by them, and weighs tokens")
        return {"correction": "sequence", "low": low, "high": correction["cap"] or high}
    if correction["cap"] is not None:
        return {"correction": "truncate", "low": 0.0, "high": correction["cap"]}
    return {"correction": "leave out", "low": low, "high": high}
