"""From a plan to verl: which of its modes, pools and names say what the plan says, and what they do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowgraph.analysis.roles import Use
from flowgraph.cluster.plan import Layout, RoleSettings
from nodes.interop.algorithm import KL, Surrogate
from nodes.interop.export_notes import ExportNotes, say_of_terms, say_uneven
from nodes.interop.export_spec import ExportDevices, ExportSpec, Part

MAIN: tuple[Part, ...] = ("critic", "reference")  # beside the policy, on verl's one pool
OF_ROWS = ("activations", "logits")  # what a device holds of the rows that go through it
FILLED = 0.9  # of a device, the most that a plan fills
NO_CLIP = 1e9  # verl clips every gradient: at a norm of 0 to nothing
NO_DUAL_CLIP = 1e6  # verl has no switch for the dual clip; a ratio beyond e^20 is never seen

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
WHITENED = {"gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo"}  # that verl whitens, always
KL_TYPES = {"k1": "kl", "k2": "mse", "k3": "low_var_kl", "abs": "abs"}
STRAIGHT_THROUGH = {"k1": "k1+", "k2": "k2", "k3": "k3+", "abs": "abs+"}
AGGREGATIONS = {
    "token-mean": "token-mean",
    "sequence-mean": "seq-mean-token-mean",
    "sequence-sum": "seq-mean-token-sum",
}


@dataclass(frozen=True)
class VerlEngine:
    """How a model that is trained, or read for log-probs, is told to FSDP or Megatron."""

    megatron: bool
    layout: Layout
    running: RoleSettings
    budget_tokens: int

    @property
    def checkpointing(self) -> str:
        """Give which activations are computed again."""
        return self.running.checkpointing

    @property
    def parks_weights(self) -> bool:
        """Say whether the weights leave the device between uses."""
        return self.running.sleeps or "parameters" in self.running.offload

    @property
    def parks_optimizer(self) -> bool:
        """Say whether the optimizer's states leave the device between uses."""
        return self.running.sleeps or ("optimizer" in self.running.offload and not self.steps_on_host)

    @property
    def steps_on_host(self) -> bool:
        """Return whether Megatron's optimizer steps on the host, with all of its states there."""
        return self.megatron and self.running.offload == ("optimizer",)

    @property
    def on_host(self) -> bool:
        """Say whether everything lies in host memory, and comes as it is used."""
        return len(self.running.offload) == 3

    @property
    def fsdp_size(self) -> int:
        """Give the devices that weights are cut over: -1 for all."""
        return 1 if self.layout.sharding == "none" and self.layout.data > 1 else -1

    @property
    def keeps_weights(self) -> bool:
        """Say whether the weights stay whole between the passes of a step."""
        return self.layout.sharding in ("optimizer", "gradients")


def verl_values(job: ExportSpec, version: str, notes: ExportNotes) -> dict[str, Any]:
    """Give what the template of a version is filled with, and say what verl does instead where it has no key."""
    apart = job.pool("policy", "sample") not in ("", job.pool("policy", "train"))
    main = _main(job, apart, notes)
    if _lag(job) and not apart and version == "0.7.1":
        notes.say("a lag needs sampling on devices of its own in verl 0.7.1; here it shares them, so there is none")
    return {
        "apart": apart,
        "lag": _lag(job),
        "main": main,
        "sampling": job.site(job.pool("policy", "sample")),
        "syncs": _syncs(job, apart, notes),
        "actor": _engine(job, "policy", version, notes),
        "critic": _engine(job, "critic", version, notes) if job.has("critic") else None,
        "reference": _engine(job, "reference", version, notes) if job.has("reference") else None,
        "fused": _fused(job, notes),
        "rollout": _rollout(job),
        "reward": _reward(job, main, notes),
        **_algorithm(job, version, notes),
    }


def _lag(job: ExportSpec) -> int:
    placed = job.placed("policy", "sample")
    return placed.lag if placed is not None else 0


def _main(job: ExportSpec, apart: bool, notes: ExportNotes) -> ExportDevices:
    """Give the one pool of verl's trainer, and say who joined it."""
    home, sampling = job.pool("policy", "train"), job.pool("policy", "sample")
    pools = {home}
    for part in MAIN:
        pool = job.pool(part, "train" if part == "critic" else "infer")
        if pool and pool != home:
            pools |= {pool} - ({sampling} if apart else set())
            role = job.placed(part, "train" if part == "critic" else "infer")
            assert role is not None, "a part with a pool is placed"
            notes.say(
                f"{role.role} has the pool `{pool}`; verl's trainer keeps policy, critic and reference on one pool: "
                f"they share {job.site(*pools).devices} devices"
            )
    site = job.site(*pools)
    say_uneven(site, "the trainer's pool", notes)
    if apart:
        say_uneven(job.site(sampling), f"`{sampling}`", notes)
    return site


