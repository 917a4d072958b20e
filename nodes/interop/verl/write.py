"""From a plan to verl: which of its modes, pools and names express the plan, and what they do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from flowgraph.cluster.plan import Layout
from nodes.interop.algorithm import KL
from nodes.interop.export_notes import note_aggregations, note_uneven, trainer_pools
from nodes.interop.export_spec import ExportDevices, ExportSpec, RoleName

SAMPLERS = ("vllm", "sglang")
DEGREES = ("tensor", "pipeline", "expert", "sequence")
ROW_MEMORY = ("activations", "logits")  # what a device holds for the rows of a micro-batch
MAX_FILLED = 0.9  # the share of a device that a plan may fill
NO_CLIP = 1e9  # verl clips every gradient; a norm of 0 would clip to nothing
NO_DUAL_CLIP = 1e6  # verl has no switch for the dual clip; no ratio exceeds e^20

# Source: verl 0.9.1, `AdvantageEstimator` and `register_policy_loss` in verl/trainer/ppo/core_algos.py.
ESTIMATORS: Mapping[str, str] = {
    "gae": "gae",
    "group_normalize": "grpo",
    "centred_whitened": "reinforce_plus_plus_baseline",
    "discounted_returns": "reinforce_plus_plus",
    "gpg_advantages": "gpg",
    "rloo_advantages": "rloo",
    "opo_advantages": "opo",
    "pass_at_k_advantages": "grpo_passk",
    "greedy_baseline": "remax",
    "optimal_token_baseline": "tir_optimal_token_baseline",
    "gdpo": "gdpo",
}
LOSSES: Mapping[str, str] = {
    "clipped": "vanilla",
    "policy_gradient": "gpg",
    "cispo_loss": "cispo",
    "gspo_loss": "gspo",
    "gmpo_loss": "geo_mean",
    "sapo_loss": "sapo",
    "clip_cov_loss": "clip_cov",
    "kl_cov_loss": "kl_cov",
}
WHITENED = {"gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo"}  # estimators that verl whitens
KL_TYPES = {"k1": "kl", "k2": "mse", "k3": "low_var_kl", "abs": "abs"}
STRAIGHT_THROUGH = {"k1": "k1+", "k2": "k2", "k3": "k3+", "abs": "abs+"}
AGGREGATIONS = {
    "token-mean": "token-mean",
    "sequence-mean": "seq-mean-token-mean",
    "sequence-sum": "seq-mean-token-sum",
}


def verl_values(spec: ExportSpec) -> dict[str, Any]:
    """Return the values for the template of the spec's verl version, by their names in the template.

    Adds notes to `spec` on what verl does differently from the plan.
    """
    sampler = spec.role("sampler")
    separate = sampler.pool not in ("", spec.role("policy").pool)
    trainer, sampling = spec.devices(*trainer_pools(spec, "verl's trainer")), spec.devices(sampler.pool)
    note_uneven(spec, trainer, "the trainer's pool")
    if separate:
        note_uneven(spec, sampling, f"`{sampler.pool}`")
    if spec.lag and not separate and spec.version == "0.7.1":
        spec.note(
            "verl 0.7.1 needs separate devices for sampling to have a lag; here they are shared, so there is none"
        )
    syncs = -(-spec.batch // spec.minibatch)  # optimizer steps between two syncs of the weights: those of a batch
    if separate and spec.batch % spec.minibatch:
        spec.note(
            f"minibatches of {spec.minibatch} do not divide {spec.batch} prompts, as verl needs for separate pools: "
            f"the batch is {syncs * spec.minibatch}"
        )
    actor = _engine(spec, "policy")
    critic = _engine(spec, "critic") if "critic" in spec.parts else None
    reference = _engine(spec, "reference") if "reference" in spec.parts else None
    # Fused kernels never hold the logits of a micro-batch. Source: verl, docs/algo/otb.md: they return no sums of
    # squared probabilities.
    read: tuple[RoleName, ...] = ("policy", "reference")
    fused = any(spec.role(name).running.logits == "chunked" for name in read if spec.is_placed(name))
    if spec.algorithm.estimator == "optimal_token_baseline":
        spec.note("verl sums squared probabilities without fused kernels, of whole logits, which take more memory")
        fused = False
    return {
        "separate": separate,
        "lag": spec.lag,
        "trainer": trainer,
        "sampling": sampling,
        "syncs": syncs,
        "actor": actor,
        "critic": critic,
        "reference": reference,
        "fused": fused,
        "rollout": sampler,
        "rollout_engine": sampler.engine if sampler.engine in SAMPLERS else "vllm",
        "reward": _reward(spec, trainer) if "reward" in spec.parts else None,
        **_algorithm(spec),
    }


def _engine(spec: ExportSpec, name: Literal["policy", "critic", "reference"]) -> dict[str, Any]:
    role, param = spec.role(name), f"`{spec.parts[name]}`"
    layout, running = role.layout, role.running
    engine, policy_engine = role.engine or "fsdp", spec.role("policy").engine or "fsdp"
    megatron = policy_engine == "megatron"
    if engine not in (policy_engine, "local"):
        backend = "Megatron" if megatron else "FSDP" if policy_engine in ("fsdp", "local") else policy_engine
        spec.note(f"{param} runs on `{engine}`; verl runs it on the policy's engine, {backend}")
    elif engine not in ("fsdp", "megatron"):
        spec.note(f"{param} runs on `{engine}`; verl runs it on FSDP")
    layout = _megatron_layout(spec, name, param) if megatron else _fsdp_layout(spec, name, param)
    steps_on_host = megatron and running.offload == ("optimizer",)
    return {
        "megatron": megatron,
        "layout": layout,
        "budget_tokens": -(-spec.row_tokens(name) // layout.sequence),
        "checkpointing": running.checkpointing,
        "offloads_weights": running.sleeps or "parameters" in running.offload,
        "offloads_optimizer": running.sleeps or ("optimizer" in running.offload and not steps_on_host),
        "steps_on_host": steps_on_host,
        "all_on_host": len(running.offload) == 3,
        "fsdp_size": 1 if layout.sharding == "none" and layout.data > 1 else -1,
        "keeps_weights": layout.sharding in ("optimizer", "gradients"),
    }


def _megatron_layout(spec: ExportSpec, name: RoleName, param: str) -> Layout:
    """Return the layout of a model on verl's Megatron: the policy's degrees, and no sharding without training.

    Source: verl/workers/engine/megatron/transformer_impl.py: models of one process share one `parallel_state`, that of
    the first; one that is `forward_only` is not wrapped, whatever `use_megatron_fsdp` says.
    """
    planned = spec.role(name).layout
    layout = spec.role("policy").layout.model_copy(update={"sharding": planned.sharding})
    if any(getattr(planned, degree) != getattr(layout, degree) for degree in DEGREES):
        spec.note(
            f"{param} has the layout {planned}; verl's Megatron gives all models of the trainer the policy's: {layout}"
        )
    else:
        layout = planned
    if layout.sharding != "full" or layout.data == 1:
        return layout
    holds = f"each of {layout.data} data ranks holds all weights of its part"
    if name == "reference":
        spec.note(f"{param} is fully sharded; verl's Megatron does not shard the reference: {holds}")
        return layout.model_copy(update={"sharding": "none"})
    if spec.version == "0.7.1":
        spec.note(f"{param} is fully sharded; verl {spec.version}'s Megatron shards the optimizer only: {holds}")
    return layout


def _fsdp_layout(spec: ExportSpec, name: RoleName, param: str) -> Layout:
    """Return the layout of a model on verl's FSDP, which has data and sequence ranks only.

    Tensor and pipeline ranks become data ranks, or sequence ranks if the rows of more data ranks do not fit.
    """
    role = spec.role(name)
    layout, running = role.layout, role.running
    if layout.tensor > 1 or layout.pipeline > 1 or layout.expert > 1:
        ranks = layout.tensor * layout.pipeline
        data, sequence = (ranks, 1) if _has_room(spec, name) else (1, ranks)
        layout = Layout(data=data * layout.data, sequence=sequence * layout.sequence, sharding="full")
        spec.note(f"{param} has the layout {role.layout}; verl's FSDP has data and sequence ranks only: {layout}")
    if layout.sharding == "optimizer":
        spec.note(f"{param} shards its optimizer only; FSDP shards gradients too (reshard_after_forward=False)")
    if running.checkpointing == "selective":
        spec.note(f"{param} checkpoints some activations; verl's FSDP all or none: all")
    if name == "reference" and running.sleeps:
        spec.note(f"{param} leaves the device between uses; verl's FSDP loads its weights for each pass")
    return layout


def _has_room(spec: ExportSpec, name: RoleName) -> bool:
    """Return whether a device has room for the activations that tensor ranks share; True if no bytes are forecast."""
    role, layout = spec.role(name), spec.role(name).layout
    if not spec.is_placed(name):
        return True
    shared = (layout.tensor * layout.pipeline - 1) * sum(role.memory.get(kind, 0) for kind in ROW_MEMORY)
    peaks = [peak for pool in spec.plan.forecast if pool.pool == role.pool for peak in pool.peaks]
    peak_bytes = max((peak.memory_bytes for peak in peaks if peak.role == role.role), default=0)
    places = next(pool.devices for pool in spec.plan.pools if pool.name == role.pool)
    devices = [spec.plan.cluster.device(node, index) for node, index in places]
    return peak_bytes + shared <= MAX_FILLED * min(device.memory_bytes for device in devices if device is not None)


def _reward(spec: ExportSpec, trainer: ExportDevices) -> dict[str, Any]:
    role, name = spec.role("reward"), spec.parts["reward"]
    on_trainer = role.pool in ("", spec.role("policy").pool, spec.role("critic").pool)
    with_sampling = role.pool == spec.role("sampler").pool and not on_trainer
    if with_sampling:
        spec.note(f"`{name}` shares the pool `{role.pool}` with sampling; verl puts it on the trainer's")
    has_pool = not (on_trainer or with_sampling)
    devices = spec.devices(role.pool) if has_pool else trainer
    note_uneven(spec, devices, f"`{role.pool}`")
    if role.engine not in ("", *SAMPLERS):
        spec.note(f"{name}.infer runs on `{role.engine}`; verl serves reward models with vllm")
    return {
        "role": role,
        "has_pool": has_pool,
        "devices": devices,
        "engine": role.engine if role.engine in SAMPLERS else "vllm",
    }


def _algorithm(spec: ExportSpec) -> dict[str, Any]:
    algorithm, critic = spec.algorithm, spec.algorithm.critic
    estimator = ESTIMATORS.get(algorithm.estimator, "grpo")
    if algorithm.estimator not in ESTIMATORS:
        spec.note("verl does not have the flow's advantages: register a function of yours; grpo replaces them")
    if estimator in WHITENED and not algorithm.whitened:
        spec.note(f"verl whitens the advantages of {estimator}, which the flow does not")
    if algorithm.whitened and estimator not in WHITENED:
        spec.note(f"the flow whitens its advantages; verl does not whiten those of {estimator}")
    if 0.0 in (algorithm.policy.max_grad_norm, critic.max_grad_norm if critic else None):
        spec.note(f"the flow does not clip gradients; verl's bound is out of reach, {NO_CLIP:g}")
    if algorithm.estimator == "gdpo" and not algorithm.advantages["deviation"]:
        spec.note("the flow normalises its rewards without their deviation; verl's gdpo divides by it")
    if algorithm.estimator == "optimal_token_baseline" and not algorithm.advantages["zero_tail"]:
        spec.note("verl's tir_optimal_token_baseline has a baseline of 0 where one response outlasts all others")
    loss = _loss(spec)
    threshold, correction = None, algorithm.correction
    if correction is not None:  # `low_high`: weights beyond are left out
        threshold = correction["cap"] or f"{correction['low'] or 1e-6:g}_{correction['high'] or 1e6:g}"
    return {
        "estimator": estimator,
        **loss,
        "value_aggregation": _aggregation_key(algorithm.value_aggregation),
        "components": list(algorithm.components) if estimator == "gdpo" else [],
        "weights": [score.weight for score in algorithm.scores],
        "bypass": _bypasses(spec, loss["loss_mode"]),
        "kl_loss_type": _kl_type(algorithm.kl_loss),
        "kl_reward_type": _kl_type(algorithm.kl_reward),
        "rollout_is_threshold": threshold,
        "filters": _filters(spec),
        "metric": "reward" if algorithm.overlong is None else "acc",
        "max_grad_norm": algorithm.policy.max_grad_norm or NO_CLIP,
        "critic_max_grad_norm": (critic.max_grad_norm if critic is not None else 0.0) or NO_CLIP,
        "no_value_clip": critic is not None and algorithm.value_clip is None,
    }


def _loss(spec: ExportSpec) -> dict[str, Any]:
    """Return the loss, its `clip_ratio_c`, by default 3, and its aggregation with a constant length.

    `clip_ratio_c` is the bound of the dual clip, or of DPPO's ratio. The critic has the same aggregation unless another
    is set.
    """
    algorithm, surrogate, bound = spec.algorithm, spec.algorithm.surrogate, None
    if algorithm.kl_loss is not None and algorithm.kl_loss.adaptive is not None:
        spec.note("the flow adapts the weight of the KL in the loss; verl keeps the initial weight")
    if surrogate.op == "dppo_loss":
        bound = float(surrogate.settings["most"])
    elif surrogate.op == "clipped":
        bound = float(surrogate.settings["dual"] or NO_DUAL_CLIP)
        if surrogate.settings["dual"] is None:
            spec.note(f"the flow has no dual clip, verl always has: clip_ratio_c={NO_DUAL_CLIP:g} is out of reach")
    aggregation = surrogate.aggregation
    if surrogate.op == "gmpo_loss":  # verl uses the key for the other terms only
        spec.note("verl's geo_mean averages over the responses of each micro-batch, whatever the aggregation")
        aggregation = next(iter(algorithm.aggregations.values()), aggregation)
    note_aggregations(spec, aggregation, "verl aggregates all terms alike")
    if algorithm.critic is not None and isinstance(algorithm.value_aggregation, float):
        spec.note("the flow divides the critic's terms by their own length; verl by the policy's")
    if isinstance(aggregation, float) and not aggregation.is_integer():
        spec.note(f"the flow divides terms by a length of {aggregation:g}; verl by a whole number: {int(aggregation)}")
    is_dppo = surrogate.op == "dppo_loss"
    return {
        "loss_mode": f"dppo_{surrogate.settings['divergence']}" if is_dppo else LOSSES[surrogate.op],
        "clip_ratio_c": bound,
        "aggregation": _aggregation_key(aggregation),
    }


def _aggregation_key(aggregation: str | float) -> tuple[str, float | None]:
    if isinstance(aggregation, str):
        return AGGREGATIONS[aggregation], None
    return "seq-mean-token-sum-norm", aggregation


def _bypasses(spec: ExportSpec, mode: str) -> bool:
    """Return whether verl clips around the sampler's log-probs without recomputing them, as the flow does."""
    if spec.algorithm.surrogate.old != "sampler":
        return False
    clips = "the flow clips around the sampler's log-probs"
    if spec.version == "0.7.1" and mode != "vanilla":
        extra = "" if spec.recomputes_logprobs else ": one more forward pass"
        spec.note(
            f"{clips}; verl {spec.version} does so for the loss `vanilla` only, and recomputes them for `{mode}`{extra}"
        )
        return False
    if spec.algorithm.correction is not None or spec.algorithm.rejection is not None:
        corrects = f"verl {spec.version} corrects only if it recomputes them, as it does here"
        spec.note(f"{clips} and corrects for them too; {corrects}")
        return False
    if spec.recomputes_logprobs:
        spec.note(
            "verl clips around the sampler's log-probs without recomputing them: the forecast has one forward pass "
            "more, which measures the mismatch between the two engines"
        )
    return True


def _kl_type(kl: KL | None) -> str:
    return "" if kl is None else (STRAIGHT_THROUGH if kl.straight_through else KL_TYPES)[kl.estimator]


def _filters(spec: ExportSpec) -> bool:
    refill, system = spec.algorithm.refill, f"verl {spec.version}"
    if refill is None:
        return False
    if spec.version == "0.7.1":
        spec.note(f"{system} filters groups in its recipe `dapo` only, not in main_ppo: it trains on all groups")
        return False
    spec.note(f"the flow generates for at most {refill['rounds']} rounds; {system} until the batch is full")
    if spec.algorithm.overlong is not None:
        spec.note(
            "the flow keeps groups by scores before the overlong penalty: the metric `acc`, which the reward function "
            "has to return in a dict; `reward` would include the penalty"
        )
    return True
