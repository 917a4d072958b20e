"""From verl's keys to a flow, its settings, and where roles run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from flowgraph.analysis.roles import Use
from flowgraph.errors import UsageError
from nodes.interop.config import Config, Scalar, is_number, scalar
from nodes.interop.imported import Imported, SharedDevices, SystemRun, model_with_adapters
from nodes.interop.shipped_flows import FLOWS, GROUP_NORMALIZED, MAX_STALENESS, ShippedFlow
from nodes.interop.verl.roles import ACTOR, MODEL, ROLLOUT, in_chunks, layouts_of, running_of, trainer_of

CORRECTION = "algorithm.rollout_correction"
SAMPLERS = ("vllm", "sglang", "trtllm")
KL_FLAGS = (f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward")
REWARD = ("reward.reward_model", "reward_model")

# Source: verl 0.9.1, `AdvantageEstimator` in verl/trainer/ppo/core_algos.py; the flow of GRPO's depends on the loss.
ESTIMATORS: Mapping[str, str] = {
    "gae": "ppo",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
    "gpg": "gpg",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "remax": "remax",
    "opo": "opo",
    "gdpo": "gdpo",
}
GROUPED = {"grpo", "grpo_vectorized"}
LOSSES = {"gspo": "gspo", "cispo": "cispo", "geo_mean": "gmpo", "sapo": "sapo"}
KL_ESTIMATORS = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3", "abs": "abs"}
AGGREGATIONS = {
    "token-mean": "token-mean",
    "seq-mean-token-mean": "sequence-mean",
    "seq-mean-token-sum": "sequence-sum",
}
# Configurations of verl's whose keys are known, or that differ from those only in keys that no plan depends on.
_SHIPPED = re.compile(r"(?:fully_async_|one_step_off_)?(?:ppo|dapo)(?:_megatron)?_trainer(?:\.ya?ml)?")
_BOUNDS = re.compile(r"[0-9.e-]+_[0-9.e-]+")  # of importance weights: 0.5_2.0
NO_BOUND = 1e5  # a bound of the dual clip, or of a value, that nothing reaches


def read_verl(config: Config) -> Imported:
    """Return the run that verl's keys describe as one of the shipped flows, with a note on each difference.

    Raises UsageError, for example, for a run that names no model or learns from a teacher, for an invalid number, and
    if a layout does not divide its devices.
    """
    if config.flag("distillation.enabled"):
        paths = (name for name in config.overrides if name.endswith(".model_path") and "teacher" in name)
        names = [config.overrides[path].text for path in paths]
        raise UsageError(
            f"learns from a teacher{''.join(f', `{name}`' for name in names)}: no shipped flow does that",
            where=f"line {config.overrides['distillation.enabled'].line}",
            hint="plan a flow of yours that takes the teacher as a Reference, and its log-probs into a KL",
        )
    lag = _asynchrony(config)[1]
    flow = _flow(config, lag)
    unused = ("ref",) if "ref" in flow.params and not _has_kl(config) else ()
    if unused:
        config.note(f"verl runs no reference here; the plan leaves out that of the flow `{flow.name}`")
    if config.integer("data.train_batch_size"):
        generated = config.optional_positive("data.gen_batch_size") if flow.name == "dapo" else None
        batch = max(config.positive("data.train_batch_size"), generated or 0)
    else:  # an asynchronous run generates from the prompts of all its minibatches
        config.get("data.gen_batch_size")
        batches = config.optional_positive("async_training.require_batches") or 1
        steps = config.optional_positive("async_training.trigger_parameter_sync_step") or 1
        batch = config.positive(f"{ACTOR}.ppo_mini_batch_size") * batches * steps
    models = _models(config, flow)
    run = verl_run(config, flow)
    settings = list(_settings(config, flow, batch))
    _note_differences(config, flow, lag)
    return config.imported(
        flow,
        in_chunks(config, run),
        settings=settings,
        models=models,
        unused=unused,
        batch=batch,
        prompt_tokens=config.positive("data.max_prompt_length"),
        response_tokens=config.positive("data.max_response_length"),
    )


def verl_run(config: Config, flow: ShippedFlow) -> SystemRun:
    """Return the devices, layouts and settings of a flow's roles in a verl run; notes on differences go to `config`.

    Raises UsageError for an invalid number, for more than 65,536 devices, and if a layout does not divide its devices.
    """
    separate, lag = _asynchrony(config)
    nodes, per_node = config.positive("trainer.nnodes"), config.positive("trainer.n_gpus_per_node")
    home = tuple(role for role in flow.roles if not (separate and role == "policy.sample"))
    parts = [SharedDevices(home, nodes * per_node, per_node)]
    if separate:
        # Older trainers have keys of their own.
        older = "fully_async" in config.run.module or "one_step_off" in config.run.module
        prefixes = ("rollout", ROLLOUT) if older else (ROLLOUT,)
        nodes = config.positive(*(f"{prefix}.nnodes" for prefix in prefixes))
        per_node = config.positive(*(f"{prefix}.n_gpus_per_node" for prefix in prefixes))
        parts.append(SharedDevices(("policy.sample",), nodes * per_node, per_node))
    layouts = layouts_of(config, flow, parts[0].devices, parts[-1].devices)
    sampler = config.text(f"{ROLLOUT}.name") or "vllm"
    if sampler not in SAMPLERS:
        config.note(f"no plan samples with `{sampler}`: vllm replaces it")
        sampler = "vllm"
    total_tokens = config.positive("data.max_prompt_length") + config.positive("data.max_response_length")
    running, rows_at_once = running_of(config, flow, layouts, total_tokens, separate)
    engine = "megatron" if trainer_of(config) == "megatron" else "fsdp"
    engines: dict[Use, str] = {"train": engine, "sample": sampler, "infer": engine}
    return SystemRun(tuple(parts), engines, layouts, running, lag, rows_at_once)


def _asynchrony(config: Config) -> tuple[bool, int]:
    module, mode = config.run.module, config.text("trainer.v1.trainer_mode")
    if "fully_async" in module:
        return True, math.ceil(max(0.0, config.number("async_training.staleness_threshold") or 0.0))
    if "one_step_off" in module:
        return True, 1
    if mode in ("separate_async", "colocate_async"):
        lag = math.ceil(max(0.0, config.number(f"trainer.v1.{mode}.num_warmup_batches") or 0.0))
        bound = config.integer("trainer.v1.sampler.max_off_policy_threshold")
        config.get("trainer.v1.sampler.max_off_policy_strategy", "trainer.v1.separate_async.parameter_sync_step")
        return mode == "separate_async", lag if bound is None else min(lag, max(0, bound - 1))
    return False, 0


def _flow(config: Config, lag: int) -> ShippedFlow:
    estimator, mode = config.text("algorithm.adv_estimator"), config.text(f"{ACTOR}.policy_loss.loss_mode")
    filters = config.flag("algorithm.filter_groups.enable")
    if name := ESTIMATORS.get(estimator):
        if filters:
            config.note(f"the run replaces groups without signal; the flow `{name}` trains on all groups")
        if mode not in ("vanilla", "gpg", ""):
            config.note(f"the loss of `{name}` replaces the loss `{mode}`")
        return FLOWS[name]
    if estimator not in GROUPED:
        config.note(f"no shipped flow has verl's advantages `{estimator}`: those of GRPO replace them")
    if filters:
        if mode not in ("vanilla", ""):
            config.note(f"no shipped flow replaces groups with verl's loss `{mode}`: `dapo` has the clipped surrogate")
        metric = config.text("algorithm.filter_groups.metric")
        if metric in ("reward", "seq_reward", "seq_final_reward"):
            config.note(f"the run keeps groups by `{metric}`, after the length penalty; the flow by scores before it")
        return FLOWS["dapo"]
    if mode in LOSSES:
        return FLOWS[LOSSES[mode]]
    if mode not in ("vanilla", ""):
        config.note(f"no shipped flow has verl's loss `{mode}` with groups: the clipped surrogate replaces it")
    if _has_kl(config):
        return FLOWS["grpo"]
    if lag:
        config.note("the run generates with older weights: the flow is `decoupled_ppo`, which corrects for them")
        return FLOWS["decoupled_ppo"]
    return FLOWS["dr_grpo"]


def _has_kl(config: Config) -> bool:
    return any(map(config.flag, KL_FLAGS))


def _models(config: Config, flow: ShippedFlow) -> dict[str, str]:
    path = f"{MODEL}.path"
    if not config.has(path):
        raise UsageError("names no model", where=path, hint="verl's default is a folder of its authors")
    policy = config.text(path)
    if not policy or path in config.unusable:
        raise config.error(f"names no model: {config.unusable.get(path, 'it is empty')}", path)
    models = {"policy": _adapted(config, policy, MODEL)}
    if "critic" in flow.params:
        critic = config.text("critic.model.path") if config.has("critic.model.path") else ""
        models["critic"] = _adapted(config, critic or policy, "critic.model")
    if "ref" in flow.params:
        models["ref"] = policy
    return models


def _adapted(config: Config, name: str, prefix: str) -> str:
    fsdp_rank, megatron_rank = config.integer(f"{prefix}.lora_rank"), config.integer(f"{prefix}.lora.rank")
    rank = fsdp_rank or megatron_rank or 0
    alpha = config.positive(f"{prefix}.lora_alpha" if fsdp_rank else f"{prefix}.lora.alpha") if rank > 0 else 0
    return model_with_adapters(name, rank, alpha)


def _settings(config: Config, flow: ShippedFlow, batch: int) -> Iterator[tuple[str, Scalar]]:
    yield f"{flow.sampler}.n", config.positive(f"{ROLLOUT}.n", "rollout.n")
    yield f"{flow.sampler}.temperature", config.number(f"{ROLLOUT}.temperature")
    top_k, top_p = config.integer(f"{ROLLOUT}.top_k") or 0, config.share(f"{ROLLOUT}.top_p")
    yield f"{flow.sampler}.top_k", top_k if top_k > 0 else None
    yield f"{flow.sampler}.top_p", top_p if top_p < 1 else None
    yield f"{flow.sampler}.ignore_eos", config.flag(f"{ROLLOUT}.ignore_eos") or None
    if top_k > 0 or top_p < 1:
        config.note("the run trains log-probs of all tokens; the flow those of the tokens that top_k and top_p keep")
    yield f"{flow.sampler}.max_tokens", config.positive("data.max_response_length")
    if flow.name == "dapo":
        yield "policy.refill.groups", config.positive("data.train_batch_size")
        rounds = config.integer("algorithm.filter_groups.max_num_gen_batches") or 0
        yield "policy.refill.rounds", rounds if rounds > 0 else None
        if rounds < 1:
            config.note("verl generates until the batch is full; the flow `dapo` stops after its number of rounds")
        prefixes = ("reward.reward_kwargs", "reward_model", "custom_reward_function", "reward_model.reward_kwargs")
        buffers = [f"{prefix}.{name}" for prefix in prefixes for name in ("overlong_buffer_cfg", "overlong_buffer")]
        enabled = config.flag(*(f"{buffer}.enable" for buffer in buffers))
        tokens = config.integer(*(f"{buffer}.len" for buffer in buffers))
        config.get(*(f"{buffer}.log" for buffer in buffers), "reward.reward_kwargs.max_resp_len")
        yield "overlong_penalty.max_tokens", config.positive("data.max_response_length")
        yield "overlong_penalty.buffer", tokens if enabled else 1
        factor = config.number(*(f"{buffer}.penalty_factor" for buffer in buffers)) if enabled else 0.0
        yield "overlong_penalty.factor", factor
    for model, prefix in (("policy", ACTOR), ("critic", "critic")):
        if model in flow.params:
            yield f"{model}.update.lr", config.number(f"{prefix}.optim.lr")
            yield f"{model}.update.weight_decay", config.number(f"{prefix}.optim.weight_decay")
            yield f"{model}.update.max_grad_norm", config.number(f"{prefix}.grad_clip", f"{prefix}.optim.clip_grad")
            yield f"{model}.update.epochs", config.positive(f"{prefix}.ppo_epochs")
            minibatch = config.positive(f"{prefix}.ppo_mini_batch_size")
            yield f"{model}.update.minibatch", minibatch if minibatch < batch else 0
    warmup = config.integer("trainer.critic_warmup")
    yield "policy.update.start_step", warmup if "critic" in flow.params else None
    yield from _surrogate(config, flow)
    yield from _terms(config, flow)
    yield from _advantages(config, flow)


def _advantages(config: Config, flow: ShippedFlow) -> Iterator[tuple[str, Scalar]]:
    gamma, lam = config.number("algorithm.gamma"), config.number("algorithm.lam")
    if flow.name == "reinforce_pp":
        yield "discounted_returns.gamma", gamma
    elif flow.name == "ppo":
        yield "gae.gamma", gamma
        yield "gae.lam", lam
        clip = config.number("critic.cliprange_value")
        yield "critic.update.value_loss.clip", clip if clip is not None and clip < NO_BOUND else "null"
    elif flow.name == "gdpo":
        names = _items(config.text("algorithm.gdpo_reward_keys"))
        weights = _items(config.text("algorithm.gdpo_reward_weights")) or ["1.0"] * len(names)
        if len(names) == len(weights) == 2:
            config.note(f"the run computes the rewards {names[0]} and {names[1]}; the flow has its own rules")
            for name, weight in zip(("scale", "scale#2"), map(scalar, weights), strict=True):
                if not is_number(weight):
                    raise config.error(f"must be two numbers, not {weight}", "algorithm.gdpo_reward_weights")
                yield f"{name}.factor", weight
        else:
            config.note(f"the run has {len(names)} rewards, {', '.join(names)}; the flow `gdpo` has two, 0.7 and 0.3")
    elif flow.name == "decoupled_ppo":
        level, cap = config.text(f"{CORRECTION}.rollout_is"), config.get(f"{CORRECTION}.rollout_is_threshold")
        if not level:
            config.note("the run has no importance weights for older policies; the flow `decoupled_ppo` has")
        else:
            yield "importance_weights.level", level
            if isinstance(cap, str) and _BOUNDS.fullmatch(cap):
                config.note(f"the run leaves out importance weights outside of {cap}; the flow truncates them")
            else:
                yield "importance_weights.cap", config.number(f"{CORRECTION}.rollout_is_threshold")
    if flow.name in GROUP_NORMALIZED:
        yield "group_normalize.deviation", config.flag("algorithm.norm_adv_by_std_in_grpo")


def _items(text: str) -> list[str]:
    return [item.strip(" '\"") for item in text.strip("[]' ").split(",") if item.strip(" '\"")]


def _surrogate(config: Config, flow: ShippedFlow) -> Iterator[tuple[str, Scalar]]:
    config.get(f"{ACTOR}.clip_ratio_c")  # a bound of some losses only
    eps, low, high = (config.number(f"{ACTOR}.{name}") for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high"))
    low, high = eps if low is None else low, eps if high is None else high
    if config.has(f"{ACTOR}.clip_ratio") and eps not in (low, high):
        config.note(f"clip_ratio={eps} has no effect in verl, where clip_ratio_low is {low} and _high is {high}")
    if flow.surrogate in ("clipped", "cispo_loss", "gspo_loss", "gmpo_loss"):
        yield f"{flow.loss}.eps", low
        symmetric = high == low and flow.surrogate == "clipped" and flow.name != "dapo"
        yield f"{flow.loss}.eps_high", None if symmetric else high
    if flow.surrogate == "clipped":
        dual = config.number(f"{ACTOR}.clip_ratio_c")
        yield f"{flow.loss}.dual", dual if dual is not None and dual < NO_BOUND else None
    if flow.surrogate == "sapo_loss":
        yield f"{flow.loss}.tau_pos", config.number(f"{ACTOR}.tau_pos")
        yield f"{flow.loss}.tau_neg", config.number(f"{ACTOR}.tau_neg")
    aggregation = config.text(f"{ACTOR}.loss_agg_mode")
    if flow.surrogate not in ("clipped", "policy_gradient", "cispo_loss"):
        if aggregation != "seq-mean-token-mean":
            config.note(f"the run aggregates terms by `{aggregation}`; the flow `{flow.name}` averages over responses")
    elif aggregation == "seq-mean-token-sum-norm":
        length = config.integer(f"{ACTOR}.loss_scale_factor") or config.positive("data.max_response_length")
        yield f"{flow.loss}.aggregation", length
    else:
        if aggregation not in AGGREGATIONS:
            config.note(f"no loss here has the aggregation `{aggregation}`: the mean over tokens replaces it")
        yield f"{flow.loss}.aggregation", AGGREGATIONS.get(aggregation, "token-mean")


def _terms(config: Config, flow: ShippedFlow) -> Iterator[tuple[str, Scalar]]:
    weight = config.number(f"{ACTOR}.entropy_coeff") or 0
    config.get(f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type")
    config.get("algorithm.kl_ctrl.kl_coef", "algorithm.kl_ctrl.type", "algorithm.kl_penalty")
    if flow.entropy:
        yield flow.entropy, weight
    elif weight:
        config.note(f"the entropy bonus of {weight:g} is left out: the flow `{flow.name}` has none")
    if not flow.kl:
        if _has_kl(config):
            config.note(f"the KL to a reference is left out, and the reference: the flow `{flow.name}` has neither")
        return
    in_loss, in_reward = map(config.flag, KL_FLAGS)
    loss_weight, reward_weight = config.number(f"{ACTOR}.kl_loss_coef"), config.number("algorithm.kl_ctrl.kl_coef")
    reward_weight = reward_weight if in_reward else 0.0
    if flow.kl_in_loss:
        kind = config.text(f"{ACTOR}.kl_loss_type")
        yield flow.kl, loss_weight if in_loss else reward_weight
        if in_loss and KL_ESTIMATORS.get(kind) != "k3":
            config.note(f"the run estimates the KL in the loss by `{kind}`; the flow `{flow.name}` by k3")
        if in_reward:
            config.note(f"the run has the KL in the reward; the flow `{flow.name}` has it in its loss")
        return
    kind = config.text("algorithm.kl_penalty")
    yield flow.kl, reward_weight
    yield "kl_estimate.estimator", KL_ESTIMATORS.get(kind)
    if in_reward and kind not in KL_ESTIMATORS:
        config.note(f"no flow estimates the KL in the reward by `{kind}`: the estimator of `{flow.name}` replaces it")
    if in_loss:
        config.note(f"the KL in the loss is left out: the flow `{flow.name}` has it in the reward")
    if config.text("algorithm.kl_ctrl.type") == "adaptive":
        config.get("algorithm.kl_ctrl.target_kl", "algorithm.kl_ctrl.horizon")
        config.note("verl adapts the weight of the KL; the flow keeps its initial weight")


def _note_differences(config: Config, flow: ShippedFlow, lag: int) -> None:
    if config.flag(*(f"{prefix}.enable" for prefix in REWARD)):
        name = config.text(f"{REWARD[0]}.model_path", f"{REWARD[1]}.model_path", f"{REWARD[1]}.model.path")
        nodes, per_node = (
            config.integer(*(f"{prefix}.{key}" for prefix in REWARD)) for key in ("nnodes", "n_gpus_per_node")
        )
        has_pool = config.flag(*(f"{prefix}.enable_resource_pool" for prefix in REWARD))
        devices = f" with {(nodes or 0) * (per_node or 0)} of the run's devices" if has_pool else ""
        model = f" `{name}`" if name else ""
        config.note(f"the reward model{model}{devices} is left out: shipped flows score by a rule")
    if config.text(f"{CORRECTION}.rollout_is") and flow.name != "decoupled_ppo":
        config.note("importance weights are left out: of the shipped flows only `decoupled_ppo` has them")
    bypasses, greedy = config.flag(f"{CORRECTION}.bypass_mode"), config.number(f"{ROLLOUT}.temperature") == 0
    # Where one engine samples and another trains, our runs recompute the log-probs of samples, unless they are greedy.
    if greedy and not bypasses:
        config.note("verl recomputes log-probs of responses; the flow uses the sampler's: one forward pass less")
    if bypasses and not greedy:
        config.note("verl does not recompute log-probs of responses; the forecast does: one forward pass more")
    if lag and flow.name != "decoupled_ppo":
        config.note(f"responses are up to {lag} updates old; the flow `{flow.name}` does not correct for that")
    if lag > MAX_STALENESS:
        config.note(f"responses are up to {lag} updates old; in the plan up to {MAX_STALENESS}")
    for option in config.run.options:
        if option.key == "--config-name" and not _SHIPPED.fullmatch(option.text):
            config.note(f"the configuration `{option.text}` is not read: verl's defaults replace it")
