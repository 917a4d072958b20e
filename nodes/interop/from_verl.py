"""From verl's keys to a flow, its settings, and where roles run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from flowgraph.errors import UsageError
from nodes.interop.char_reader import broken
from nodes.interop.commands import StartedCommand
from nodes.interop.config import Config, settings_text
from nodes.interop.imported import Imported, SharedDevices, SystemRun, adapted
from nodes.interop.scalars import Scalar, is_number, scalar
from nodes.interop.shipped_flows import FLOWS, STALE_AT_MOST, ShippedFlow, placement_of
from nodes.interop.verl_places import ACTOR, MODEL, ROLLOUT, in_chunks, layouts_of, rows_at_once, running_of

CORRECTION = "algorithm.rollout_correction"
REWARD = ("reward.reward_model", "reward_model")

# Source: verl 0.9.1, `AdvantageEstimator` in verl/trainer/ppo/core_algos.py; those of GRPO's kind are told by the loss.
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
# Configurations that verl ships whose keys are known, or that differ from those in what no plan depends on.
_SHIPPED = re.compile(r"(?:fully_async_|one_step_off_)?(?:ppo|dapo)(?:_megatron)?_trainer(?:\.ya?ml)?")
_BOUNDS = re.compile(r"[0-9.e-]+_[0-9.e-]+")  # of importance weights: 0.5_2.0
OUT_OF_REACH = 1e5  # a bound of the dual clip, or of a value, that nothing meets


def from_verl(run: StartedCommand) -> Imported:
    """Read a run of verl; raises UsageError for one without a model, or whose devices its layouts do not divide."""
    config = Config.of(run)
    _refuse_teachers(config)
    lag = _apart(config)[1]
    flow = _flow(config, lag)
    unused = _unused(config, flow)
    batch = _batch(config, flow)
    models = _models(config, flow)
    found = verl_run(config, flow)
    settings = settings_text(_settings(config, flow, batch))
    tokens = _lengths(config)
    _say(config, flow, lag)
    return Imported(
        system="verl",
        version=config.known.version,
        flow=flow.name,
        settings=settings,
        models=models,
        unused=unused,
        batch=batch,
        prompt_tokens=tokens[0],
        response_tokens=tokens[1],
        devices=sum(part.devices for part in found.parts),
        devices_per_node=found.parts[0].devices_per_node,
        placement=placement_of(flow, found.parts),
        parts=found.parts,
        engines=found.engines,
        layouts=found.layouts,
        running=in_chunks(config, found.engines["train"], found.running),
        lag=min(lag, STALE_AT_MOST),
        ignored=config.ignored(),
        notes=tuple(config.notes),
        told=config.texts(),
        again=config.again(),
        rows_at_once=found.rows_at_once,
    )


def _refuse_teachers(config: Config) -> None:
    """Refuse a run that learns from a teacher: its model, its devices and its loss are in no flow that is shipped."""
    if not config.flag("distillation.enabled"):
        return
    told = config.told["distillation.enabled"]
    named = [each.text for key, each in config.told.items() if key.endswith(".model_path") and "teacher" in key]
    teachers = ", ".join(f"`{name}`" for name in named)
    what = (
        f"learns from a teacher{f', {teachers}' if named else ''}: no shipped flow does, so none can be planned for it"
    )
    hint = "a flow of yours takes the teacher as a Reference, and its log-probs into a KL; plan that"
    raise UsageError(what, where=f"line {told.line}", hint=hint)


def verl_run(config: Config, flow: ShippedFlow) -> SystemRun:
    """Give where and how a run has the roles of a flow, by its keys; the first part is the trainer's."""
    apart, lag = _apart(config)
    main = _site(config, "trainer.nnodes", "trainer.n_gpus_per_node")
    sampling = _drawing_site(config) if apart else main
    layouts, engines = layouts_of(config, flow, main[0] * main[1], sampling[0] * sampling[1])
    running = running_of(config, flow, layouts, sum(_lengths(config)), apart)
    rows = rows_at_once(config, flow)
    return SystemRun(_shared(flow, main, sampling, apart), engines, layouts, running, lag, rows)


def _lengths(config: Config) -> tuple[int, int]:
    return config.positive("data.max_prompt_length"), config.positive("data.max_response_length")


