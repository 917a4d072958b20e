"""From a plan to OpenRLHF: which of its groups of models share devices, and what its flags do not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowgraph.cluster.plan import Layout
from nodes.interop.algorithm import aggregated
from nodes.interop.export_notes import ExportNotes, say_of_terms, say_uneven
from nodes.interop.export_spec import ExportDevices, ExportSpec, Part

# Source: OpenRLHF 0.11.2, the choices of `--algo.advantage.estimator` and trainer/ppo_utils/experience_maker.py.
ESTIMATORS: Mapping[str, str] = {
    "gae": "gae",
    "centred_whitened": "reinforce_baseline",
    "discounted_returns": "reinforce",
    "rloo_advantages": "rloo",
}
STAGES = {"none": 0, "optimizer": 1, "gradients": 2, "full": 3}
USES: Mapping[Part, Any] = {"policy": "train", "critic": "train", "reference": "infer", "reward": "infer"}


@dataclass(frozen=True)
class Groups:
    """Who shares devices with whom, and whose devices each model has."""

    everything: bool  # DeepSpeed's models on one pool; vLLM too, unless it runs ahead
    actor_reference: bool
    critic_reward: bool
    ahead: bool
    actor: ExportDevices
    reference: ExportDevices
    critic: ExportDevices
    reward: ExportDevices
    sampling: ExportDevices


def openrlhf_values(job: ExportSpec, version: str, notes: ExportNotes) -> dict[str, Any]:
    """Give what the template of a version is filled with, and say what OpenRLHF does instead where it has no flag."""
    groups = _groups(job, notes)
    layout = _layout(job, notes)
    sampled, drawn = job.layout("policy", "sample"), job.placed("policy", "sample")
    if drawn is not None and drawn.engine == "sglang":
        notes.say(f"{drawn.role} runs on `sglang`; OpenRLHF samples with vllm")
    sampling = groups.actor if groups.everything and not groups.ahead else groups.sampling
    return {
        "groups": groups,
        "engines": max(1, sampling.devices // (sampled.tensor * sampled.pipeline)),
        "engine_tensor": sampled.tensor * sampled.pipeline,
        "share": job.running("policy", "sample").cache_share,
        "lag": max(1, _lag(job)),
        "layout": layout,
        "stage": STAGES[layout.sharding],
        **_offload(job, groups, notes),
        "checkpointing": _checkpointing(job, notes),
        "budget": _budget(job, "policy", layout),
        "rollout_budget": _budget(job, "reference" if job.placed("reference", "infer") else "policy", layout),
        "train_rows": job.minibatch * job.algorithm.n,
        "kl": job.algorithm.kl_loss or job.algorithm.kl_reward,
        **_algorithm(job, version, notes),
    }


def _lag(job: ExportSpec) -> int:
    placed = job.placed("policy", "sample")
    return placed.lag if placed is not None else 0


def _groups(job: ExportSpec, notes: ExportNotes) -> Groups:
    """Choose the groups that keep the plan's pools, as far as there is a flag for them."""
    pools: dict[str, str] = {
        part: pool for part, use in USES.items() if (pool := job.pool(part, use)) and job.has(part)
    }
    sampling = job.pool("policy", "sample")
    home, deepspeed = pools["policy"], set(pools.values())
    if sampling == home:
        return _all_on_one(job, deepspeed, notes)
    ahead = _lag(job) > 0
    shared = len(deepspeed) == 1 and len(pools) > 1 and "critic" in pools
    if shared and not ahead:
        notes.say(
            "OpenRLHF keeps all models but vLLM on one pool in its asynchronous mode only: "
            "responses are drawn up to one batch ahead"
        )
    if not shared:
        _say_parted(job, pools, notes)
    sites = {part: job.site(pools.get(part, home)) for part in USES}
    for pool in {*pools.values(), sampling}:
        say_uneven(job.site(pool), f"`{pool}`", notes)
    return Groups(
        everything=shared,
        actor_reference=not shared and pools.get("reference") == home,
        critic_reward=not shared and "critic" in pools and pools.get("reward") == pools["critic"],
        ahead=ahead or shared,
        actor=sites["policy"],
        reference=sites["reference"],
        critic=sites["critic"],
        reward=sites["reward"],
        sampling=job.site(sampling),
    )


