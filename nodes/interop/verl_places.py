"""Where verl's keys put its models: the devices of each part, how it is cut, and how it runs."""

from __future__ import annotations

from collections.abc import Mapping

from flowgraph.analysis.roles import Use
from flowgraph.cluster.plan import Checkpointing, Layout, Offloaded, RoleSettings, Sharding
from nodes.interop.char_reader import broken
from nodes.interop.config import Config
from nodes.interop.shipped_flows import ShippedFlow

ACTOR, REF, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
FUSED = f"{MODEL}.use_fused_kernels"
MOST_DEVICES = 65_536  # as many as `flowgraph.cluster.cluster` takes: so that their divisors are found at once
SAMPLERS = ("vllm", "sglang", "trtllm")


def layouts_of(config: Config, flow: ShippedFlow, main: int, sampling: int) -> tuple[dict[str, Layout], dict[Use, str]]:
    """Give how each role is cut, and the engines by use."""
    if max(main, sampling) > MOST_DEVICES:
        what = f"{max(main, sampling):,} devices, where a cluster has at most {MOST_DEVICES:,}"
        raise broken(what, config.run.line, "nnodes")
    trainer = _trainer(config)
    found = {"policy.train": _trained(config, ACTOR, _own(config, ACTOR, trainer), main, trainer)}
    found["policy.sample"] = _drawing(config, sampling)
    if "critic" in flow.params:
        found["critic.train"] = _trained(config, "critic", _own(config, "critic", trainer), main, trainer)
    if "ref" in flow.params:
        _say_of_width(config, trainer)
        found["ref.infer"] = _trained(config, REF, _own(config, REF, trainer), main, trainer)
    engine = "megatron" if trainer == "megatron" else "fsdp"
    return found, {"train": engine, "sample": _sampler(config), "infer": engine}


def _say_of_width(config: Config, trainer: str) -> None:
    """Say that verl's FSDP holds a reference in float32, which its own default is from 0.7 on."""
    if trainer == "fsdp" and config.text(f"{REF}.fsdp_config.model_dtype") in ("fp32", "float32"):
        config.say("verl holds the reference's weights in float32 (model_dtype); the forecast has bfloat16, half of it")


def _trainer(config: Config) -> str:
    """Name what trains: fsdp, megatron, or another engine, in whose place the plan has FSDP."""
    options, engine = {told.text for told in config.run.options}, config.text("model_engine")
    named = any("megatron" in each for each in options) or engine == "megatron"
    if named or config.text(f"{ACTOR}.strategy") == "megatron":
        return "megatron"
    if engine in ("", "dp", "fsdp", "fsdp2"):
        return "fsdp"
    config.say(f"verl trains with `{engine}`; the plan has FSDP in its place")
    return engine


def _sampler(config: Config) -> str:
    name = config.text(f"{ROLLOUT}.name") or "vllm"
    if name in SAMPLERS:
        return name
    config.say(f"no engine that is planned draws as `{name}`: vllm stands in its place")
    return "vllm"


def _own(config: Config, where: str, trainer: str) -> str:
    """Give where the keys of a model's engine stand."""
    if trainer != "fsdp":
        return f"{where}.{trainer}"
    if where != "critic":
        return f"{where}.fsdp_config"
    return "critic.fsdp" if config.known.knows("critic.fsdp.param_offload") else "critic.model.fsdp_config"


def _drawing(config: Config, devices: int) -> Layout:
    """Give how what draws is cut. Experts lie whole on all devices of an engine, so on tensor ranks too."""
    tensor = config.positive(f"{ROLLOUT}.tensor_model_parallel_size")
    pipeline = config.counted(f"{ROLLOUT}.pipeline_model_parallel_size") or 1
    joined = config.counted(f"{ROLLOUT}.data_parallel_size") or 1
    expert = max(1, joined, (config.counted(f"{ROLLOUT}.expert_parallel_size") or 1) // tensor)
    data = _divided(config, devices, tensor * pipeline, f"{ROLLOUT}.tensor_model_parallel_size")
    _divided(config, data, expert, f"{ROLLOUT}.data_parallel_size")
    return Layout(data=data, tensor=tensor, pipeline=pipeline, expert=expert)


def _trained(config: Config, where: str, own: str, devices: int, trainer: str) -> Layout:
    if trainer == "megatron":
        return _by_megatron(config, own, devices)
    sequence = max(
        config.positive(f"{where}.ulysses_sequence_parallel_size"),
        config.counted(f"{own}.ulysses_sequence_parallel_size", f"{own}.ulysses_parallel_size") or 1,
    )
    data = _divided(config, devices, sequence, f"{where}.ulysses_sequence_parallel_size")
    size = config.whole(f"{own}.fsdp_size")
    if size is not None and 1 < size < devices:
        config.say(f"{where} is sharded over {size} of {devices} devices each; the plan shards it over all")
    keeps = config.has(f"{own}.reshard_after_forward") and not config.flag(f"{own}.reshard_after_forward")
    return Layout(
        data=data,
        sequence=sequence,
        expert=_spread(config, config.counted(f"{own}.expert_parallel_size") or 1, 1, data * sequence, own),
        sharding="none" if 1 in (size, devices) else "gradients" if keeps else "full",
    )


def _by_megatron(config: Config, own: str, devices: int) -> Layout:
    tensor, pipeline, expert, context = (
        config.positive(f"{own}.{name}_parallel_size")
        for name in ("tensor_model", "pipeline_model", "expert_model", "context")
    )
    data = _divided(config, devices, tensor * pipeline * context, f"{own}.tensor_model_parallel_size")
    within = config.counted(f"{own}.expert_tensor_parallel_size") or tensor
    whole = config.flag(f"{own}.use_distributed_optimizer")
    full = config.flag(f"{own}.use_megatron_fsdp")
    if full and own.startswith(REF):
        # Source: verl/workers/engine/megatron/transformer_impl.py: what is `forward_only` is not wrapped, so not cut.
        config.say("verl's Megatron shards no model that is only read: each data rank holds the reference's weights")
        full = False
    sharding: Sharding = "full" if full else "optimizer" if whole else "none"
    return Layout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        expert=_spread(config, expert * within, tensor, data * context, own) if expert > 1 else 1,
        sequence=context,
        sharding=sharding,
    )


