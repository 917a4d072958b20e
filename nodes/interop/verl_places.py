"""Where verl's keys put its models: the devices of each part, how it is cut, and how it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowgraph.plan import Checkpointing, Layout, Offloaded, Running, Sharding
from flowgraph.roles import Use
from nodes.interop.config import Config
from nodes.interop.shell import broken
from nodes.interop.shipped_flows import Flow

ACTOR, REF, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"


def layouts_of(config: Config, flow: Flow, main: int, sampling: int) -> tuple[dict[str, Layout], dict[Use, str]]:
    """Give how each role is cut, and the engines by use."""
    megatron = _is_megatron(config)
    tensor, pipeline = (
        config.positive(f"{ROLLOUT}.tensor_model_parallel_size"),
        config.whole(f"{ROLLOUT}.pipeline_model_parallel_size") or 1,
    )
    found = {"policy.train": _trained(config, ACTOR, "fsdp_config", main, megatron)}
    expert = config.whole(f"{ROLLOUT}.expert_parallel_size") or 1
    found["policy.sample"] = Layout(
        data=_divided(config, sampling, tensor * pipeline, f"{ROLLOUT}.tensor_model_parallel_size"),
        tensor=tensor,
        pipeline=pipeline,
        expert=expert,
    )
    if "critic" in flow.params:
        engine = "fsdp" if config.known.knows("critic.fsdp.param_offload") else "model.fsdp_config"
        found["critic.train"] = _trained(config, "critic", engine, main, megatron)
    if "ref" in flow.params:
        found["ref.infer"] = _trained(config, REF, "fsdp_config", main, megatron)
    sampler = config.text(f"{ROLLOUT}.name") or "vllm"
    engine = "megatron" if megatron else "fsdp"
    return found, {"train": engine, "sample": sampler, "infer": engine}


def _is_megatron(config: Config) -> bool:
    options = {told.text for told in config.run.options}
    named = any("megatron" in each for each in options) or config.text("model_engine") == "megatron"
    return named or config.text(f"{ACTOR}.strategy") == "megatron"


def _trained(config: Config, where: str, fsdp: str, devices: int, megatron: bool) -> Layout:
    if megatron:
        own = f"{where}.megatron"
        tensor, pipeline, expert, context = (
            config.positive(f"{own}.{name}_parallel_size")
            for name in ("tensor_model", "pipeline_model", "expert_model", "context")
        )
        data = _divided(config, devices, tensor * pipeline * context, f"{own}.tensor_model_parallel_size")
        whole = config.flag(f"{own}.use_distributed_optimizer")
        full = config.flag(f"{own}.use_megatron_fsdp")
        sharding: Sharding = "full" if full else "optimizer" if whole else "none"
        return Layout(data=data, tensor=tensor, pipeline=pipeline, expert=expert, sequence=context, sharding=sharding)
    sequence = max(
        config.positive(f"{where}.ulysses_sequence_parallel_size"),
        config.whole(f"{where}.{fsdp}.ulysses_sequence_parallel_size") or 1,
    )
    data = _divided(config, devices, sequence, f"{where}.ulysses_sequence_parallel_size")
    size = config.whole(f"{where}.{fsdp}.fsdp_size")
    if size is not None and 1 < size < devices:
        config.say(f"{where} is sharded over {size} of {devices} devices each; the plan shards it over all")
    keeps = not config.flag(f"{where}.{fsdp}.reshard_after_forward")
    return Layout(data=data, sequence=sequence, sharding="none" if size == 1 else "gradients" if keeps else "full")


def _divided(config: Config, devices: int, by: int, key: str) -> int:
    if devices % by:
        line = config.told[key].line if key in config.told else config.run.line
        raise broken(f"{by} does not divide {devices} devices", line, key)
    return devices // by


def running_of(
    config: Config, flow: Flow, layouts: Mapping[str, Layout], total_tokens: int, apart: bool
) -> dict[str, Running]:
    """Give how each role runs: what it checkpoints and offloads, its budget of tokens, and the share of its cache."""
    megatron = _is_megatron(config)
    found = dict[str, Running]()
    for role, where, fsdp in _trained_keys(config, flow):
        own = f"{where}.megatron" if megatron else f"{where}.{fsdp}"
        budget = _budget(config, role, where, total_tokens, layouts[role].sequence)
        found[role] = Running(
            precision="bfloat16",
            checkpointing=_checkpointing(config, role, own, megatron),
            offload=_offload(config, own, trains=role.endswith(".train")),
            micro_batch_tokens=budget,
        )
    sleeps = config.flag(f"{ROLLOUT}.free_cache_engine") and not apart
    fp8 = config.text(f"{ROLLOUT}.quantization") == "fp8"
    found["policy.sample"] = Running(precision="fp8" if fp8 else "bfloat16", cache_share=_share(config), sleeps=sleeps)
    return found


def _trained_keys(config: Config, flow: Flow) -> Iterator[tuple[str, str, str]]:
    yield "policy.train", ACTOR, "fsdp_config"
    if "critic" in flow.params:
        new = config.known.knows("critic.fsdp.param_offload")
        yield "critic.train", "critic", "fsdp" if new else "model.fsdp_config"
    if "ref" in flow.params:
        yield "ref.infer", REF, "fsdp_config"


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


def _offload(config: Config, own: str, trains: bool) -> tuple[Offloaded, ...]:
    parameters, optimizer = config.flag(f"{own}.param_offload"), config.flag(f"{own}.optimizer_offload")
    everything = config.flag(f"{own}.offload_policy")
    gradients = everything or config.flag(f"{own}.grad_offload")
    if not trains:
        return ("parameters",) if parameters or everything else ()
    named: tuple[tuple[Offloaded, bool], ...] = (
        ("parameters", parameters or everything),
        ("gradients", gradients),
        ("optimizer", optimizer or everything),
    )
    return tuple(name for name, is_told in named if is_told)


def _budget(config: Config, role: str, where: str, total_tokens: int, sequence: int) -> int | None:
    """Give the tokens that go through at once: a budget, or as many rows as were told, each as long as can be."""
    infers = role.endswith(".infer")
    prefix = "log_prob" if infers else "ppo"
    if config.flag(f"{where}.{'log_prob_use_dynamic_bsz' if infers else 'use_dynamic_bsz'}"):
        told = config.whole(f"{where}.{prefix}_max_token_len_per_gpu")
        return None if told is None else told * sequence
    rows = config.whole(f"{where}.{prefix}_micro_batch_size_per_gpu")
    if rows is None and (of_all := config.whole(f"{where}.{prefix}_micro_batch_size")):
        rows = max(1, of_all // config.positive("trainer.n_gpus_per_node") // config.positive("trainer.nnodes"))
    return None if rows is None else rows * total_tokens