def _apart(config: Config) -> tuple[bool, int]:
    """Say whether responses are drawn on devices of their own, and how many updates ahead."""
    module, mode = config.run.module, config.text("trainer.v1.trainer_mode")
    if "fully_async" in module:
        stale = max(0.0, config.number("async_training.staleness_threshold") or 0.0)
        return True, int(stale) + (stale % 1 > 0)
    if "one_step_off" in module:
        return True, 1
    if mode in ("separate_async", "colocate_async"):
        ahead = max(0.0, config.number(f"trainer.v1.{mode}.num_warmup_batches") or 0.0)
        bound = config.whole("trainer.v1.sampler.max_off_policy_threshold")
        config.get("trainer.v1.sampler.max_off_policy_strategy", "trainer.v1.separate_async.parameter_sync_step")
        lag = int(ahead) + (ahead % 1 > 0)
        return mode == "separate_async", lag if bound is None else min(lag, max(0, bound - 1))
    return False, 0


def _drawing_site(config: Config) -> tuple[int, int]:
    """Give the machines of what draws apart, and how many devices of each; older trainers have keys of their own."""
    old = "fully_async" in config.run.module or "one_step_off" in config.run.module
    wheres = ("rollout", ROLLOUT) if old else (ROLLOUT,)
    nodes, each = ([f"{where}.{name}" for where in wheres] for name in ("nnodes", "n_gpus_per_node"))
    return config.positive(*nodes), config.positive(*each)


def _flow(config: Config, lag: int) -> ShippedFlow:
    """Choose the shipped flow that computes what the run does, or the nearest, which is said."""
    estimator, mode = config.text("algorithm.adv_estimator"), config.text(f"{ACTOR}.policy_loss.loss_mode")
    filters = config.flag("algorithm.filter_groups.enable")
    if estimator in ESTIMATORS:
        if filters:
            config.say(
                f"groups without signal are drawn anew; the flow `{ESTIMATORS[estimator]}` trains on all of them"
            )
        if mode not in ("vanilla", "gpg", ""):
            config.say(f"the loss `{mode}` is not that of {ESTIMATORS[estimator]}, which stands in its place")
        return FLOWS[ESTIMATORS[estimator]]
    if estimator not in GROUPED:
        config.say(f"no shipped flow has verl's advantages `{estimator}`: those of GRPO stand in their place")
    if filters:
        _say_of_filters(config, mode)
        return FLOWS["dapo"]
    if mode in LOSSES:
        return FLOWS[LOSSES[mode]]
    if mode not in ("vanilla", ""):
        config.say(f"no shipped flow has verl's loss `{mode}` with groups: the clipped surrogate stands in its place")
    if _kl_loss(config) or _kl_reward(config):
        return FLOWS["grpo"]
    if lag:
        config.say("weights that are older than the newest: the flow is `decoupled_ppo`, which corrects for them")
        return FLOWS["decoupled_ppo"]
    return FLOWS["dr_grpo"]


def _say_of_filters(config: Config, mode: str) -> None:
    """Say what a run that draws groups anew does otherwise than the flow `dapo`."""
    if mode not in ("vanilla", ""):
        config.say(f"no shipped flow draws groups anew with verl's loss `{mode}`: the clipped surrogate of `dapo` does")
    metric = config.text("algorithm.filter_groups.metric")
    if metric in ("reward", "seq_reward", "seq_final_reward"):
        config.say(f"groups are kept by `{metric}`, with what is taken off for length; the flow keeps them by scores")


def _kl_loss(config: Config) -> bool:
    return config.flag(f"{ACTOR}.use_kl_loss")


def _kl_reward(config: Config) -> bool:
    return config.flag("algorithm.use_kl_in_reward")


def _unused(config: Config, flow: ShippedFlow) -> tuple[str, ...]:
    """Give the models that the flow has and the run does not: a reference that no KL is taken to."""
    if "ref" not in flow.params or _kl_loss(config) or _kl_reward(config):
        return ()
    config.say(f"verl runs no reference here; the flow `{flow.name}` has one, which the plan does without")
    return ("ref",)


def _batch(config: Config, flow: ShippedFlow) -> int:
    """Give the prompts of a step: all that are drawn, where groups are left out; of asynchronous runs, minibatches."""
    told = config.whole("data.train_batch_size")
    minibatch = config.positive(f"{ACTOR}.ppo_mini_batch_size")
    if not told:
        config.get("data.gen_batch_size")
        several = config.counted("async_training.require_batches") or 1
        return minibatch * several * (config.counted("async_training.trigger_parameter_sync_step") or 1)
    drawn = config.counted("data.gen_batch_size") if flow.name == "dapo" else None
    return max(config.positive("data.train_batch_size"), drawn or 0)


