"""From a plan to verl: which of its modes, pools and names express the plan, and what they do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowgraph.analysis.roles import Use
from flowgraph.cluster.plan import Layout, RoleSettings
from nodes.interop.algorithm import KL, Surrogate
from nodes.interop.export_notes import ExportNotes, note_aggregations, note_uneven
from nodes.interop.export_spec import ExportDevices, ExportSpec, Part

TRAINER_PARTS: tuple[tuple[Part, Use], ...] = (("critic", "train"), ("reference", "infer"))  # on the policy's pool
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


@dataclass(frozen=True)
class VerlEngine:
    """A model that FSDP or Megatron trains or reads: its layout, its settings, its tokens of a micro-batch."""

    megatron: bool
    layout: Layout
    running: RoleSettings
    budget_tokens: int

    @property
    def checkpointing(self) -> str:
        """Return which activations are recomputed."""
        return self.running.checkpointing

    @property
    def offloads_weights(self) -> bool:
        """Return whether the weights leave the device between uses."""
        return self.running.sleeps or "parameters" in self.running.offload

    @property
    def offloads_optimizer(self) -> bool:
        """Return whether the optimizer's states leave the device between uses."""
        return self.running.sleeps or ("optimizer" in self.running.offload and not self.steps_on_host)

    @property
    def steps_on_host(self) -> bool:
        """Return whether Megatron's optimizer steps on the host, with all of its states there."""
        return self.megatron and self.running.offload == ("optimizer",)

    @property
    def all_on_host(self) -> bool:
        """Return whether weights, gradients and optimizer are in host memory and loaded for each pass."""
        return len(self.running.offload) == 3

    @property
    def fsdp_size(self) -> int:
        """Return the devices that weights are sharded over: -1 for all."""
        return 1 if self.layout.sharding == "none" and self.layout.data > 1 else -1

    @property
    def keeps_weights(self) -> bool:
        """Return whether the gathered weights stay on the device between the passes of a step."""
        return self.layout.sharding in ("optimizer", "gradients")