def _all_on_one(job: ExportSpec, pools: set[str], notes: ExportNotes) -> Groups:
    """Put all models on one pool, which is the only way that vLLM shares devices."""
    site = job.site(*pools)
    if len(pools) > 1:
        notes.say(
            f"where vLLM shares the policy's devices, OpenRLHF has all models share them: {site.devices} devices, "
            f"the pools {', '.join(f'`{pool}`' for pool in sorted(pools))} together"
        )
    if _lag(job):
        notes.say("a lag needs vLLM on devices of its own in OpenRLHF; here it shares them, so there is none")
    say_uneven(site, "the pool of all models", notes)
    return Groups(True, False, False, False, site, site, site, site, site)


def _say_parted(job: ExportSpec, pools: Mapping[str, str], notes: ExportNotes) -> None:
    """Say which models share a pool that no flag lets them share."""
    pairs = (("policy", "critic"), ("policy", "reward"), ("reference", "critic"), ("reference", "reward"))
    for one, other in pairs:
        if one in pools and pools.get(other) == pools[one]:
            notes.say(
                f"the {one} and the {other} share a pool, which OpenRLHF has no flag for here: "
                f"the {other} takes {job.site(pools[other]).devices} devices more"
            )
    for part, pool in pools.items():
        if pool == job.pool("policy", "sample"):
            notes.say(
                f"the {part} and vLLM share a pool, which OpenRLHF has no flag for without the policy: "
                f"the {part} takes {job.site(pool).devices} devices more"
            )


def _layout(job: ExportSpec, notes: ExportNotes) -> Layout:
    """Give the layout of the policy, which is that of all models that DeepSpeed runs."""
    layout = job.layout("policy", "train")
    placed = job.placed("policy", "train")
    if placed is not None and placed.engine not in ("fsdp", "local"):
        notes.say(f"{placed.role} runs on `{placed.engine}`; OpenRLHF trains with DeepSpeed")
    if layout.pipeline > 1 or layout.expert > 1:
        notes.say(f"the policy is cut as {layout}; DeepSpeed cuts by data, tensor and sequence only")
    for part in ("critic", "reference"):
        other = job.layout(part, USES[part])
        same = (other.tensor, other.sequence, other.sharding) == (layout.tensor, layout.sequence, layout.sharding)
        if job.has(part) and not same:
            notes.say(f"the {part} is cut as {other}; OpenRLHF cuts all its models as the policy: {layout}")
    return layout