def _models(config: Config, flow: ShippedFlow) -> dict[str, str]:
    if not config.has(f"{MODEL}.path"):
        raise UsageError("names no model", where=f"{MODEL}.path", hint="verl's default is a folder of its authors")
    policy = config.text(f"{MODEL}.path")
    if not policy or f"{MODEL}.path" in config.why:
        why = config.why.get(f"{MODEL}.path", "it is empty")
        raise broken(f"names no model: {why}", config.told[f"{MODEL}.path"].line, f"{MODEL}.path")
    models = {"policy": _adapted(config, policy, MODEL)}
    if "critic" in flow.params:
        told = config.text("critic.model.path") if config.has("critic.model.path") else policy
        models["critic"] = _adapted(config, told or policy, "critic.model")
    if "ref" in flow.params:
        models["ref"] = policy
    return models


def _adapted(config: Config, name: str, where: str) -> str:
    rank = config.whole(f"{where}.lora_rank") or config.whole(f"{where}.lora.rank") or 0
    if rank < 1:
        return name
    of_megatron = not config.whole(f"{where}.lora_rank")
    alpha = config.positive(f"{where}.lora.alpha" if of_megatron else f"{where}.lora_alpha")
    return adapted(name, rank, alpha)


def _site(config: Config, nodes: str, per_node: str) -> tuple[int, int]:
    return config.positive(nodes), config.positive(per_node)


def _shared(
    flow: ShippedFlow, main: tuple[int, int], sampling: tuple[int, int], apart: bool
) -> tuple[SharedDevices, ...]:
    home = tuple(role for role in flow.roles if not (apart and role == "policy.sample"))
    parts = (SharedDevices(home, main[0] * main[1], main[1]),)
    return (*parts, SharedDevices(("policy.sample",), sampling[0] * sampling[1], sampling[1])) if apart else parts


def _settings(config: Config, flow: ShippedFlow, batch: int) -> Iterator[tuple[str, Scalar]]:
    """Give the settings of the flow's nodes."""
    yield f"{flow.sampler}.n", config.positive(f"{ROLLOUT}.n", "rollout.n")
    yield f"{flow.sampler}.temperature", config.number(f"{ROLLOUT}.temperature")
    yield f"{flow.sampler}.max_tokens", config.positive("data.max_response_length")
    if flow.name == "dapo":
        yield "policy.refill.groups", config.positive("data.train_batch_size")
        rounds = config.whole("algorithm.filter_groups.max_num_gen_batches")
        yield "policy.refill.rounds", rounds if rounds and rounds > 0 else None
        if not rounds or rounds < 1:
            config.say("verl draws until the batch is full; the flow `dapo` for at most as many rounds as it says")
        yield from _overlong(config)
    yield from _updates(config, flow, batch)
    yield from _surrogate(config, flow)
    yield from _terms(config, flow)
    gamma, lam = config.number("algorithm.gamma"), config.number("algorithm.lam")
    if flow.name == "reinforce_pp":
        yield "discounted_returns.gamma", gamma
    if flow.name == "gdpo":
        yield from _rewards(config)
    if flow.name == "decoupled_ppo":
        yield from _correction(config)
    if flow.name == "ppo":
        yield "gae.gamma", gamma
        yield "gae.lam", lam
        clip = config.number("critic.cliprange_value")
        yield "critic.update.value_loss.clip", clip if clip is not None and clip < OUT_OF_REACH else "null"
    if flow.name in ("grpo", "dr_grpo", "dapo", "decoupled_ppo", "gspo", "cispo", "gmpo", "sapo"):
        yield "group_normalize.deviation", config.flag("algorithm.norm_adv_by_std_in_grpo")


def _rewards(config: Config) -> Iterator[tuple[str, Scalar]]:
    """Give the weights of GDPO's rewards; the shipped flow has two, by rules of its own."""
    keys, told = (_listed(config.text(f"algorithm.gdpo_reward_{name}")) for name in ("keys", "weights"))
    weights = told or ["1.0"] * len(keys)
    if len(keys) != 2 or len(weights) != 2:
        config.say(f"the run has {len(keys)} rewards, {', '.join(keys)}; the flow `gdpo` has two, 0.7 and 0.3")
        return
    config.say(f"the rewards {keys[0]} and {keys[1]} are of a function of the run's; the flow has the rules of its own")
    for name, weight in zip(("scale", "scale#2"), map(scalar, weights), strict=True):
        if not is_number(weight):
            where = "algorithm.gdpo_reward_weights"
            raise broken(f"should be two numbers, not {weight}", config.told[where].line, where)
        yield f"{name}.factor", weight


def _listed(text: str) -> list[str]:
    """Part a list as Hydra writes it.

    >>> _listed('["a", b]'), _listed("")
    (['a', 'b'], [])
    """
    return [each.strip(" '\"") for each in text.strip("[]' ").split(",") if each.strip(" '\"")]