def _syncs(job: ExportSpec, apart: bool, notes: ExportNotes) -> int:
    """Give how many optimizer steps lie between two syncs of the weights: those of one batch."""
    syncs = -(-job.batch // job.minibatch)
    if apart and job.batch % job.minibatch:
        notes.say(
            f"minibatches of {job.minibatch} do not divide {job.batch} prompts, which verl wants where pools are "
            f"apart: the batch is {syncs * job.minibatch}"
        )
    return syncs


def _engine(job: ExportSpec, part: Part, version: str, notes: ExportNotes) -> VerlEngine:
    use: Use = "infer" if part == "reference" else "train"
    placed, running, layout = job.placed(part, use), job.running(part, use), job.layout(part, use)
    policy = job.placed("policy", "train")
    engine, ours = placed.engine if placed is not None else "fsdp", policy.engine if policy is not None else "fsdp"
    megatron = ours == "megatron"
    if engine not in (ours, "local"):
        notes.say(
            f"`{job.parts[part]}` runs on `{engine}`; verl runs it on the policy's engine, {_backend(megatron, ours)}"
        )
    elif engine not in ("fsdp", "megatron"):
        notes.say(f"`{job.parts[part]}` runs on `{engine}`; verl is told FSDP")
    if not megatron and (layout.tensor > 1 or layout.pipeline > 1 or layout.expert > 1):
        what = f"`{job.parts[part]}` is cut as {layout}; verl's FSDP cuts by data and sequence only"
        layout = _without_tensor(layout, fits=_has_room(job, part, use))
        notes.say(f"{what}: {layout}")
    if layout.sharding == "optimizer" and not megatron:
        notes.say(
            f"`{job.parts[part]}` shards its optimizer only; FSDP shards gradients too (reshard_after_forward=False)"
        )
    if running.checkpointing == "selective" and not megatron:
        notes.say(f"`{job.parts[part]}` checkpoints some activations; verl's FSDP all or none: all")
    if part == "reference" and running.sleeps and not megatron:
        notes.say(f"`{job.parts[part]}` leaves the device between uses; verl's FSDP brings its weights for each pass")
    if megatron:
        layout = _by_megatron(job, part, layout, version, notes)
    share = job.layout(part, use).sequence
    return VerlEngine(megatron, layout, running, -(-job.budget_tokens(part, use) * share // layout.sequence))


def _by_megatron(job: ExportSpec, part: Part, layout: Layout, version: str, notes: ExportNotes) -> Layout:
    """Give how verl's Megatron cuts a model: as the policy, and what is only read is never sharded.

    Source: verl/workers/engine/megatron/transformer_impl.py: models of one process share one `parallel_state`, that of
    the first; one that is `forward_only` is not wrapped, whatever `use_megatron_fsdp` says.
    """
    name, policy = f"`{job.parts[part]}`", job.layout("policy", "train")
    if part != "policy" and _cuts(layout) != _cuts(policy):
        degrees = policy.model_copy(update={"sharding": layout.sharding})
        notes.say(f"{name} is cut as {layout}; verl's Megatron cuts all models of the trainer as the policy: {degrees}")
        layout = degrees
    if layout.sharding != "full" or layout.data == 1:
        return layout
    holds = f"each of {layout.data} data ranks holds the weights of its part"
    if part == "reference":
        notes.say(f"{name} is sharded whole; verl's Megatron shards no model that is only read: {holds}")
        return layout.model_copy(update={"sharding": "none"})
    if version == "0.7.1":
        notes.say(f"{name} is sharded whole; verl {version}'s Megatron shards the optimizer only: {holds}")
    return layout


def _cuts(layout: Layout) -> tuple[int, ...]:
    return layout.tensor, layout.pipeline, layout.expert, layout.sequence


def _without_tensor(layout: Layout, *, fits: bool) -> Layout:
    """Give a layout of the same devices that FSDP has: more data ranks, or if these do not fit more of sequence.

    >>> _without_tensor(Layout(data=4, tensor=2), fits=True) == Layout(data=8, sharding="full")
    True
    >>> _without_tensor(Layout(data=4, tensor=2), fits=False) == Layout(data=4, sequence=2, sharding="full")
    True
    """
    degree = layout.tensor * layout.pipeline
    data, sequence = (degree, 1) if fits else (1, degree)
    return Layout(data=data * layout.data, sequence=sequence * layout.sequence, sharding="full")


def _has_room(job: ExportSpec, part: Part, use: Use) -> bool:
    """Say whether a device has room for the activations of rows of its own, which tensor ranks share in the plan.

    A plan that forecasts no bytes is taken to.
    """
    placed, layout = job.placed(part, use), job.layout(part, use)
    if placed is None:
        return True
    shared = (layout.tensor * layout.pipeline - 1) * sum(placed.memory.get(each, 0) for each in OF_ROWS)
    peaks = [each for told in job.plan.forecast if told.pool == placed.pool for each in told.peaks]
    most = max((peak.memory_bytes for peak in peaks if peak.role == placed.role), default=0)
    return most + shared <= FILLED * min(job.memory_bytes(placed.pool))


def _fused(job: ExportSpec, notes: ExportNotes) -> bool:
    """Return whether verl makes logits by kernels that never hold all of a micro-batch, as the plan is forecast.

    Source: verl, docs/algo/otb.md: these give no sums of squared probabilities, which need whole logits.
    """
    if job.algorithm.estimator == "optimal_token_baseline":
        notes.say("verl sums squared probabilities of whole logits, so without fused kernels: they take more memory")
        return False
    placed = (job.placed("policy", "train"), job.placed("reference", "infer"))
    return any(each.running.logits == "chunked" for each in placed if each is not None)


def _backend(megatron: bool, engine: str) -> str:
    return "Megatron" if megatron else "FSDP" if engine in ("fsdp", "local") else engine


def _rollout(job: ExportSpec) -> dict[str, Any]:
    placed, running, layout = (
        job.placed("policy", "sample"),
        job.running("policy", "sample"),
        job.layout("policy", "sample"),
    )
    engine = placed.engine if placed is not None and placed.engine in ("vllm", "sglang") else "vllm"
    return {"engine": engine, "layout": layout, "running": running}


def _reward(job: ExportSpec, main: ExportDevices, notes: ExportNotes) -> dict[str, Any] | None:
    """Give the reward model's place: a pool of its own, unless it shares the trainer's."""
    if not job.has("reward"):
        return None
    pool = job.pool("reward", "infer")
    shared = pool in {job.pool("policy", "train"), *(job.pool(part, "train") for part in MAIN), ""}
    taken = pool == job.pool("policy", "sample") and not shared
    if taken:
        notes.say(f"`{job.parts['reward']}` shares the pool `{pool}` with sampling; verl gives it the trainer's")
    site = main if shared or taken else job.site(pool)
    say_uneven(site, f"`{pool}`", notes)
    placed = job.placed("reward", "infer")
    engine = placed.engine if placed is not None and placed.engine in ("vllm", "sglang") else "vllm"
    if placed is not None and engine != placed.engine:
        notes.say(f"{placed.role} runs on `{placed.engine}`; verl serves reward models with {engine}")
    return {
        "own": not (shared or taken),
        "site": site,
        "engine": engine,
        "tensor": job.layout("reward", "infer").tensor,
        "share": job.running("reward", "infer").cache_share,
        "model": job.model("reward").name,
    }


def _algorithm(job: ExportSpec, version: str, notes: ExportNotes) -> dict[str, Any]:
    algorithm = job.algorithm
    estimator = ESTIMATORS.get(algorithm.estimator, "")
    if not estimator:
        estimator = "grpo"
        notes.say("the flow's advantages are none of verl's: register a function of yours; grpo stands in its place")
    if estimator in WHITENED and not algorithm.whitened:
        notes.say(f"verl whitens the advantages of {estimator}, which the flow does not")
    if algorithm.whitened and estimator not in WHITENED:
        notes.say(f"the flow whitens its advantages; verl does not those of {estimator}")
    if 0.0 in (algorithm.policy.max_grad_norm, algorithm.critic.max_grad_norm if algorithm.critic else None):
        notes.say(f"gradients are not clipped by the flow; verl is given a bound that is out of reach, {NO_CLIP:g}")
    if algorithm.estimator == "gdpo" and not algorithm.advantages["deviation"]:
        notes.say("the flow normalises its rewards without their deviation; verl's gdpo divides by it")
    if algorithm.estimator == "optimal_token_baseline" and not algorithm.advantages["zero_tail"]:
        notes.say("verl's tir_optimal_token_baseline has a baseline of 0 where one response outlasts all others")
    mode = _loss_mode(job, notes)
    return {
        "estimator": estimator,
        "loss_mode": mode,
        "aggregation": _aggregation(job, notes),
        "value_aggregation": _named_aggregation(algorithm.value_aggregation),
        "ratio_at_most": _ratio_at_most(algorithm.surrogate),
        "components": list(algorithm.components) if estimator == "gdpo" else [],
        "weights": [each.weight for each in algorithm.scores],
        "bypass": _bypass(job, mode, version, notes),
        "kl_loss_type": _kl_type(algorithm.kl_loss),
        "kl_reward_type": _kl_type(algorithm.kl_reward),
        "corrected": _threshold(algorithm.correction),
        "filters": _filters(job, version, notes),
        "metric": "reward" if algorithm.overlong is None else "acc",
        "clips_gradient": job.algorithm.policy.max_grad_norm or NO_CLIP,
        "clips_critic": (algorithm.critic.max_grad_norm if algorithm.critic is not None else 0.0) or NO_CLIP,
        "no_value_clip": algorithm.critic is not None and algorithm.value_clip is None,
    }


def _loss_mode(job: ExportSpec, notes: ExportNotes) -> str:
    surrogate, kl = job.algorithm.surrogate, job.algorithm.kl_loss
    if kl is not None and kl.adaptive is not None:
        notes.say("the weight of the KL in the loss adapts; verl's stays as it is at first")
    if surrogate.op == "dppo_loss":
        return f"dppo_{surrogate.settings['divergence']}"
    if surrogate.op == "clipped" and surrogate.settings.get("dual") is None:
        notes.say(
            f"the dual clip is off in the flow, and always on in verl: clip_ratio_c={NO_DUAL_CLIP:g} is out of reach"
        )
    return LOSSES[surrogate.op]


def _aggregation(job: ExportSpec, notes: ExportNotes) -> tuple[str, float | None]:
    """Give verl's aggregation and its constant length; the critic's is the policy's unless it is told."""
    algorithm = job.algorithm
    told = algorithm.surrogate.aggregation
    if algorithm.surrogate.op == "gmpo_loss":  # by which verl aggregates the other terms alone
        notes.say("verl's geo_mean takes the mean over the responses of each micro-batch, whatever the aggregation")
        told = next(iter(algorithm.aggregations.values()), told)
    say_of_terms(algorithm, told, "verl aggregates all terms alike", notes)
    if algorithm.critic is not None and isinstance(algorithm.value_aggregation, float):
        notes.say("the critic's terms are divided by a length of its own; verl divides them by the policy's")
    if isinstance(told, float) and not told.is_integer():
        notes.say(f"terms are divided by a length of {told:g}; verl takes whole ones: {int(told)}")
    return _named_aggregation(told)


def _named_aggregation(told: str | float) -> tuple[str, float | None]:
    if isinstance(told, float):
        return "seq-mean-token-sum-norm", told
    return AGGREGATIONS[str(told)], None


def _ratio_at_most(surrogate: Surrogate) -> float | None:
    """Give verl's `clip_ratio_c`, 3 unless it is told: the dual clip's bound, or that of DPPO's ratio."""
    if surrogate.op == "dppo_loss":
        return float(surrogate.settings["most"])
    return float(surrogate.settings.get("dual") or NO_DUAL_CLIP) if surrogate.op == "clipped" else None


def _bypass(job: ExportSpec, mode: str, version: str, notes: ExportNotes) -> bool:
    """Say whether verl is to clip around the log-probs of the sampler, as the flow does, and compute none anew."""
    if job.algorithm.surrogate.old != "sampler":
        return False
    if version == "0.7.1" and mode != "vanilla":
        more = "" if job.measures else ": one more forward pass"
        notes.say(
            f"the flow clips around the sampler's log-probs; verl {version} does so for the loss `vanilla` only, and "
            f"computes them anew for `{mode}`{more}"
        )
        return False
    if job.algorithm.correction is not None or job.algorithm.rejection is not None:
        notes.say(
            f"the flow clips around the sampler's log-probs and corrects for them too; verl {version} corrects only "
            "where it computes them anew, which it does"
        )
        return False
    if job.measures:
        notes.say(
            "verl clips around the sampler's log-probs, and computes none of its own: the forecast has one forward "
            "pass more, which measures how far the engines are apart"
        )
    return True


def _kl_type(kl: KL | None) -> str:
    if kl is None:
        return ""
    return (STRAIGHT_THROUGH if kl.straight_through else KL_TYPES)[kl.estimator]


def _threshold(correction: Mapping[str, Any] | None) -> float | str | None:
    """Give the bound of importance weights: a cap, or what is left out below and above as `low_high`."""
    if correction is None:
        return None
    if correction["cap"] is not None:
        return float(correction["cap"])
    low, high = correction["low"] or 1e-6, correction["high"] or 1e6
    return f"{low:g}_{high:g}"


def _filters(job: ExportSpec, version: str, notes: ExportNotes) -> bool:
    """Say whether groups without signal are replaced."""
    refill = job.algorithm.refill
    if refill is None:
        return False
    if version == "0.7.1":
        notes.say(
            f"verl {version} has no filter of groups in main_ppo; its recipe `dapo` has: all groups are trained on"
        )
        return False
    notes.say(f"the flow draws for at most {refill['rounds']} rounds; verl {version} draws until the batch is full")
    if job.algorithm.overlong is not None:
        notes.say(
            "groups are kept by their scores without the overlong penalty: the metric `acc`, which a reward function "
            "that returns a dict has to give; `reward` would hold the penalty"
        )
    return True