def _spread(config: Config, shares: int, tensor: int, ranks: int, where: str) -> int:
    """Give over how many ranks experts are spread that are cut into so many shares, `tensor` of them by tensor ranks.

    The plan cuts experts by the tensor degree too, and spreads them over ranks that they divide.
    """
    expert = min(max(1, shares // tensor), ranks)
    while ranks % expert:
        expert -= 1
    if expert * tensor != max(shares, 1):
        config.say(f"{where} has {shares} shares of experts; the plan has {expert * tensor}, by tensor and data ranks")
    return expert


def _divided(config: Config, devices: int, by: int, key: str) -> int:
    if devices % by:
        line = config.told[key].line if key in config.told else config.run.line
        raise broken(f"{by} does not divide {devices} devices", line, key)
    return devices // by


def rows_at_once(config: Config, flow: ShippedFlow) -> dict[str, int]:
    """Return the rows of a micro-batch of each role that counts rows, without their padding, and not tokens.

    Megatron's rows are packed; FSDP's are where `use_remove_padding` says so.
    """
    packed = _trainer(config) == "megatron" or config.flag(f"{MODEL}.use_remove_padding")
    found = ((role, _rows(config, role, PLACES[role])) for role in flow.roles if role in PLACES)
    return {role: rows for role, rows in found if rows is not None and packed}


PLACES = {"policy.train": ACTOR, "critic.train": "critic", "ref.infer": REF}


def running_of(
    config: Config, flow: ShippedFlow, layouts: Mapping[str, Layout], total_tokens: int, apart: bool
) -> dict[str, RoleSettings]:
    """Give how each role runs: what it checkpoints and offloads, its budget of tokens, and the share of its cache."""
    trainer = _trainer(config)
    found = dict[str, RoleSettings]()
    for role, where in ((role, PLACES[role]) for role in flow.roles if role in PLACES):
        own = _own(config, where, trainer)
        trains = role.endswith(".train")
        if trainer == "megatron":
            offload, sleeps = _put_away_by_megatron(config, where, own, trains=trains)
        else:
            offload, sleeps = _offload(config, own, trains=trains)
        found[role] = RoleSettings(
            precision="bfloat16",
            checkpointing=_checkpointing(config, role, own, trainer == "megatron"),
            offload=offload,
            micro_batch_tokens=_budget(config, role, where, total_tokens, layouts[role].sequence),
            logits="whole" if _has_logits(role) and not config.flag(FUSED) else "chunked",
            sleeps=sleeps,
        )
    sleeps = config.flag(f"{ROLLOUT}.free_cache_engine") and not apart
    fp8 = config.text(f"{ROLLOUT}.quantization") == "fp8"
    found["policy.sample"] = RoleSettings(
        precision="fp8" if fp8 else "bfloat16", cache_share=_share(config), sleeps=sleeps
    )
    return found


def in_chunks(config: Config, engine: str, running: Mapping[str, RoleSettings]) -> dict[str, RoleSettings]:
    """Return how each role runs on FSDP of ours, which makes logits in chunks whatever verl does, and say so."""
    whole = [role for role, each in running.items() if each.logits == "whole"]
    if engine == "megatron" or not whole:
        return dict(running)
    config.say(
        "verl makes all logits of a micro-batch at once (use_fused_kernels=False); the plan makes them in chunks"
    )
    return {role: each.model_copy(update={"logits": "chunked"}) for role, each in running.items()}


def _has_logits(role: str) -> bool:
    """Return whether a role makes logits: a critic gives one number for each token."""
    return not role.startswith("critic")


def _share(config: Config) -> float:
    value = config.number(f"{ROLLOUT}.gpu_memory_utilization")
    if value is None or not 0 < value <= 1:
        told = config.told.get(f"{ROLLOUT}.gpu_memory_utilization")
        raise broken("should be above 0, and 1 at most", told.line if told else 1, "gpu_memory_utilization")
    return float(value)


def _checkpointing(config: Config, role: str, own: str, megatron: bool) -> Checkpointing:
    if role.endswith(".infer"):
        return "none"
    if megatron:
        told = config.text(f"{own}.override_transformer_config.recompute_granularity")
        return "full" if told == "full" else "selective" if told == "selective" else "none"
    where = "critic.model" if role.startswith("critic") else MODEL
    return "full" if config.flag(f"{where}.enable_gradient_checkpointing") else "none"


def _put_away_by_megatron(config: Config, where: str, own: str, *, trains: bool) -> tuple[tuple[Offloaded, ...], bool]:
    """Return whether Megatron's optimizer steps on the host, and whether a model is put away while others work.

    Source: Megatron Core, `optimizer_cpu_offload` with `optimizer_offload_fraction`; verl's Megatron workers load what
    `param_offload`, `grad_offload` and `optimizer_offload` name before they work, and put it away after.
    """
    parameters, optimizer = config.flag(f"{own}.param_offload"), config.flag(f"{own}.optimizer_offload")
    if not trains:
        return (), parameters
    config.flag(f"{own}.grad_offload")  # gradients are freed with weights that are put away
    override = f"{where}.optim.override_optimizer_config"
    on_host = config.flag(f"{override}.optimizer_cpu_offload")
    fraction = (config.number(f"{override}.optimizer_offload_fraction") or 0.0) if on_host else 0.0
    for name in ("overlap_cpu_optimizer_d2h_h2d", "use_precision_aware_optimizer"):
        config.flag(f"{override}.{name}")  # the forecast has the states in float32, and nothing overlapped
    if 0 < fraction < 1:
        config.say(f"{where} steps {fraction:g} of its optimizer on the host; the plan steps all of it on its devices")
    if fraction >= 1:
        return ("optimizer",), parameters
    if parameters != optimizer:
        what = "weights" if parameters else "its optimizer"
        config.say(f"{where} puts {what} alone away while others work; the plan leaves all of it on its devices")
    return (), parameters and optimizer


def _offload(config: Config, own: str, *, trains: bool) -> tuple[tuple[Offloaded, ...], bool]:
    """Return what lies in host memory and comes as it is used, and whether all of a model comes once and goes once.

    Source: verl's workers load what `param_offload` and `optimizer_offload` name before they work, and put it away
    after. `offload_policy` is FSDP's own, which brings weights for each pass, and so it keeps weights that are only
    read.
    """
    parameters, optimizer = config.flag(f"{own}.param_offload"), config.flag(f"{own}.optimizer_offload")
    everything = config.flag(f"{own}.offload_policy")
    gradients = everything or config.flag(f"{own}.grad_offload")
    if not trains:
        return (("parameters",) if everything or parameters else ()), False
    if parameters and optimizer and not everything:
        return (), True
    named: tuple[tuple[Offloaded, bool], ...] = (
        ("parameters", parameters or everything),
        ("gradients", gradients),
        ("optimizer", optimizer or everything),
    )
    return tuple(name for name, is_told in named if is_told), False


def _budget(config: Config, role: str, where: str, total_tokens: int, sequence: int) -> int | None:
    """Give the tokens that go through at once: a budget, or as many rows as were told, each as long as can be."""
    if _counts_tokens(config, role, where):
        told = config.counted(f"{where}.{_prefix(role)}_max_token_len_per_gpu")
        return None if told is None else told * sequence
    rows = _rows(config, role, where)
    return None if rows is None else rows * total_tokens


def _prefix(role: str) -> str:
    return "log_prob" if role.endswith(".infer") else "ppo"


def _counts_tokens(config: Config, role: str, where: str) -> bool:
    return config.flag(f"{where}.{'log_prob_use_dynamic_bsz' if role.endswith('.infer') else 'use_dynamic_bsz'}")


def _rows(config: Config, role: str, where: str) -> int | None:
    """Return the rows that go through at once on a device; None where tokens are counted, or nothing is said."""
    if _counts_tokens(config, role, where):
        return None
    rows = config.counted(f"{where}.{_prefix(role)}_micro_batch_size_per_gpu")
    if rows is None and (of_all := config.counted(f"{where}.{_prefix(role)}_micro_batch_size")):
        rows = max(1, of_all // config.positive("trainer.n_gpus_per_node") // config.positive("trainer.nnodes"))
    return rows