def _correction(config: Config) -> Iterator[tuple[str, Scalar]]:
    """Give how importance weights are truncated; bounds that leave weights out are told as they are."""
    level, cap = config.text(f"{CORRECTION}.rollout_is"), config.get(f"{CORRECTION}.rollout_is_threshold")
    if not level:
        config.say("the run corrects for older weights by no importance weights; the flow `decoupled_ppo` does")
        return
    yield "importance_weights.level", level
    if isinstance(cap, str) and _BOUNDS.fullmatch(cap):
        config.say(f"importance weights outside of {cap} are left out by the run; the flow truncates them")
    else:
        yield "importance_weights.cap", config.number(f"{CORRECTION}.rollout_is_threshold")


def _overlong(config: Config) -> Iterator[tuple[str, Scalar]]:
    wheres = ("reward.reward_kwargs", "reward_model", "custom_reward_function", "reward_model.reward_kwargs")
    buffers = [f"{where}.{name}" for where in wheres for name in ("overlong_buffer_cfg", "overlong_buffer")]
    enabled = config.flag(*(f"{each}.enable" for each in buffers))
    if not enabled:
        yield "overlong_penalty.factor", 0.0
    yield "overlong_penalty.max_tokens", config.positive("data.max_response_length")
    length = config.whole(*(f"{each}.len" for each in buffers))
    yield "overlong_penalty.buffer", length if enabled else 1
    if enabled:
        yield "overlong_penalty.factor", config.number(*(f"{each}.penalty_factor" for each in buffers))
    config.get(*(f"{each}.log" for each in buffers), "reward.reward_kwargs.max_resp_len")


def _updates(config: Config, flow: ShippedFlow, batch: int) -> Iterator[tuple[str, Scalar]]:
    for name, where in (("policy", ACTOR), ("critic", "critic")):
        if name not in flow.params:
            continue
        yield f"{name}.update.lr", config.number(f"{where}.optim.lr")
        yield f"{name}.update.weight_decay", config.number(f"{where}.optim.weight_decay")
        yield f"{name}.update.max_grad_norm", config.number(f"{where}.grad_clip", f"{where}.optim.clip_grad")
        yield f"{name}.update.epochs", config.positive(f"{where}.ppo_epochs")
        minibatch = config.positive(f"{where}.ppo_mini_batch_size")
        yield f"{name}.update.minibatch", minibatch if minibatch < batch else 0
    warm = config.whole("trainer.critic_warmup")
    yield "policy.update.start_step", warm if "critic" in flow.params else None


