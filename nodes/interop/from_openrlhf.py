"""From OpenRLHF's flags to a flow, its settings, and where roles run. Flags are named as the version names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowgraph.cluster.plan import Layout, Offloaded, RoleSettings, Sharding
from flowgraph.errors import UsageError
from nodes.interop.char_reader import broken
from nodes.interop.commands import StartedCommand
from nodes.interop.config import Config, settings_text
from nodes.interop.imported import USUAL, Imported, SharedDevices, SystemRun, adapted
from nodes.interop.scalars import Scalar, is_number, scalar
from nodes.interop.shipped_flows import FLOWS, STALE_AT_MOST, ShippedFlow, placement_of

# Source: OpenRLHF, trainer/ppo_utils/experience_maker.py; those of GRPO's kind are told by their KL and their loss.
ESTIMATORS: Mapping[str, str] = {
    "gae": "ppo",
    "reinforce": "reinforce_pp",
    "reinforce_baseline": "reinforce_pp_baseline",
    "rloo": "rloo",
}
SHARDINGS: tuple[Sharding, ...] = ("none", "optimizer", "gradients", "full")
MODELS = {"policy": "actor", "critic": "critic", "ref": "ref"}  # what OpenRLHF calls them in its flags


def from_openrlhf(run: StartedCommand) -> Imported:
    """Read a run of OpenRLHF; raises UsageError for one without a model, or whose devices its layouts do not divide."""
    config = Config.of(run)
    flow = _flow(config)
    found = openrlhf_run(config, flow)
    _, prompt, response = _lengths(config)
    batch = config.positive("rollout.batch_size", "rollout_batch_size")
    settings = settings_text(_settings(config, flow, batch, response))
    models, unused = _models(config, flow), _unused(config, flow)
    _say(config, flow, found.lag)
    actor = next(part for part in found.parts if "policy.train" in part.roles)
    return Imported(
        system="openrlhf",
        version=config.known.version,
        flow=flow.name,
        settings=settings,
        models=models,
        unused=unused,
        batch=batch,
        prompt_tokens=prompt,
        response_tokens=response,
        devices=sum(part.devices for part in found.parts),
        devices_per_node=actor.devices_per_node,
        placement=placement_of(flow, found.parts),
        parts=found.parts,
        engines=found.engines,
        layouts=found.layouts,
        running=found.running,
        lag=min(found.lag, STALE_AT_MOST),
        ignored=config.ignored(),
        notes=tuple(config.notes),
        told=config.texts(),
        again=config.again(),
    )


def openrlhf_run(config: Config, flow: ShippedFlow) -> SystemRun:
    """Give where and how a run has the roles of a flow, by its flags."""
    parts, (total, _, _) = _parts(config, flow), _lengths(config)
    layouts = _layouts(config, flow, {role: part.devices for part in parts for role in part.roles})
    lag = config.positive("train.async_queue_size", "async_queue_size") if _async(config) else 0
    running = _running(config, flow, total, alone=len(parts) == 1)
    return SystemRun(parts, {"train": "fsdp", "sample": "vllm", "infer": "fsdp"}, layouts, running, lag)


def _async(config: Config) -> bool:
    return config.flag("train.async_enable", "async_train")


def _weight(config: Config) -> float:
    return config.number("algo.kl.init_coef", "init_kl_coef") or 0.0


def _kl_loss(config: Config) -> bool:
    return config.flag("algo.kl.use_loss", "use_kl_loss") and _weight(config) > 0


def _flow(config: Config) -> ShippedFlow:
    """Choose the shipped flow that computes what the run does, or the nearest, which is said."""
    estimator = config.text("algo.advantage.estimator", "advantage_estimator")
    filters = config.flag("algo.dynamic_filtering_enable", "dynamic_filtering")
    if estimator in ESTIMATORS:
        if config.text("actor.policy_loss_type", "policy_loss_type") == "gspo":
            config.say(f"the loss of GSPO is not that of {ESTIMATORS[estimator]}, which stands in its place")
        if filters:
            config.say(
                f"groups without signal are drawn anew; the flow `{ESTIMATORS[estimator]}` trains on all of them"
            )
        return FLOWS[ESTIMATORS[estimator]]
    if estimator not in ("group_norm", "dr_grpo"):
        config.say(f"no shipped flow has OpenRLHF's advantages `{estimator}`: those of GRPO stand in their place")
    gspo = config.text("actor.policy_loss_type", "policy_loss_type") == "gspo"
    if filters:
        if gspo:
            config.say("no shipped flow draws groups anew with the loss of GSPO: the clipped surrogate of `dapo` does")
        return FLOWS["dapo"]
    if gspo:
        return FLOWS["gspo"]
    if _weight(config) > 0:
        return FLOWS["grpo"]
    if _async(config):
        config.say("weights that are older than the newest: the flow is `decoupled_ppo`, which corrects for them")
        return FLOWS["decoupled_ppo"]
    return FLOWS["dr_grpo"]


def _unused(config: Config, flow: ShippedFlow) -> tuple[str, ...]:
    if "ref" not in flow.params or _weight(config) > 0:
        return ()
    config.say(f"OpenRLHF runs no reference here; the flow `{flow.name}` has one, which the plan does without")
    return ("ref",)


def _lengths(config: Config) -> tuple[int, int, int]:
    """Give the most tokens of a row, its prompt and its response; older versions tell the two, newer the whole."""
    prompt, response = (
        config.counted("prompt_max_len"),
        config.counted("rollout.max_new_tokens", "max_new_tokens", "generate_max_len"),
    )
    if prompt and response:
        return prompt + response, prompt, response
    total = config.positive("data.max_len", "max_len")
    if response is None or response >= total:
        config.say(f"responses may take what prompts leave of {total} tokens: half each is assumed")
        response = total - total // 2
    return total, total - response, response


def _site(config: Config, model: str) -> tuple[int, int]:
    nodes, each = (
        (f"{model}.num_nodes", f"{model}_num_nodes"),
        (
            f"{model}.num_gpus_per_node",
            f"{model}_num_gpus_per_node",
        ),
    )
    return config.positive(*nodes), config.positive(*each)


def _sampling(config: Config) -> tuple[int, int]:
    engines = config.whole("vllm.num_engines", "vllm_num_engines")
    if not engines:
        raise UsageError("samples without vLLM, which no plan has", where="--vllm.num_engines")
    return config.positive("vllm.num_engines", "vllm_num_engines"), config.positive(
        "vllm.tensor_parallel_size", "vllm_tensor_parallel_size"
    )


def _parts(config: Config, flow: ShippedFlow) -> tuple[SharedDevices, ...]:
    """Give who shares devices: all, or the actor and the reference, and each other by itself."""
    actor = _site(config, "actor")
    sites = {param: _site(config, name) for param, name in MODELS.items() if param in flow.params}
    everything = config.flag("train.colocate_all", "colocate_all_models")
    engines, tensor = _sampling(config)
    if everything and not _async(config):
        if engines * tensor != actor[0] * actor[1]:
            what = f"{engines} engines of {tensor} devices are not the {actor[0] * actor[1]} devices that they share"
            raise broken(what, config.run.line, "vllm_num_engines")
        return (SharedDevices(flow.roles, actor[0] * actor[1], actor[1]),)
    sampling = SharedDevices(("policy.sample",), engines * tensor, _on_one_machine(engines, tensor))
    if everything:
        roles = tuple(role for role in flow.roles if role != "policy.sample")
        return (SharedDevices(roles, actor[0] * actor[1], actor[1]), sampling)
    together = config.flag("train.colocate_actor_ref", "colocate_actor_ref") or _weight(config) <= 0
    beside = together and "ref" in flow.params  # one that does not run takes no devices
    config.get("train.colocate_critic_reward", "colocate_critic_reward")
    if beside and sites["ref"] != actor and _weight(config) > 0:
        what = (
            f"the reference has {sites['ref']} machines and devices of each, the actor that it shares them with {actor}"
        )
        raise broken(what, config.run.line, "colocate_actor_ref")
    home = ("policy.train", "ref.infer") if beside else ("policy.train",)
    found = [SharedDevices(home, actor[0] * actor[1], actor[1]), sampling]
    for param, role in (("critic", "critic.train"), ("ref", "ref.infer")):
        if param in sites and role not in home:
            nodes, each = sites[param]
            found.append(SharedDevices((role,), nodes * each, each))
    return tuple(found)


def _on_one_machine(engines: int, tensor: int) -> int:
    """Give the devices that engines take of a machine: whole engines, as many as it has room for."""
    return min(engines * tensor, max(1, USUAL // tensor) * tensor if tensor <= USUAL else USUAL)


def _fsdp(config: Config) -> bool:
    """Say whether a run trains with FSDP2, which versions after those that are known do."""
    told = [key for key in config.told if key.startswith(("fsdp.", "fsdp2_"))]
    return bool(told) or config.text("backend") == "fsdp2"


def _cut(config: Config) -> tuple[int, int]:
    """Give the degrees of tensor and of sequence parallelism, of all that is trained or read."""
    tensor = config.counted("ds.tensor_parallel_size", "ds_tensor_parallel_size", "fsdp.tp_size") or 1
    ring = config.counted("ds.ring_attn_size", "ring_attn_size", "fsdp.cp_size") or 1
    return tensor, ring


def _layouts(config: Config, flow: ShippedFlow, devices: Mapping[str, int]) -> dict[str, Layout]:
    tensor, ring = _cut(config)
    stage = 3 if _fsdp(config) else config.whole("ds.zero_stage", "zero_stage")
    if stage is None or stage not in range(4):
        told = config.told.get("zero_stage") or config.told.get("ds.zero_stage")
        raise broken("should be 0, 1, 2 or 3", told.line if told else config.run.line, "zero_stage")
    engines, engine_tensor = _sampling(config)
    found = dict[str, Layout]()
    for role in flow.roles:
        if role == "policy.sample":
            found[role] = Layout(data=engines, tensor=engine_tensor)
            continue
        if devices[role] % (tensor * ring):
            raise broken(f"{tensor * ring} does not divide the {devices[role]} devices of {role}", config.run.line)
        data = devices[role] // (tensor * ring)
        sharding = SHARDINGS[stage] if devices[role] > 1 else "none"
        found[role] = Layout(data=data, tensor=tensor, sequence=ring, sharding=sharding)
    return found


def _running(config: Config, flow: ShippedFlow, total_tokens: int, alone: bool) -> dict[str, RoleSettings]:
    checkpoints = config.flag("actor.gradient_checkpointing_enable", "gradient_checkpointing")
    asked = config.flag("ds.enable_sleep", "deepspeed_enable_sleep", "fsdp.enable_sleep", "fsdp2_enable_sleep")
    sleeps = alone and asked
    adam = config.flag("ds.adam_offload", "adam_offload")
    trained: tuple[Offloaded, ...] = ("optimizer",) if adam and not sleeps else ()
    if config.flag("fsdp.cpu_offload", "fsdp2_cpu_offload"):
        trained = ("parameters", "gradients", "optimizer")
    frozen = config.flag("ref.offload", "ref_reward_offload")
    budgets = {use: _budget(config, use, total_tokens) for use in ("train", "infer")}
    found = dict[str, RoleSettings]()
    for role in flow.roles:
        use = role.rpartition(".")[2]
        if use == "sample":
            found[role] = RoleSettings(
                precision="bfloat16",
                cache_share=_share(config),
                sleeps=alone and config.flag("vllm.enable_sleep", "vllm_enable_sleep"),
            )
        else:
            found[role] = RoleSettings(
                precision="bfloat16",
                checkpointing="full" if checkpoints and use == "train" else "none",
                offload=trained if use == "train" else ("parameters",) if frozen else (),
                micro_batch_tokens=budgets[use],
                sleeps=sleeps and use == "train",
            )
    return found


def _share(config: Config) -> float:
    value = config.number("vllm.gpu_memory_utilization", "vllm_gpu_memory_utilization")
    if value is None or not 0 < value <= 1:
        raise broken("should be above 0, and 1 at most", config.run.line, "vllm_gpu_memory_utilization")
    return float(value)


def _budget(config: Config, use: str, total_tokens: int) -> int | None:
    """Give the tokens that go through at once: a budget, or as many rows as were told, each as long as can be.

    Source: OpenRLHF's utils/seqlen_balancing.py: the budget of a device is for all that share a row.
    """
    tensor, ring = _cut(config)
    if config.flag("train.dynamic_batch_enable", "use_dynamic_batch"):
        train = config.positive("train.max_tokens_per_gpu", "train_max_tokens_per_gpu")
        drawn = config.counted("rollout.max_tokens_per_gpu", "rollout_max_tokens_per_gpu")
        config.get(*(f"{name}.micro_batch_size" for name in ("train", "rollout")))
        config.get("micro_train_batch_size", "micro_rollout_batch_size")
        return (train if use == "train" else drawn or train) * ring * tensor
    name = "train" if use == "train" else "rollout"
    rows = config.counted(f"{name}.micro_batch_size", f"micro_{name}_batch_size")
    return None if rows is None else rows * total_tokens


def _models(config: Config, flow: ShippedFlow) -> dict[str, str]:
    policy = config.text("actor.model_name_or_path", "pretrain")
    if not policy:
        raise UsageError("names no model", where="--pretrain", hint="or --actor.model_name_or_path, in newer versions")
    reward = config.text("reward.model_name_or_path", "reward_pretrain").split(",")[0]
    rank = config.whole("ds.lora.rank", "lora_rank") or 0
    alpha = config.positive("ds.lora.alpha", "lora_alpha") if rank > 0 else 0
    remote = config.text("reward.remote_url", "remote_rm_url")
    critic = config.text("critic.model_name_or_path", "critic_pretrain") or (policy if remote else reward or policy)
    found = {"policy": adapted(policy, rank, alpha), "critic": adapted(critic, rank, alpha), "ref": policy}
    if reward and not remote:
        nodes, each = _site(config, "reward")
        shared = config.flag("train.colocate_all", "colocate_all_models")
        beside = config.flag("train.colocate_critic_reward", "colocate_critic_reward") and "critic" in flow.params
        where = "" if shared or beside else f" with {nodes * each} of the run's devices"
        config.say(f"the reward model `{reward}`{where} is left out: shipped flows score by a rule")
    return {param: model for param, model in found.items() if param in flow.params}


def _settings(config: Config, flow: ShippedFlow, batch: int, response: int) -> Iterator[tuple[str, Scalar]]:
    rows = config.positive("rollout.n_samples_per_prompt", "n_samples_per_prompt")
    yield f"{flow.sampler}.n", rows
    yield f"{flow.sampler}.temperature", config.number("rollout.temperature", "temperature")
    yield f"{flow.sampler}.max_tokens", response
    if flow.name == "dapo":
        yield "policy.refill.groups", batch
        yield from _overlong(config, response)
    minibatch = max(1, config.positive("train.batch_size", "train_batch_size") // rows)
    for name in ("policy", "critic"):
        if name in flow.params:
            yield from _update(config, name, minibatch if minibatch < batch else 0)
    warm = config.whole("critic.freezing_steps", "freezing_actor_steps")
    yield "policy.update.start_step", max(0, warm or 0) if "critic" in flow.params else None
    yield from _surrogate(config, flow)
    yield from _terms(config, flow)


def _update(config: Config, name: str, minibatch: int) -> Iterator[tuple[str, Scalar]]:
    old = "actor" if name == "policy" else "critic"
    yield f"{name}.update.lr", config.number(f"{old}.adam.lr", f"{old}_learning_rate")
    yield f"{name}.update.weight_decay", config.number(f"{old}.adam.weight_decay", "l2")
    yield f"{name}.update.max_grad_norm", config.number(f"{old}.max_norm", "max_norm")
    yield f"{name}.update.epochs", config.positive("train.max_epochs", "max_epochs")
    yield f"{name}.update.minibatch", minibatch


def _overlong(config: Config, response: int) -> Iterator[tuple[str, Scalar]]:
    buffer = config.whole("reward.overlong_buffer_len", "overlong_buffer_len")
    factor = config.number("reward.overlong_penalty_factor", "overlong_penalty_factor")
    yield "overlong_penalty.max_tokens", response
    yield "overlong_penalty.buffer", buffer or 1
    yield "overlong_penalty.factor", factor if buffer else 0.0


def _surrogate(config: Config, flow: ShippedFlow) -> Iterator[tuple[str, Scalar]]:
    eps = config.number("actor.eps_clip", "eps_clip")
    both = config.text("actor.eps_clip_low_high", "eps_clip_low_high").split()
    low, high = map(scalar, both) if len(both) == 2 else (eps, eps)
    if both and not (len(both) == 2 and is_number(low) and is_number(high)):
        raise broken("should be two numbers", config.run.line, "eps_clip_low_high")
    if flow.surrogate in ("clipped", "gspo_loss"):
        yield f"{flow.loss}.eps", low
        yield f"{flow.loss}.eps_high", high if high != low or flow.name in ("dapo", "gspo") else None
    if flow.surrogate == "clipped":
        yield f"{flow.loss}.dual", config.number("actor.dual_clip", "dual_clip")
    if flow.surrogate == "clipped" and (flow.name == "dr_grpo" or config.has("actor.loss_agg_mode")):
        told = config.text("actor.loss_agg_mode")
        yield f"{flow.loss}.aggregation", "sequence-mean" if told == "seq-mean-token-mean" else "token-mean"
    if flow.name == "ppo":
        yield "gae.gamma", config.number("algo.advantage.gamma", "gamma")
        yield "gae.lam", config.number("algo.advantage.lambd", "lambd")
        yield "critic.update.value_loss.clip", config.number("critic.value_clip", "value_clip")
    if flow.name in ("grpo", "dr_grpo", "dapo", "decoupled_ppo", "gspo"):
        whole = config.text("algo.advantage.estimator", "advantage_estimator") == "dr_grpo"
        plain = config.flag("algo.advantage.no_std_norm", "no_advantage_std_norm")
        yield "group_normalize.deviation", not (whole or plain)


def _terms(config: Config, flow: ShippedFlow) -> Iterator[tuple[str, Scalar]]:
    entropy = config.number("actor.entropy_coef", "entropy_loss_coef") or 0
    if flow.entropy:
        yield flow.entropy, entropy
    elif entropy:
        config.say(f"an entropy bonus of {entropy:g} is left out: the flow `{flow.name}` has none")
    old = "k3" if config.flag("use_kl_estimator_k3") and not config.has("kl_estimator") else ""
    estimator = old or config.text("algo.kl.estimator", "kl_estimator")
    in_loss = flow.kl.startswith("policy.update")
    if flow.kl:
        yield flow.kl, _weight(config)
    elif _weight(config) > 0:
        config.say(f"a KL to a reference is left out: the flow `{flow.name}` has none, nor the reference in its memory")
    if flow.kl and not in_loss:
        yield "kl_estimate.estimator", estimator
    if flow.kl and in_loss and estimator != "k3":
        config.say(f"the KL is estimated by {estimator}; the flow `{flow.name}` has k3")
    if flow.kl and in_loss != _kl_loss(config) and _weight(config) > 0:
        config.say(f"the KL is in the {'reward' if in_loss else 'loss'}; the flow `{flow.name}` has it elsewhere")
    if config.number("algo.kl.target", "kl_target") is not None:
        config.get("algo.kl.horizon", "kl_horizon")
        config.say("the weight of the KL adapts in OpenRLHF; the flow's stays as it is at first")


def _say(config: Config, flow: ShippedFlow, lag: int) -> None:
    if config.number("rollout.temperature", "temperature") == 0:  # what is drawn greedily is not measured
        config.say("OpenRLHF computes log-probs of responses anew; the flow takes the sampler's: one forward pass less")
    if not _fsdp(config):
        config.say("OpenRLHF trains with DeepSpeed; the plan has FSDP in its place, sharded as its stage says")
    if lag and flow.name != "decoupled_ppo":
        config.say(f"responses are drawn up to {lag} batches ahead; the flow `{flow.name}` does not correct for that")
    if lag > STALE_AT_MOST:
        config.say(f"responses are drawn up to {lag} batches ahead; the plan has them {STALE_AT_MOST} ahead")