def verl_values(spec: ExportSpec, version: str, notes: ExportNotes) -> dict[str, Any]:
    """Return the values of a version's template, and note what verl does differently because it has no key."""
    separate = spec.pool("policy", "sample") not in ("", spec.pool("policy", "train"))
    trainer = _trainer_devices(spec, separate, notes)
    if spec.lag and not separate and version == "0.7.1":
        notes.add(
            "verl 0.7.1 needs separate devices for sampling to have a lag; here they are shared, so there is none"
        )
    syncs = -(-spec.batch // spec.minibatch)  # optimizer steps between two syncs of the weights: those of a batch
    if separate and spec.batch % spec.minibatch:
        notes.add(
            f"minibatches of {spec.minibatch} do not divide {spec.batch} prompts, as verl needs for separate pools: "
            f"the batch is {syncs * spec.minibatch}"
        )
    sampler = spec.engine("policy", "sample", "vllm")
    return {
        "separate": separate,
        "lag": spec.lag,
        "trainer": trainer,
        "sampling": spec.devices(spec.pool("policy", "sample")),
        "syncs": syncs,
        "actor": _engine(spec, "policy", version, notes),
        "critic": _engine(spec, "critic", version, notes) if spec.has("critic") else None,
        "reference": _engine(spec, "reference", version, notes) if spec.has("reference") else None,
        "fused": _uses_fused_kernels(spec, notes),
        "rollout": {
            "engine": sampler if sampler in ("vllm", "sglang") else "vllm",
            "layout": spec.layout("policy", "sample"),
            "running": spec.running("policy", "sample"),
        },
        "reward": _reward(spec, trainer, notes) if spec.has("reward") else None,
        **_algorithm(spec, version, notes),
    }


def _trainer_devices(spec: ExportSpec, separate: bool, notes: ExportNotes) -> ExportDevices:
    """Return the one pool of verl's trainer, and note which roles the plan has elsewhere."""
    home, sampling = spec.pool("policy", "train"), spec.pool("policy", "sample")
    pools = {home}
    for part, use in TRAINER_PARTS:
        placed = spec.placed(part, use)
        if placed is not None and placed.pool != home:
            pools |= {placed.pool} - ({sampling} if separate else set())
            notes.add(
                f"{placed.role} has the pool `{placed.pool}`; verl's trainer has policy, critic and reference on one: "
                f"they share {spec.devices(*pools).devices} devices"
            )
    devices = spec.devices(*pools)
    note_uneven(devices, "the trainer's pool", notes)
    if separate:
        note_uneven(spec.devices(sampling), f"`{sampling}`", notes)
    return devices


def _engine(spec: ExportSpec, part: Part, version: str, notes: ExportNotes) -> VerlEngine:
    use: Use = "infer" if part == "reference" else "train"
    name, running, layout = f"`{spec.parts[part]}`", spec.running(part, use), spec.layout(part, use)
    engine, policy_engine = spec.engine(part, use, "fsdp"), spec.engine("policy", "train", "fsdp")
    megatron = policy_engine == "megatron"
    if engine not in (policy_engine, "local"):
        backend = "Megatron" if megatron else "FSDP" if policy_engine in ("fsdp", "local") else policy_engine
        notes.add(f"{name} runs on `{engine}`; verl runs it on the policy's engine, {backend}")
    elif engine not in ("fsdp", "megatron"):
        notes.add(f"{name} runs on `{engine}`; verl runs it on FSDP")
    if megatron:
        layout = _megatron_layout(spec, part, version, notes)
    else:
        if layout.tensor > 1 or layout.pipeline > 1 or layout.expert > 1:
            fsdp_layout = _fsdp_layout(layout, fits=_has_room(spec, part, use))
            notes.add(f"{name} has the layout {layout}; verl's FSDP has data and sequence ranks only: {fsdp_layout}")
            layout = fsdp_layout
        if layout.sharding == "optimizer":
            notes.add(f"{name} shards its optimizer only; FSDP shards gradients too (reshard_after_forward=False)")
        if running.checkpointing == "selective":
            notes.add(f"{name} checkpoints some activations; verl's FSDP all or none: all")
        if part == "reference" and running.sleeps:
            notes.add(f"{name} leaves the device between uses; verl's FSDP loads its weights for each pass")
    row_tokens = spec.budget_tokens(part, use) * spec.layout(part, use).sequence
    return VerlEngine(megatron, layout, running, -(-row_tokens // layout.sequence))


def _megatron_layout(spec: ExportSpec, part: Part, version: str, notes: ExportNotes) -> Layout:
    """Return the layout of a model on verl's Megatron: the policy's degrees, and no sharding without training.

    Source: verl/workers/engine/megatron/transformer_impl.py: models of one process share one `parallel_state`, that of
    the first; one that is `forward_only` is not wrapped, whatever `use_megatron_fsdp` says.
    """
    layout = spec.layout(part, "infer" if part == "reference" else "train")
    name, policy = f"`{spec.parts[part]}`", spec.layout("policy", "train")
    if part != "policy" and _degrees(layout) != _degrees(policy):
        degrees = policy.model_copy(update={"sharding": layout.sharding})
        notes.add(
            f"{name} has the layout {layout}; verl's Megatron gives all models of the trainer the policy's: {degrees}"
        )
        layout = degrees
    if layout.sharding != "full" or layout.data == 1:
        return layout
    holds = f"each of {layout.data} data ranks holds all weights of its part"
    if part == "reference":
        notes.add(f"{name} is fully sharded; verl's Megatron does not shard the reference: {holds}")
        return layout.model_copy(update={"sharding": "none"})
    if version == "0.7.1":
        notes.add(f"{name} is fully sharded; verl {version}'s Megatron shards the optimizer only: {holds}")
    return layout


def _degrees(layout: Layout) -> tuple[int, ...]:
    return layout.tensor, layout.pipeline, layout.expert, layout.sequence


def _fsdp_layout(layout: Layout, *, fits: bool) -> Layout:
    """Return an FSDP layout of the same devices: more data ranks, or more sequence ranks if those do not fit.

    >>> _fsdp_layout(Layout(data=4, tensor=2), fits=True) == Layout(data=8, sharding="full")
    True
    >>> _fsdp_layout(Layout(data=4, tensor=2), fits=False) == Layout(data=4, sequence=2, sharding="full")
    True
    """
    degree = layout.tensor * layout.pipeline
    data, sequence = (degree, 1) if fits else (1, degree)
    return Layout(data=data * layout.data, sequence=sequence * layout.sequence, sharding="full")


def _has_room(spec: ExportSpec, part: Part, use: Use) -> bool:
    """Return whether a device has room for the activations that tensor ranks share in the plan.

    A plan without a forecast of bytes is assumed to have room.
    """
    placed, layout = spec.placed(part, use), spec.layout(part, use)
    if placed is None:
        return True
    shared = (layout.tensor * layout.pipeline - 1) * sum(placed.memory.get(kind, 0) for kind in ROW_MEMORY)
    peaks = [peak for pool in spec.plan.forecast if pool.pool == placed.pool for peak in pool.peaks]
    peak_bytes = max((peak.memory_bytes for peak in peaks if peak.role == placed.role), default=0)
    return peak_bytes + shared <= MAX_FILLED * min(spec.memory_bytes(placed.pool))


def _uses_fused_kernels(spec: ExportSpec, notes: ExportNotes) -> bool:
    """Return whether verl computes logits by kernels that never hold those of a micro-batch, as the plan does.

    Source: verl, docs/algo/otb.md: these kernels return no sums of squared probabilities.
    """
    if spec.algorithm.estimator == "optimal_token_baseline":
        notes.add("verl sums squared probabilities without fused kernels, of whole logits, which take more memory")
        return False
    placed = (spec.placed("policy", "train"), spec.placed("reference", "infer"))
    return any(role.running.logits == "chunked" for role in placed if role is not None)


def _reward(spec: ExportSpec, trainer: ExportDevices, notes: ExportNotes) -> dict[str, Any]:
    """Return the place of the reward model: a pool of its own, unless it shares the trainer's."""
    pool, name = spec.pool("reward", "infer"), spec.parts["reward"]
    on_trainer = pool in ("", spec.pool("policy", "train"), spec.pool("critic", "train"))
    with_sampling = pool == spec.pool("policy", "sample") and not on_trainer
    if with_sampling:
        notes.add(f"`{name}` shares the pool `{pool}` with sampling; verl puts it on the trainer's")
    has_pool = not (on_trainer or with_sampling)
    devices = spec.devices(pool) if has_pool else trainer
    note_uneven(devices, f"`{pool}`", notes)
    planned = spec.engine("reward", "infer", "vllm")
    engine = planned if planned in ("vllm", "sglang") else "vllm"
    if engine != planned:
        notes.add(f"{name}.infer runs on `{planned}`; verl serves reward models with {engine}")
    return {
        "has_pool": has_pool,
        "devices": devices,
        "engine": engine,
        "tensor": spec.layout("reward", "infer").tensor,
        "share": spec.running("reward", "infer").cache_share,
        "model": spec.model("reward").name,
    }


def _algorithm(spec: ExportSpec, version: str, notes: ExportNotes) -> dict[str, Any]:
    algorithm, critic = spec.algorithm, spec.algorithm.critic
    estimator = ESTIMATORS.get(algorithm.estimator, "grpo")
    if algorithm.estimator not in ESTIMATORS:
        notes.add("verl does not have the flow's advantages: register a function of yours; grpo replaces them")
    if estimator in WHITENED and not algorithm.whitened:
        notes.add(f"verl whitens the advantages of {estimator}, which the flow does not")
    if algorithm.whitened and estimator not in WHITENED:
        notes.add(f"the flow whitens its advantages; verl does not whiten those of {estimator}")
    if 0.0 in (algorithm.policy.max_grad_norm, critic.max_grad_norm if critic else None):
        notes.add(f"the flow does not clip gradients; verl's bound is out of reach, {NO_CLIP:g}")
    if algorithm.estimator == "gdpo" and not algorithm.advantages["deviation"]:
        notes.add("the flow normalises its rewards without their deviation; verl's gdpo divides by it")
    if algorithm.estimator == "optimal_token_baseline" and not algorithm.advantages["zero_tail"]:
        notes.add("verl's tir_optimal_token_baseline has a baseline of 0 where one response outlasts all others")
    mode = _loss_mode(spec, notes)
    threshold, correction = None, algorithm.correction
    if correction is not None:  # `low_high`: weights beyond are left out
        threshold = correction["cap"] or f"{correction['low'] or 1e-6:g}_{correction['high'] or 1e6:g}"
    return {
        "estimator": estimator,
        "loss_mode": mode,
        "aggregation": _aggregation(spec, notes),
        "value_aggregation": _aggregation_key(algorithm.value_aggregation),
        "clip_ratio_c": _clip_ratio_c(algorithm.surrogate),
        "components": list(algorithm.components) if estimator == "gdpo" else [],
        "weights": [score.weight for score in algorithm.scores],
        "bypass": _bypasses(spec, mode, version, notes),
        "kl_loss_type": _kl_type(algorithm.kl_loss),
        "kl_reward_type": _kl_type(algorithm.kl_reward),
        "rollout_is_threshold": threshold,
        "filters": _filters(spec, version, notes),
        "metric": "reward" if algorithm.overlong is None else "acc",
        "max_grad_norm": algorithm.policy.max_grad_norm or NO_CLIP,
        "critic_max_grad_norm": (critic.max_grad_norm if critic is not None else 0.0) or NO_CLIP,
        "no_value_clip": critic is not None and algorithm.value_clip is None,
    }


def _loss_mode(spec: ExportSpec, notes: ExportNotes) -> str:
    surrogate, kl = spec.algorithm.surrogate, spec.algorithm.kl_loss
    if kl is not None and kl.adaptive is not None:
        notes.add("the flow adapts the weight of the KL in the loss; verl keeps the initial weight")
    if surrogate.op == "dppo_loss":
        return f"dppo_{surrogate.settings['divergence']}"
    if surrogate.op == "clipped" and surrogate.settings.get("dual") is None:
        notes.add(f"the flow has no dual clip, verl always has: clip_ratio_c={NO_DUAL_CLIP:g} is out of reach")
    return LOSSES[surrogate.op]


def _aggregation(spec: ExportSpec, notes: ExportNotes) -> tuple[str, float | None]:
    """Return verl's aggregation and its constant length; verl uses it for the critic too unless another is set."""
    algorithm = spec.algorithm
    aggregation = algorithm.surrogate.aggregation
    if algorithm.surrogate.op == "gmpo_loss":  # verl uses the key for the other terms only
        notes.add("verl's geo_mean averages over the responses of each micro-batch, whatever the aggregation")
        aggregation = next(iter(algorithm.aggregations.values()), aggregation)
    note_aggregations(algorithm, aggregation, "verl aggregates all terms alike", notes)
    if algorithm.critic is not None and isinstance(algorithm.value_aggregation, float):
        notes.add("the flow divides the critic's terms by their own length; verl by the policy's")
    if isinstance(aggregation, float) and not aggregation.is_integer():
        notes.add(f"the flow divides terms by a length of {aggregation:g}; verl by a whole number: {int(aggregation)}")
    return _aggregation_key(aggregation)


def _aggregation_key(aggregation: str | float) -> tuple[str, float | None]:
    if isinstance(aggregation, str):
        return AGGREGATIONS[aggregation], None
    return "seq-mean-token-sum-norm", aggregation


def _clip_ratio_c(surrogate: Surrogate) -> float | None:
    """Return verl's `clip_ratio_c`, by default 3: the bound of the dual clip, or of DPPO's ratio."""
    if surrogate.op == "dppo_loss":
        return float(surrogate.settings["most"])
    return float(surrogate.settings.get("dual") or NO_DUAL_CLIP) if surrogate.op == "clipped" else None


def _bypasses(spec: ExportSpec, mode: str, version: str, notes: ExportNotes) -> bool:
    """Return whether verl clips around the sampler's log-probs without recomputing them, as the flow does."""
    if spec.algorithm.surrogate.old != "sampler":
        return False
    if version == "0.7.1" and mode != "vanilla":
        extra = "" if spec.recomputes_logprobs else ": one more forward pass"
        notes.add(
            f"the flow clips around the sampler's log-probs; verl {version} does so for the loss `vanilla` only, and "
            f"recomputes them for `{mode}`{extra}"
        )
        return False
    if spec.algorithm.correction is not None or spec.algorithm.rejection is not None:
        notes.add(
            f"the flow clips around the sampler's log-probs and corrects for them too; verl {version} corrects only "
            "if it recomputes them, as it does here"
        )
        return False
    if spec.recomputes_logprobs:
        notes.add(
            "verl clips around the sampler's log-probs without recomputing them: the forecast has one forward pass "
            "more, which measures the mismatch between the two engines"
        )
    return True


def _kl_type(kl: KL | None) -> str:
    if kl is None:
        return ""
    return (STRAIGHT_THROUGH if kl.straight_through else KL_TYPES)[kl.estimator]


def _filters(spec: ExportSpec, version: str, notes: ExportNotes) -> bool:
    """Return whether verl replaces groups without signal."""
    refill = spec.algorithm.refill
    if refill is None:
        return False
    if version == "0.7.1":
        notes.add(f"verl {version} filters groups in its recipe `dapo` only, not in main_ppo: it trains on all groups")
        return False
    notes.add(f"the flow generates for at most {refill['rounds']} rounds; verl {version} until the batch is full")
    if spec.algorithm.overlong is not None:
        notes.add(
            "the flow keeps groups by scores before the overlong penalty: the metric `acc`, which the reward function "
            "has to return in a dict; `reward` would include the penalty"
        )
    return True
