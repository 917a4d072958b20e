"""From OpenRLHF's flags to a flow, its settings, and where roles run. Each flag has the names of all versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowgraph.cluster.plan import Layout, Offloaded, RoleSettings, Sharding
from flowgraph.errors import UsageError
from nodes.interop.config import Config, Scalar, is_number, scalar
from nodes.interop.imported import USUAL_DEVICES, Imported, SharedDevices, SystemRun, model_with_adapters
from nodes.interop.shell import error_at
from nodes.interop.shipped_flows import FLOWS, GROUP_NORMALIZED, MAX_STALENESS, ShippedFlow

# Source: OpenRLHF, trainer/ppo_utils/experience_maker.py; the flow of GRPO's depends on the KL and the loss.
ESTIMATORS: Mapping[str, str] = {
    "gae": "ppo",
    "reinforce": "reinforce_pp",
    "reinforce_baseline": "reinforce_pp_baseline",
    "rloo": "rloo",
}
SHARDINGS: tuple[Sharding, ...] = ("none", "optimizer", "gradients", "full")  # by ZeRO stage
MODELS = {"policy": "actor", "critic": "critic", "ref": "ref"}  # in OpenRLHF's flags

ESTIMATOR = ("algo.advantage.estimator", "advantage_estimator")
LOSS = ("actor.policy_loss_type", "policy_loss_type")
COLOCATE_ALL = ("train.colocate_all", "colocate_all_models")
TEMPERATURE = ("rollout.temperature", "temperature")
BATCH = ("rollout.batch_size", "rollout_batch_size")
ENGINES = ("vllm.num_engines", "vllm_num_engines")


def read_openrlhf(config: Config) -> Imported:
    """Return the run that OpenRLHF's flags describe as one of the shipped flows, with a note on each difference.

    Raises UsageError if the flags name no model or no vLLM engines, if a number or a ZeRO stage is invalid, or if the
    parallel degrees or shared devices of the roles do not fit together.
    """
    flow = _flow(config)
    run = openrlhf_run(config, flow)
    _, prompt, response = _lengths(config)
    settings, models = list(_settings(config, flow, response)), _models(config, flow)
    unused = ("ref",) if "ref" in flow.params and _kl_weight(config) <= 0 else ()
    if unused:
        config.note(f"OpenRLHF runs no reference here; the plan leaves out that of the flow `{flow.name}`")
    if config.number(*TEMPERATURE) == 0:  # our runs do not recompute the log-probs of greedy samples
        config.note("OpenRLHF recomputes log-probs of responses; the flow uses the sampler's: one forward pass less")
    if not _uses_fsdp(config):
        config.note("OpenRLHF trains with DeepSpeed; FSDP replaces it in the plan, sharded by its stage")
    if run.lag and flow.name != "decoupled_ppo":
        config.note(f"responses are up to {run.lag} batches old; the flow `{flow.name}` does not correct for that")
    if run.lag > MAX_STALENESS:
        config.note(f"responses are up to {run.lag} batches old; in the plan up to {MAX_STALENESS}")
    return config.imported(
        flow,
        run,
        settings=settings,
        models=models,
        unused=unused,
        batch=config.positive(*BATCH),
        prompt_tokens=prompt,
        response_tokens=response,
    )


def openrlhf_run(config: Config, flow: ShippedFlow) -> SystemRun:
    """Return the devices, layouts and settings of a flow's roles in an OpenRLHF run; notes may be added to `config`.

    Raises UsageError for a run without vLLM engines, for an invalid number or ZeRO stage, and if the parallel degrees
    or shared devices of the roles do not fit together.
    """
    parts, total_tokens = _parts(config, flow), _lengths(config)[0]
    tensor, sequence = _degrees(config)
    stage = 3 if _uses_fsdp(config) else config.integer("ds.zero_stage", "zero_stage")
    if stage is None or stage not in range(4):
        raise config.error("must be 0, 1, 2 or 3", "zero_stage", "ds.zero_stage")
    layouts = dict[str, Layout]()
    for role, devices in {role: part.devices for part in parts for role in part.roles}.items():
        if role == "policy.sample":
            engines, engine_tensor = _engines(config)
            layouts[role] = Layout(data=engines, tensor=engine_tensor)
            continue
        data, remainder = divmod(devices, tensor * sequence)
        if remainder:
            raise error_at(config.run.line, f"{tensor * sequence} does not divide the {devices} devices of {role}")
        sharding = SHARDINGS[stage] if devices > 1 else "none"
        layouts[role] = Layout(data=data, tensor=tensor, sequence=sequence, sharding=sharding)
    lag = config.positive("train.async_queue_size", "async_queue_size") if _is_async(config) else 0
    running = _running(config, flow, total_tokens, shares_all=len(parts) == 1)
    return SystemRun(parts, {"train": "fsdp", "sample": "vllm", "infer": "fsdp"}, layouts, running, lag)


def _is_async(config: Config) -> bool:
    return config.flag("train.async_enable", "async_train")


def _kl_weight(config: Config) -> float:
    return config.number("algo.kl.init_coef", "init_kl_coef") or 0.0


def _flow(config: Config) -> ShippedFlow:
    estimator, gspo = config.text(*ESTIMATOR), config.text(*LOSS) == "gspo"
    filters = config.flag("algo.dynamic_filtering_enable", "dynamic_filtering")
    if name := ESTIMATORS.get(estimator):
        if gspo:
            config.note(f"the loss of `{name}` replaces that of GSPO")
        if filters:
            config.note(f"the run replaces groups without signal; the flow `{name}` trains on all groups")
        return FLOWS[name]
    if estimator not in ("group_norm", "dr_grpo"):
        config.note(f"no shipped flow has OpenRLHF's advantages `{estimator}`: those of GRPO replace them")
    if filters:
        if gspo:
            config.note("no shipped flow replaces groups with the loss of GSPO: `dapo` has the clipped surrogate")
        return FLOWS["dapo"]
    if gspo:
        return FLOWS["gspo"]
    if _kl_weight(config) > 0:
        return FLOWS["grpo"]
    if _is_async(config):
        config.note("the run generates with older weights: the flow is `decoupled_ppo`, which corrects for them")
        return FLOWS["decoupled_ppo"]
    return FLOWS["dr_grpo"]


def _lengths(config: Config) -> tuple[int, int, int]:
    """Return the maximum tokens of a row, its prompt and its response; newer versions have no flag for the prompt."""
    prompt = config.optional_positive("prompt_max_len")
    response = config.optional_positive("rollout.max_new_tokens", "max_new_tokens", "generate_max_len")
    if prompt and response:
        return prompt + response, prompt, response
    total = config.positive("data.max_len", "max_len")
    if response is None or response >= total:
        config.note(f"a prompt and its response share {total} tokens: half for each is assumed")
        response = total - total // 2
    return total, total - response, response


def _devices(config: Config, model: str) -> tuple[int, int]:
    return (
        config.positive(f"{model}.num_nodes", f"{model}_num_nodes"),
        config.positive(f"{model}.num_gpus_per_node", f"{model}_num_gpus_per_node"),
    )


def _engines(config: Config) -> tuple[int, int]:
    if not config.integer(*ENGINES):
        raise UsageError("samples without vLLM, which no plan has", where="--vllm.num_engines")
    return config.positive(*ENGINES), config.positive("vllm.tensor_parallel_size", "vllm_tensor_parallel_size")


def _parts(config: Config, flow: ShippedFlow) -> tuple[SharedDevices, ...]:
    nodes = {param: _devices(config, name) for param, name in MODELS.items() if param in flow.params}
    actor_devices, actor_per_node = nodes["policy"][0] * nodes["policy"][1], nodes["policy"][1]
    colocates_all, is_async = config.flag(*COLOCATE_ALL), _is_async(config)
    engines, tensor = _engines(config)
    if colocates_all and not is_async:
        if engines * tensor != actor_devices:
            what = f"{engines} engines of {tensor} devices are not the {actor_devices} devices that they share"
            raise error_at(config.run.line, what, "vllm_num_engines")
        return (SharedDevices(flow.roles, actor_devices, actor_per_node),)
    per_node = USUAL_DEVICES // tensor * tensor or USUAL_DEVICES  # whole engines, unless one is larger than a machine
    sampling = SharedDevices(("policy.sample",), engines * tensor, min(engines * tensor, per_node))
    if colocates_all:
        roles = tuple(role for role in flow.roles if role != "policy.sample")
        return (SharedDevices(roles, actor_devices, actor_per_node), sampling)
    config.get("train.colocate_critic_reward", "colocate_critic_reward")
    # A reference that does not run takes no devices.
    shares = config.flag("train.colocate_actor_ref", "colocate_actor_ref") or _kl_weight(config) <= 0
    if shares and "ref" in flow.params and nodes["ref"] != nodes["policy"] and _kl_weight(config) > 0:
        reference, actor = nodes["ref"], nodes["policy"]
        what = f"the reference has {reference} machines and devices of each, the actor that it shares them with {actor}"
        raise error_at(config.run.line, what, "colocate_actor_ref")
    home = ("policy.train", "ref.infer") if shares and "ref" in flow.params else ("policy.train",)
    parts = [SharedDevices(home, actor_devices, actor_per_node), sampling]
    for param, role in (("critic", "critic.train"), ("ref", "ref.infer")):
        if param in nodes and role not in home:
            machines, per_node = nodes[param]
            parts.append(SharedDevices((role,), machines * per_node, per_node))
    return tuple(parts)


def _uses_fsdp(config: Config) -> bool:
    return any(key.startswith(("fsdp.", "fsdp2_")) for key in config.overrides) or config.text("backend") == "fsdp2"


def _degrees(config: Config) -> tuple[int, int]:
    tensor = config.optional_positive("ds.tensor_parallel_size", "ds_tensor_parallel_size", "fsdp.tp_size") or 1
    sequence = config.optional_positive("ds.ring_attn_size", "ring_attn_size", "fsdp.cp_size") or 1
    return tensor, sequence


def _running(config: Config, flow: ShippedFlow, total_tokens: int, shares_all: bool) -> dict[str, RoleSettings]:
    checkpoints = config.flag("actor.gradient_checkpointing_enable", "gradient_checkpointing")
    sleeps = config.flag("ds.enable_sleep", "deepspeed_enable_sleep", "fsdp.enable_sleep", "fsdp2_enable_sleep")
    sleeps = sleeps and shares_all
    steps_on_host = config.flag("ds.adam_offload", "adam_offload") and not sleeps
    trained: tuple[Offloaded, ...] = ("optimizer",) if steps_on_host else ()
    if config.flag("fsdp.cpu_offload", "fsdp2_cpu_offload"):
        trained = ("parameters", "gradients", "optimizer")
    train = RoleSettings(
        precision="bfloat16",
        checkpointing="full" if checkpoints else "none",
        offload=trained,
        micro_batch_tokens=_token_budget(config, "train", total_tokens),
        sleeps=sleeps,
    )
    infer = RoleSettings(
        precision="bfloat16",
        offload=("parameters",) if config.flag("ref.offload", "ref_reward_offload") else (),
        micro_batch_tokens=_token_budget(config, "rollout", total_tokens),
    )
    sample = RoleSettings(
        precision="bfloat16",
        cache_share=config.share("vllm.gpu_memory_utilization", "vllm_gpu_memory_utilization"),
        sleeps=shares_all and config.flag("vllm.enable_sleep", "vllm_enable_sleep"),
    )
    by_use = {"train": train, "infer": infer, "sample": sample}
    return {role: by_use[role.rpartition(".")[2]] for role in flow.roles}


def _token_budget(config: Config, phase: str, total_tokens: int) -> int | None:
    """Return the tokens of a micro-batch: the run's budget, or its number of rows, each of the maximum length.

    Source: OpenRLHF's utils/seqlen_balancing.py: the budget of a device is for all devices that share a row.
    """
    if config.flag("train.dynamic_batch_enable", "use_dynamic_batch"):
        train = config.positive("train.max_tokens_per_gpu", "train_max_tokens_per_gpu")
        rollout = config.optional_positive("rollout.max_tokens_per_gpu", "rollout_max_tokens_per_gpu")
        config.get("train.micro_batch_size", "rollout.micro_batch_size")
        config.get("micro_train_batch_size", "micro_rollout_batch_size")
        tensor, sequence = _degrees(config)
        return (train if phase == "train" else rollout or train) * sequence * tensor
    rows = config.optional_positive(f"{phase}.micro_batch_size", f"micro_{phase}_batch_size")
    return None if rows is None else rows * total_tokens


def _models(config: Config, flow: ShippedFlow) -> dict[str, str]:
    policy = config.text("actor.model_name_or_path", "pretrain")
    if not policy:
        raise UsageError("names no model", where="--pretrain", hint="or --actor.model_name_or_path, in newer versions")
    reward = config.text("reward.model_name_or_path", "reward_pretrain").split(",")[0]
    rank = config.integer("ds.lora.rank", "lora_rank") or 0
    alpha = config.positive("ds.lora.alpha", "lora_alpha") if rank > 0 else 0
    remote = config.text("reward.remote_url", "remote_rm_url")
    critic = config.text("critic.model_name_or_path", "critic_pretrain") or (policy if remote else reward or policy)
    models = {
        "policy": model_with_adapters(policy, rank, alpha),
        "critic": model_with_adapters(critic, rank, alpha),
        "ref": policy,
    }
    if reward and not remote:
        nodes, per_node = _devices(config, "reward")
        with_critic = config.flag("train.colocate_critic_reward", "colocate_critic_reward") and "critic" in flow.params
        shares = config.flag(*COLOCATE_ALL) or with_critic
        devices = "" if shares else f" with {nodes * per_node} of the run's devices"
        config.note(f"the reward model `{reward}`{devices} is left out: shipped flows score by a rule")
    return {param: model for param, model in models.items() if param in flow.params}


def _settings(config: Config, flow: ShippedFlow, response: int) -> Iterator[tuple[str, Scalar]]:
    batch = config.positive(*BATCH)
    rows = config.positive("rollout.n_samples_per_prompt", "n_samples_per_prompt")
    yield f"{flow.sampler}.n", rows
    yield f"{flow.sampler}.temperature", config.number(*TEMPERATURE)
    top_p = config.share("rollout.top_p", "top_p")
    yield f"{flow.sampler}.top_p", top_p if top_p < 1 else None
    if top_p < 1:
        config.note("the run trains log-probs of all tokens; the flow those of the tokens that top_p keeps")
    yield f"{flow.sampler}.max_tokens", response
    if flow.name == "dapo":
        yield "policy.refill.groups", batch
        buffer = config.integer("reward.overlong_buffer_len", "overlong_buffer_len")
        factor = config.number("reward.overlong_penalty_factor", "overlong_penalty_factor")
        yield "overlong_penalty.max_tokens", response
        yield "overlong_penalty.buffer", buffer or 1
        yield "overlong_penalty.factor", factor if buffer else 0.0
    minibatch = max(1, config.positive("train.batch_size", "train_batch_size") // rows)
    for model, prefix in (("policy", "actor"), ("critic", "critic")):
        if model in flow.params:
            yield f"{model}.update.lr", config.number(f"{prefix}.adam.lr", f"{prefix}_learning_rate")
            yield f"{model}.update.weight_decay", config.number(f"{prefix}.adam.weight_decay", "l2")
            yield f"{model}.update.max_grad_norm", config.number(f"{prefix}.max_norm", "max_norm")
            yield f"{model}.update.epochs", config.positive("train.max_epochs", "max_epochs")
            yield f"{model}.update.minibatch", minibatch if minibatch < batch else 0
    warmup = config.integer("critic.freezing_steps", "freezing_actor_steps")
    yield "policy.update.start_step", max(0, warmup or 0) if "critic" in flow.params else None
    yield from _surrogate(config, flow)
    yield from _terms(config, flow)


def _surrogate(config: Config, flow: ShippedFlow) -> Iterator[tuple[str, Scalar]]:
    eps = config.number("actor.eps_clip", "eps_clip")
    bounds = config.text("actor.eps_clip_low_high", "eps_clip_low_high").split()
    low, high = map(scalar, bounds) if len(bounds) == 2 else (eps, eps)
    if bounds and not (len(bounds) == 2 and is_number(low) and is_number(high)):
        raise config.error("must be two numbers", "eps_clip_low_high", "actor.eps_clip_low_high")
    if flow.surrogate in ("clipped", "gspo_loss"):
        yield f"{flow.loss}.eps", low
        yield f"{flow.loss}.eps_high", high if high != low or flow.name in ("dapo", "gspo") else None
    if flow.surrogate == "clipped":
        yield f"{flow.loss}.dual", config.number("actor.dual_clip", "dual_clip")
    if flow.surrogate == "clipped" and (flow.name == "dr_grpo" or config.has("actor.loss_agg_mode")):
        aggregation = config.text("actor.loss_agg_mode")
        yield f"{flow.loss}.aggregation", "sequence-mean" if aggregation == "seq-mean-token-mean" else "token-mean"
    if flow.name == "ppo":
        yield "gae.gamma", config.number("algo.advantage.gamma", "gamma")
        yield "gae.lam", config.number("algo.advantage.lambd", "lambd")
        yield "critic.update.value_loss.clip", config.number("critic.value_clip", "value_clip")
    if flow.name in GROUP_NORMALIZED:
        no_deviation = config.flag("algo.advantage.no_std_norm", "no_advantage_std_norm")
        yield "group_normalize.deviation", not (config.text(*ESTIMATOR) == "dr_grpo" or no_deviation)


def _terms(config: Config, flow: ShippedFlow) -> Iterator[tuple[str, Scalar]]:
    entropy = config.number("actor.entropy_coef", "entropy_loss_coef") or 0
    if flow.entropy:
        yield flow.entropy, entropy
    elif entropy:
        config.note(f"the entropy bonus of {entropy:g} is left out: the flow `{flow.name}` has none")
    older = config.flag("use_kl_estimator_k3") and not config.has("kl_estimator")
    estimator = "k3" if older else config.text("algo.kl.estimator", "kl_estimator")
    weight = _kl_weight(config)
    if flow.kl:
        in_loss = config.flag("algo.kl.use_loss", "use_kl_loss") and weight > 0
        yield flow.kl, weight
        if not flow.kl_in_loss:
            yield "kl_estimate.estimator", estimator
        elif estimator != "k3":
            config.note(f"the run estimates the KL by {estimator}; the flow `{flow.name}` by k3")
        if flow.kl_in_loss != in_loss and weight > 0:
            term, place = ("reward", "loss") if flow.kl_in_loss else ("loss", "reward")
            config.note(f"the run has the KL in the {term}; the flow `{flow.name}` has it in the {place}")
    elif weight > 0:
        config.note(f"the KL to a reference is left out, and the reference: the flow `{flow.name}` has neither")
    if config.number("algo.kl.target", "kl_target") is not None:
        config.get("algo.kl.horizon", "kl_horizon")
        config.note("OpenRLHF adapts the weight of the KL; the flow keeps its initial weight")