def _surrogate(config: Config, flow: ShippedFlow) -> Iterator[tuple[str, Scalar]]:
    config.get(f"{ACTOR}.clip_ratio_c")  # a bound of some losses alone
    eps, low, high = (config.number(f"{ACTOR}.{name}") for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high"))
    lower, upper = eps if low is None else low, eps if high is None else high
    if config.has(f"{ACTOR}.clip_ratio") and eps not in (lower, upper):
        config.say(f"clip_ratio={eps} has no effect in verl, where clip_ratio_low is {lower} and _high is {upper}")
    if flow.surrogate in ("clipped", "cispo_loss", "gspo_loss", "gmpo_loss"):
        yield f"{flow.loss}.eps", lower
        yield (
            f"{flow.loss}.eps_high",
            upper if upper != lower or flow.name == "dapo" or flow.surrogate != "clipped" else None,
        )
    if flow.surrogate == "clipped":
        dual = config.number(f"{ACTOR}.clip_ratio_c")
        yield f"{flow.loss}.dual", dual if dual is not None and dual < OUT_OF_REACH else None
    if flow.surrogate == "sapo_loss":
        yield f"{flow.loss}.tau_pos", config.number(f"{ACTOR}.tau_pos")
        yield f"{flow.loss}.tau_neg", config.number(f"{ACTOR}.tau_neg")
    if flow.surrogate in ("clipped", "policy_gradient", "cispo_loss"):
        yield f"{flow.loss}.aggregation", _aggregation(config)
    elif config.text(f"{ACTOR}.loss_agg_mode") != "seq-mean-token-mean":
        told = config.text(f"{ACTOR}.loss_agg_mode")
        config.say(f"terms are aggregated as `{told}`; the flow `{flow.name}` takes the mean over responses")


def _aggregation(config: Config) -> Scalar:
    told = config.text(f"{ACTOR}.loss_agg_mode")
    if told == "seq-mean-token-sum-norm":
        return config.whole(f"{ACTOR}.loss_scale_factor") or config.positive("data.max_response_length")
    if told not in AGGREGATIONS:
        config.say(f"no loss of ours is aggregated as `{told}`: the mean over tokens stands in its place")
    return AGGREGATIONS.get(told, "token-mean")


def _terms(config: Config, flow: ShippedFlow) -> Iterator[tuple[str, Scalar]]:
    weight = config.number(f"{ACTOR}.entropy_coeff") or 0
    config.get(f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type")
    config.get("algorithm.kl_ctrl.kl_coef", "algorithm.kl_ctrl.type", "algorithm.kl_penalty")
    if flow.entropy:
        yield flow.entropy, weight
    elif weight:
        config.say(f"an entropy bonus of {weight:g} is left out: the flow `{flow.name}` has none")
    if not flow.kl:
        _say_left_out(config, flow)
        return
    in_loss = flow.kl.startswith("policy.update")
    loss, reward = config.number(f"{ACTOR}.kl_loss_coef"), config.number("algorithm.kl_ctrl.kl_coef")
    kinds = config.text(f"{ACTOR}.kl_loss_type"), config.text("algorithm.kl_penalty")
    if in_loss:
        yield flow.kl, loss if _kl_loss(config) else reward if _kl_reward(config) else 0.0
        if _kl_loss(config) and KL_ESTIMATORS.get(kinds[0]) != "k3":
            config.say(f"the KL in the loss is `{kinds[0]}`; the flow `{flow.name}` has k3")
        if _kl_reward(config):
            config.say(f"the KL is in the reward; the flow `{flow.name}` has it in its loss")
        return
    yield flow.kl, reward if _kl_reward(config) else 0.0
    yield "kl_estimate.estimator", KL_ESTIMATORS.get(kinds[1])
    if _kl_reward(config) and kinds[1] not in KL_ESTIMATORS:
        config.say(f"no flow estimates the KL in the reward as `{kinds[1]}`: the estimate of `{flow.name}` stands")
    if _kl_loss(config):
        config.say(f"the KL in the loss is left out: the flow `{flow.name}` has it in the reward")
    if config.text("algorithm.kl_ctrl.type") == "adaptive":
        config.get("algorithm.kl_ctrl.target_kl", "algorithm.kl_ctrl.horizon")
        config.say("the weight of the KL adapts in verl; the flow's stays as it is at first")


def _say_left_out(config: Config, flow: ShippedFlow) -> None:
    if _kl_loss(config) or _kl_reward(config):
        config.say(f"a KL to a reference is left out: the flow `{flow.name}` has none, nor the reference in its memory")


def _say(config: Config, flow: ShippedFlow, lag: int) -> None:
    """Say what a run does that no shipped flow has."""
    if config.flag(*(f"{where}.enable" for where in REWARD)):
        name = config.text(f"{REWARD[0]}.model_path", f"{REWARD[1]}.model_path", f"{REWARD[1]}.model.path")
        own = config.flag(*(f"{where}.enable_resource_pool" for where in REWARD))
        site = [config.whole(*(f"{where}.{key}" for where in REWARD)) for key in ("nnodes", "n_gpus_per_node")]
        where = f" with {(site[0] or 0) * (site[1] or 0)} of the run's devices" if own else ""
        config.say(f"the reward model{f' `{name}`' if name else ''}{where} is left out: shipped flows score by a rule")
    if config.text(f"{CORRECTION}.rollout_is") and flow.name != "decoupled_ppo":
        config.say("importance weights are left out: of the shipped flows only `decoupled_ppo` has them")
    bypasses, greedy = config.flag(f"{CORRECTION}.bypass_mode"), config.number(f"{ROLLOUT}.temperature") == 0
    # Where an engine draws what another trains, a run of ours reads the log-probs of all that it draws: but greedily.
    if greedy and not bypasses:
        config.say("verl computes log-probs of responses anew; the flow takes the sampler's: one forward pass less")
    if bypasses and not greedy:
        config.say("verl computes no log-probs of responses here; the forecast has them: one forward pass more")
    if lag and flow.name != "decoupled_ppo":
        config.say(f"responses are drawn up to {lag} updates ahead; the flow `{flow.name}` does not correct for that")
    if lag > STALE_AT_MOST:
        config.say(f"responses are drawn up to {lag} updates ahead; the plan has them {STALE_AT_MOST} ahead")
    for told in config.run.options:
        if told.key == "--config-name" and not _SHIPPED.fullmatch(told.text):
            config.say(f"what the configuration `{told.text}` says is not read: verl's defaults stand in its place")
