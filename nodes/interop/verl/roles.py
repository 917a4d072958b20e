"""Where verl's keys put its models: the devices of each part, its layout, and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

from flowgraph.cluster.plan import Checkpointing, Layout, Offloaded, RoleSettings, Sharding
from nodes.interop.config import Config
from nodes.interop.imported import SystemRun
from nodes.interop.shipped_flows import ShippedFlow

ACTOR, REF, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
PREFIXES = {"policy.train": ACTOR, "critic.train": "critic", "ref.infer": REF}
FUSED = f"{MODEL}.use_fused_kernels"
MAX_DEVICES = 65_536  # of a cluster; more would take long to divide


def layouts_of(config: Config, flow: ShippedFlow, devices: int, sampling_devices: int) -> dict[str, Layout]:
    """Return the parallel layout of each role of a verl run, by the role's name, such as `policy.train`.

    `devices` is the number of the trainer's devices, `sampling_devices` that of the policy's sampling. Raises
    UsageError for an invalid number, for more than 65,536 devices, and if the degrees of a layout do not divide the
    devices. Adds notes to `config` on what no layout can express.
    """
    if max(devices, sampling_devices) > MAX_DEVICES:
        what = f"{max(devices, sampling_devices):,} devices, where a cluster has at most {MAX_DEVICES:,}"
        raise config.error(what, "nnodes")
    trainer = trainer_of(config)
    layouts = {"policy.train": _trained(config, ACTOR, devices, trainer)}
    # Experts are spread over all devices of an engine, also over tensor ranks.
    tensor = config.positive(f"{ROLLOUT}.tensor_model_parallel_size")
    pipeline = config.optional_positive(f"{ROLLOUT}.pipeline_model_parallel_size") or 1
    data_of_engine = config.optional_positive(f"{ROLLOUT}.data_parallel_size") or 1
    expert = (config.optional_positive(f"{ROLLOUT}.expert_parallel_size") or 1) // tensor
    data = _divided(config, sampling_devices, tensor * pipeline, f"{ROLLOUT}.tensor_model_parallel_size")
    expert = max(data_of_engine, expert)
    _divided(config, data, expert, f"{ROLLOUT}.data_parallel_size")
    layouts["policy.sample"] = Layout(data=data, tensor=tensor, pipeline=pipeline, expert=expert)
    if "critic" in flow.params:
        layouts["critic.train"] = _trained(config, "critic", devices, trainer)
    if "ref" in flow.params:
        if trainer == "fsdp" and config.text(f"{REF}.fsdp_config.model_dtype") in ("fp32", "float32"):
            config.note(
                "verl holds the reference's weights in float32 (model_dtype); the forecast in bfloat16, half of it"
            )
        layouts["ref.infer"] = _trained(config, REF, devices, trainer)
    return layouts


def running_of(
    config: Config, flow: ShippedFlow, layouts: Mapping[str, Layout], total_tokens: int, separate: bool
) -> tuple[dict[str, RoleSettings], dict[str, int]]:
    """Return the settings of each role by its name, and the rows per micro-batch of roles that pack a number of rows.

    `total_tokens` are those of the longest row, and `separate` says that sampling has devices of its own. Megatron
    packs rows; FSDP does if `use_remove_padding` is on. Raises UsageError for an invalid number.
    """
    trainer = trainer_of(config)
    running, rows_at_once = dict[str, RoleSettings](), dict[str, int]()
    for role in (role for role in flow.roles if role in PREFIXES):
        engine = _engine_prefix(config, PREFIXES[role], trainer)
        offload, sleeps = (_megatron_offload if trainer == "megatron" else _fsdp_offload)(config, role, engine)
        checkpointing: Checkpointing = "none"
        if not role.endswith(".infer") and trainer == "megatron":
            granularity = config.text(f"{engine}.override_transformer_config.recompute_granularity")
            checkpointing = "full" if granularity == "full" else "selective" if granularity == "selective" else "none"
        elif not role.endswith(".infer"):
            model = "critic.model" if role.startswith("critic") else MODEL
            checkpointing = "full" if config.flag(f"{model}.enable_gradient_checkpointing") else "none"
        rows, tokens = _micro_batch(config, role, total_tokens, layouts[role].sequence)
        if (trainer == "megatron" or config.flag(f"{MODEL}.use_remove_padding")) and rows is not None:
            rows_at_once[role] = rows
        has_logits = not role.startswith("critic")  # a critic returns one number for each token
        running[role] = RoleSettings(
            precision="bfloat16",
            checkpointing=checkpointing,
            offload=offload,
            micro_batch_tokens=tokens,
            logits="whole" if has_logits and not config.flag(FUSED) else "chunked",
            sleeps=sleeps,
        )
    running["policy.sample"] = RoleSettings(
        precision="fp8" if config.text(f"{ROLLOUT}.quantization") == "fp8" else "bfloat16",
        cache_share=config.share(f"{ROLLOUT}.gpu_memory_utilization"),
        sleeps=config.flag(f"{ROLLOUT}.free_cache_engine") and not separate,
    )
    return running, rows_at_once


def in_chunks(config: Config, run: SystemRun) -> SystemRun:
    """Return a run whose roles compute logits in chunks, as flowgraph's FSDP does; adds a note if verl's do not.

    A run of Megatron is returned unchanged.
    """
    if run.engines["train"] == "megatron" or all(settings.logits == "chunked" for settings in run.running.values()):
        return run
    config.note("verl computes all logits of a micro-batch at once (use_fused_kernels=False); the plan in chunks")
    running = {role: settings.model_copy(update={"logits": "chunked"}) for role, settings in run.running.items()}
    return replace(run, running=running)


def trainer_of(config: Config) -> str:
    """Return the training engine of a run: "megatron", "fsdp" (also for "fsdp2", "dp" or none), or another name.

    For another name, adds a note to `config` that FSDP replaces this engine in the plan.
    """
    engine = config.text("model_engine")
    if (
        engine == "megatron"
        or any("megatron" in option.text for option in config.run.options)
        or config.text(f"{ACTOR}.strategy") == "megatron"
    ):
        return "megatron"
    if engine in ("", "dp", "fsdp", "fsdp2"):
        return "fsdp"
    config.note(f"verl trains with `{engine}`; FSDP replaces it in the plan")
    return engine


def _engine_prefix(config: Config, prefix: str, trainer: str) -> str:
    if trainer != "fsdp":
        return f"{prefix}.{trainer}"
    if prefix != "critic":
        return f"{prefix}.fsdp_config"
    return "critic.fsdp" if config.table.knows("critic.fsdp.param_offload") else "critic.model.fsdp_config"


def _trained(config: Config, prefix: str, devices: int, trainer: str) -> Layout:
    engine = _engine_prefix(config, prefix, trainer)
    if trainer == "megatron":
        return _by_megatron(config, engine, devices)
    ulysses = f"{prefix}.ulysses_sequence_parallel_size"
    engine_degree = config.optional_positive(
        f"{engine}.ulysses_sequence_parallel_size", f"{engine}.ulysses_parallel_size"
    )
    sequence = max(config.positive(ulysses), engine_degree or 1)
    data = _divided(config, devices, sequence, ulysses)
    size = config.integer(f"{engine}.fsdp_size")
    if size is not None and 1 < size < devices:
        config.note(f"{prefix} is sharded over {size} of {devices} devices each; the plan shards it over all")
    keeps_weights = config.has(f"{engine}.reshard_after_forward") and not config.flag(f"{engine}.reshard_after_forward")
    shares = config.optional_positive(f"{engine}.expert_parallel_size") or 1
    return Layout(
        data=data,
        sequence=sequence,
        expert=_expert_ranks(config, shares, 1, data * sequence, engine),
        sharding="none" if 1 in (size, devices) else "gradients" if keeps_weights else "full",
    )


def _by_megatron(config: Config, engine: str, devices: int) -> Layout:
    tensor, pipeline, expert, context = (
        config.positive(f"{engine}.{name}_parallel_size")
        for name in ("tensor_model", "pipeline_model", "expert_model", "context")
    )
    data = _divided(config, devices, tensor * pipeline * context, f"{engine}.tensor_model_parallel_size")
    expert_tensor = config.optional_positive(f"{engine}.expert_tensor_parallel_size") or tensor
    sharding: Sharding = "optimizer" if config.flag(f"{engine}.use_distributed_optimizer") else "none"
    if config.flag(f"{engine}.use_megatron_fsdp"):
        if engine.startswith(REF):
            # Source: verl/workers/engine/megatron/transformer_impl.py does not wrap a `forward_only` model.
            config.note("verl's Megatron does not shard the reference: each data rank holds all its weights")
        else:
            sharding = "full"
    return Layout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        expert=_expert_ranks(config, expert * expert_tensor, tensor, data * context, engine) if expert > 1 else 1,
        sequence=context,
        sharding=sharding,
    )


def _expert_ranks(config: Config, shares: int, tensor: int, ranks: int, prefix: str) -> int:
    """Return over how many of `ranks` the plan spreads experts that the run splits into `shares`.

    The plan also splits experts by the tensor degree, and the ranks must be a multiple of the result.
    """
    expert = min(max(1, shares // tensor), ranks)
    while ranks % expert:
        expert -= 1
    if expert * tensor != max(shares, 1):
        config.note(
            f"{prefix} has {shares} shares of experts; the plan has {expert * tensor}, by tensor and data ranks"
        )
    return expert


def _divided(config: Config, devices: int, degree: int, key: str) -> int:
    if devices % degree:
        raise config.error(f"{degree} does not divide {devices} devices", key)
    return devices // degree


def _megatron_offload(config: Config, role: str, engine: str) -> tuple[tuple[Offloaded, ...], bool]:
    """Return whether Megatron's optimizer steps on the host, and whether the model sleeps between uses.

    Source: Megatron Core, `optimizer_cpu_offload` with `optimizer_offload_fraction`; verl's Megatron workers load what
    `param_offload`, `grad_offload` and `optimizer_offload` name before they work, and offload it again afterwards.
    """
    parameters, optimizer = config.flag(f"{engine}.param_offload"), config.flag(f"{engine}.optimizer_offload")
    if not role.endswith(".train"):
        return (), parameters
    config.flag(f"{engine}.grad_offload")  # gradients are freed when weights are offloaded
    prefix = PREFIXES[role]
    override = f"{prefix}.optim.override_optimizer_config"
    on_host = config.flag(f"{override}.optimizer_cpu_offload")
    fraction = (config.number(f"{override}.optimizer_offload_fraction") or 0.0) if on_host else 0.0
    for name in ("overlap_cpu_optimizer_d2h_h2d", "use_precision_aware_optimizer"):
        config.flag(f"{override}.{name}")  # the forecast has float32 states and no overlap
    if 0 < fraction < 1:
        config.note(
            f"{prefix} steps {fraction:g} of its optimizer on the host; the plan steps all of it on its devices"
        )
    if fraction >= 1:
        return ("optimizer",), parameters
    if parameters != optimizer:
        what = "weights" if parameters else "its optimizer"
        config.note(f"{prefix} offloads only {what} between uses; the plan offloads neither")
    return (), parameters and optimizer


def _fsdp_offload(config: Config, role: str, engine: str) -> tuple[tuple[Offloaded, ...], bool]:
    """Return what is in host memory and loaded for each pass, and whether the whole model sleeps between uses.

    Source: verl's workers load what `param_offload` and `optimizer_offload` name before they work, and offload it again
    afterwards. `offload_policy` is FSDP's own, which loads weights for each pass; so does a model that is not trained.
    """
    parameters, optimizer = config.flag(f"{engine}.param_offload"), config.flag(f"{engine}.optimizer_offload")
    everything = config.flag(f"{engine}.offload_policy")
    gradients = everything or config.flag(f"{engine}.grad_offload")
    if not role.endswith(".train"):
        return (("parameters",) if everything or parameters else ()), False
    if parameters and optimizer and not everything:
        return (), True
    offloads = {"parameters": parameters or everything, "gradients": gradients, "optimizer": optimizer or everything}
    return tuple(name for name in get_args(Offloaded) if offloads[name]), False


def _micro_batch(config: Config, role: str, total_tokens: int, sequence: int) -> tuple[int | None, int | None]:
    """Return the rows and the tokens of a micro-batch on a device, where rows count as the longest; None if not set."""
    prefix, is_infer = PREFIXES[role], role.endswith(".infer")
    name = f"{prefix}.{'log_prob' if is_infer else 'ppo'}"
    if config.flag(f"{prefix}.{'log_prob_use_dynamic_bsz' if is_infer else 'use_dynamic_bsz'}"):
        tokens = config.optional_positive(f"{name}_max_token_len_per_gpu")
        return None, None if tokens is None else tokens * sequence
    rows = config.optional_positive(f"{name}_micro_batch_size_per_gpu")
    if rows is None and (on_all := config.optional_positive(f"{name}_micro_batch_size")):
        rows = max(1, on_all // config.positive("trainer.n_gpus_per_node") // config.positive("trainer.nnodes"))
    return rows, None if rows is None else rows * total_tokens