def _budget(job: ExportSpec, part: Part, layout: Layout) -> int:
    """Give the tokens that go through at once, for each of the devices that share a row: OpenRLHF multiplies."""
    whole = job.budget_tokens(part, USES[part]) * job.layout(part, USES[part]).sequence
    return -(-whole // (layout.tensor * layout.sequence))


def _offload(job: ExportSpec, groups: Groups, notes: ExportNotes) -> dict[str, bool]:
    """Give the flags for what lies in host memory; DeepSpeed's sleep takes all of a model that is trained."""
    running, told = job.running("policy", "train"), job.running("policy", "train").offload
    one_pool = groups.everything and not groups.ahead
    leaves = running.sleeps or "parameters" in told
    sleeps = one_pool and leaves
    if sleeps and not running.sleeps and "optimizer" not in told:
        notes.say("the policy's weights leave the device between uses; DeepSpeed's sleep takes its optimizer too")
    if leaves and not one_pool:
        notes.say(
            "the policy's weights leave the device between uses; DeepSpeed sleeps only where all models share one"
        )
    critic, reference = job.running("critic", "train"), job.running("reference", "infer")
    if job.placed("critic", "train") and (critic.offload, critic.sleeps) != (told, running.sleeps):
        notes.say("the critic offloads otherwise than the policy; OpenRLHF's flags are for both")
    if reference.sleeps:
        notes.say("the reference leaves the device between uses; DeepSpeed brings its weights for each pass")
    return {
        "adam_offload": ("optimizer" in told or running.sleeps) and not sleeps,
        "sleeps": sleeps,
        "vllm_sleeps": one_pool,
        "reference_offload": reference.sleeps or "parameters" in reference.offload,
        "reward_offload": "parameters" in job.running("reward", "infer").offload,
    }


def _checkpointing(job: ExportSpec, notes: ExportNotes) -> bool:
    told = {job.running(part, "train").checkpointing for part in ("policy", "critic") if job.has(part)}
    if len(told) > 1 or "selective" in told:
        notes.say("OpenRLHF checkpoints all activations of all models that are trained, or none")
    return told != {"none"}


def _algorithm(job: ExportSpec, version: str, notes: ExportNotes) -> dict[str, Any]:
    algorithm, surrogate = job.algorithm, job.algorithm.surrogate
    if surrogate.op not in ("clipped", "gspo_loss"):
        what = "; at one step a batch its gradient is the same" if surrogate.op == "policy_gradient" else ""
        notes.say(f"`{surrogate.op}` is none of OpenRLHF's losses, which are ppo and gspo: ppo{what}")
    if surrogate.old == "sampler":
        more = "" if job.measures else ": one more forward pass"
        notes.say(f"the flow clips around the sampler's log-probs; OpenRLHF computes them anew{more}")
    if algorithm.rejection is not None:
        notes.say("tokens that were drawn too differently are left out by the flow; OpenRLHF is not told to")
    # Source: trainer/ray/ppo_actor.py: `aggregate_loss` is told how for the surrogate alone.
    say_of_terms(algorithm, "token-mean", "OpenRLHF aggregates all terms but the surrogate as one", notes)
    kl = algorithm.kl_loss or algorithm.kl_reward
    if kl is not None and (kl.estimator == "abs" or kl.straight_through):
        notes.say(f"OpenRLHF's estimates of the KL are k1, k2 and k3, as they are: k2 for {kl.estimator}")
    if algorithm.refill is not None:
        notes.say(f"the flow draws for at most {algorithm.refill['rounds']} rounds; OpenRLHF until the batch is full")
        notes.say("the flow keeps groups whose scores differ; OpenRLHF those whose mean score is between 0 and 1")
    if algorithm.critic is not None and algorithm.value_clip is None:
        notes.say("the critic's loss is not clipped; OpenRLHF is given a bound that is out of reach")
    return {
        "estimator": _estimator(job, notes),
        "loss": "gspo" if surrogate.op == "gspo_loss" else "ppo",
        "aggregation": _aggregation(job, version, notes),
        "clips": surrogate.op == "clipped" or surrogate.op == "gspo_loss",
        "kl_estimator": "" if kl is None else "k2" if kl.estimator == "abs" or kl.straight_through else kl.estimator,
        "value_clip": algorithm.value_clip or 1e6,
        **_correction(job, notes),
    }


def _estimator(job: ExportSpec, notes: ExportNotes) -> str:
    algorithm = job.algorithm
    if algorithm.estimator == "group_normalize":
        return "group_norm" if algorithm.advantages["deviation"] else "dr_grpo"
    if algorithm.estimator in ESTIMATORS:
        return ESTIMATORS[algorithm.estimator]
    if algorithm.estimator == "gpg_advantages":
        notes.say("GPG's advantages are centred scores times alpha; OpenRLHF has centred scores (dr_grpo), alpha 1")
        return "dr_grpo"
    notes.say("the flow's advantages are none of OpenRLHF's estimators: group_norm stands in their place")
    return "group_norm"


def _aggregation(job: ExportSpec, version: str, notes: ExportNotes) -> str:
    """Give the aggregation of terms, "" where the version has no flag for it and the mean over tokens."""
    told = job.algorithm.surrogate.aggregation
    if told == "sequence-mean" and version != "0.9.10":
        return "seq-mean-token-mean"
    if told != "token-mean":
        notes.say(f"terms are aggregated as {aggregated(told)}; OpenRLHF {version} takes the mean over tokens")
    return "token-mean"


def _correction(job: ExportSpec, notes: ExportNotes) -> dict[str, Any]:
    """Give how importance weights are bounded: cut, or left out beyond the bounds."""
    told = job.algorithm.correction
    if told is None:
        return {"corrects": ""}
    if told["normalized"]:
        notes.say("importance weights are normalised over the batch; OpenRLHF does not")
    if told["level"] == "sequence":
        notes.say("importance weights are of whole responses; OpenRLHF leaves responses out by them, and weighs tokens")
        return {"corrects": "sequence", "least": told["low"] or 0.0, "most": told["cap"] or told["high"] or 1e6}
    if told["cap"] is not None:
        return {"corrects": "cut", "least": 0.0, "most": told["cap"]}
    return {"corrects": "left out", "least": told["low"] or 0.0, "most": told["high"] or 1e6}
