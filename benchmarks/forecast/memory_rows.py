"""Rows of the memory tables as `Measured`: of prime-rl, LitGPT, torchtitan and Megatron-LM.

What a table does not say is taken as the comment beside it says. Not here: what is asked of the rows (`memory`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from benchmarks.forecast.cells import AMOUNT_OR_EMPTY, COUNT, COUNT_OR_EMPTY, Number, columns
from benchmarks.forecast.report import Row
from benchmarks.forecast.training_case import device, gpt, label, model
from benchmarks.forecast.training_papers import layout_of, paper_model
from flowgraph.cluster.plan import Checkpointing, Layout, Precision
from flowgraph.models.sizes import ModelShape
from placements.activations import EAGER, PLAIN
from placements.footprint import Footprint, MemoryConstants
from placements.footprint_serving import inference_bytes
from placements.footprint_training import Training, training_bytes, waiting_bytes
from placements.holding import WEIGHT_BYTES

# What these tables report is what PyTorch holds: no context of CUDA, no communicators.
RESERVED = MemoryConstants(context_bytes=0.0, communicator_bytes=0.0)
ALLOCATED = replace(RESERVED, unused_share=0.0)


@dataclass(frozen=True)
class Measured:
    """One measured run: the peak on a device in bytes, None if it ran out of memory; its forecast, and a null model.

    The null model is what the states alone take. `usable_bytes` are the device's, None where it is not known.
    """

    label: str
    group: str
    peak_bytes: float | None
    forecast_bytes: float
    null_bytes: float
    usable_bytes: int | None


# ---------------------------------------------------------------------------------------------------------- prime-rl

PRIME = frozenset(("model", "type", "seq_len", "activation_ckpt", "cp", "peak_mem_gib"))
PRIME_CELLS = (
    columns(COUNT, "gpus", "seq_len") | columns(COUNT_OR_EMPTY, "ep", "cp") | columns(AMOUNT_OR_EMPTY, "peak_mem_gib")
)
PRIME_ADAPTERS = 4  # each run holds so many, one of which it trains. Source: prime-rl, run_single_benchmark.py
PRIME_RANK = 16
SAME_SIZES = {"INTELLECT-3": "GLM-4.5-Air"}  # Source: its model card, trained from that base


def prime(row: Row) -> Measured | str:
    """Read a row of prime-rl: FSDP2 from float32, two micro-batches, `max_memory_reserved` of a step.

    Its logits are all there at once in supervised training, and a chunk of them in RL. Adapters are on experts too.
    """
    adapted, name = "LoRA" in row["type"], row["model"].rpartition("/")[2]
    shape = model(SAME_SIZES.get(name, name), adapted=adapted)
    if shape is None:
        return "unknown model"
    if not row["peak_mem_gib"]:
        return "no memory"
    gpus, sequence, tokens = int(row["gpus"]), int(row["cp"] or 1), int(row["seq_len"])
    data = gpus // sequence
    training = Training(
        layout=Layout(data=data, sequence=sequence, expert=min(int(row["ep"] or 1), data), sharding="full"),
        checkpointing="none" if row["activation_ckpt"] in ("", "None") else "full",
        micro_batch_tokens=tokens,
        logits="naive" if row["type"].startswith("SFT") else "chunked",
        offload_activations="Offload" in row["activation_ckpt"],
        spare_adapters=PRIME_ADAPTERS - 1 if adapted else 0,
    )
    shape = _with_adapted_experts(shape) if adapted else shape
    return _trained(
        label(row, "model", "type", "seq_len", "activation_ckpt", "ep", "cp", "gpus", "gpu"),
        re.split(r"\(", row["type"])[0] + (", experts" if shape.experts else ""),
        float(row["peak_mem_gib"]) * 2**30,
        shape,
        training,
        row["gpu"],
        RESERVED,
    )


def _with_adapted_experts(shape: ModelShape) -> ModelShape:
    more = PRIME_RANK * shape.experts * shape.expert_layers * 3 * (shape.hidden + shape.expert_intermediate)
    return replace(shape, adapters=shape.adapters + more, parameters=shape.parameters + more)


def _trained(
    name: str,
    group: str,
    peak_bytes: float | None,
    shape: ModelShape,
    training: Training,
    gpu: str,
    constants: MemoryConstants,
) -> Measured:
    found = training_bytes(shape, training, constants=constants)
    kind = device(gpu)
    return Measured(name, group, peak_bytes, found.peak_bytes, _states(found), kind.memory_bytes if kind else None)


def _states(found: Footprint) -> float:
    return float(sum(found.at_work.get(part, 0) for part in ("weights", "adapters", "gradients", "optimizer")))


# ------------------------------------------------------------------------------------------------------------- LitGPT

LITGPT = frozenset(("section", "size", "model", "quantization", "gpu", "microbatch", "max_gpu_ram_gb"))
LITGPT_CELLS = columns(Number(optional=True, words=r".*\boom\b.*"), "max_gpu_ram_gb") | columns(
    Number(whole=True, minimum=0, optional=True, words=r".*\boom\b.*"), "microbatch", "trainable_params"
)
LITGPT_GPU = "A100-SXM-40GB"  # the table says A100 only; all that is shown to run would run on the smaller
# The longest row of Alpaca, which is passed first, in tokens: as the memory of both models here grows with each row.
# Llama 2's smaller vocabulary cuts a text in a fourth more.
LITGPT_TOKENS, LITGPT_LLAMA_TOKENS = 950, 1190
# Attention and MLP of Phi, StableLM and Falcon read one norm, and there is no dropout but of adapters.
PARALLEL = replace(PLAIN, hidden=2.0)
WITHOUT_HEAD_NORMS = replace(EAGER, mixing=2.0)  # Llama's queries and keys have no norm of their own
LITGPT_CONSTANTS = replace(ALLOCATED, logit_bytes=12.0)
# bitsandbytes expands the head, of 4 bits as all other matrices, to be multiplied with; of both models as many times.
EXPANDED_READING, EXPANDED_TRAINING = 2, 4
# What FSDP holds on each device while it reads a checkpoint: the model whole, and copies. Of the two models that are
# shown on two devices, 1.71 and 1.75 times the weights.
LOADED = 1.75


def litgpt(row: Row) -> Measured | str:
    """Read a row of LitGPT: all in bfloat16, no activation computed again, `max_memory_allocated`."""
    shape = _litgpt_model(row)
    if shape is None:
        return "unknown model"
    out = any("oom" in value.lower() for value in row.values())
    if not row["max_gpu_ram_gb"] and not out:
        return "not run"
    if "dq" not in row["quantization"] and row["quantization"] not in ("None", "", "bnb.nf4"):
        return f"weights in {row['quantization']}"
    peak = None if out else float(row["max_gpu_ram_gb"]) * 1e9
    group = re.sub(r"^Finetuning with ", "", row["section"]) + (", 4 bits" if "nf4" in row["quantization"] else "")
    name = label(row, "section", "model", "quantization", "gpu", "microbatch", "trainable_params")
    usable = device(LITGPT_GPU)
    forecast, null = _litgpt_bytes(row, shape)
    return Measured(name, group, peak, forecast, null, usable.memory_bytes if usable else None)


def _litgpt_model(row: Row) -> ModelShape | None:
    size = re.sub(r"\s", "", row["size"]).lower()
    names = (row["model"], f"{row['model']}-{size}", f"{row['model']}-{size}-hf", f"stablelm-base-alpha-{size}")
    found = (model(each) for each in names if "stablelm" not in each or "stable" in row["model"].lower())
    return next((each for each in found if each is not None), None)


def _litgpt_bytes(row: Row, shape: ModelShape) -> tuple[float, float]:
    """Give the forecast and the null model of a row: the weights of inference, or the states of training."""
    four_bits = "nf4" in row["quantization"]
    bits: Precision = "fp4" if four_bits else "bfloat16"
    one, head = Layout(), shape.vocabulary * shape.hidden * four_bits
    saved = (WEIGHT_BYTES["bfloat16"] - WEIGHT_BYTES[bits]) * head
    if "Inference" in row["section"]:
        read = inference_bytes(shape, one, 1, precision=bits, constants=LITGPT_CONSTANTS).peak_bytes
        return read + 2 * EXPANDED_READING * head - saved, 2.0 * shape.parameters
    if not re.match(r"1\b", row["gpu"]):
        return LOADED * 2 * shape.parameters, 2.0 * shape.parameters
    trained = int(row["trainable_params"] or 0) % shape.parameters  # all of them: there are no adapters
    adapted = replace(shape, parameters=shape.parameters + trained, adapters=trained)
    llama = shape.vocabulary <= 32_000
    training = Training(
        layout=one,
        checkpointing="none",
        micro_batch_tokens=int(row["microbatch"] or 1) * (LITGPT_LLAMA_TOKENS if llama else LITGPT_TOKENS),
        logits="naive",
        master="bfloat16",
        frozen=bits,
        widths=WITHOUT_HEAD_NORMS if llama else PARALLEL,
    )
    found = training_bytes(adapted, training, constants=LITGPT_CONSTANTS)
    return found.peak_bytes + 2 * EXPANDED_TRAINING * head - saved, _states(found)


# ------------------------------------------------------------------------------------------------------ single papers

PAPER = frozenset(("model", "parallelism", "activation_ckpt", "local_batch", "peak_mem_gib", "other"))
PAPER_CELLS = (
    columns(COUNT, "gpus", "seq_len")
    | columns(COUNT_OR_EMPTY, "local_batch", "global_batch")
    | columns(AMOUNT_OR_EMPTY, "peak_mem_gib")
)
KINDS: dict[str, Checkpointing] = {"full": "full", "selective": "selective"}


def titan(row: Row) -> Measured | str:
    """Read a row of torchtitan: FSDP2 from float32, all logits at once, each micro-batch a stage's share of a batch.

    Source: torchtitan of 2024, where a pipeline has as many micro-batches as stages unless told otherwise.
    """
    shape, layout = paper_model(row["model"]), layout_of(row["parallelism"], int(row["gpus"]))
    if not row["peak_mem_gib"]:
        return "no memory"
    if shape is None or layout is None:
        return "its model or layout is not known"
    training = Training(
        layout=layout,
        checkpointing=KINDS.get(row["activation_ckpt"], "none"),
        micro_batch_tokens=int(row["local_batch"]) * int(row["seq_len"]) // layout.pipeline,
        logits="naive",
        precision="fp8" if "fp8" in row["precision"] else "bfloat16",
        interleaved=2 if "Interleaved" in row["parallelism"] else 1,
        micro_batches=layout.pipeline,
    )
    name = label(row, "model", "gpus", "parallelism", "precision", "seq_len")
    return _trained(name, row["model"], float(row["peak_mem_gib"]) * 2**30, shape, training, row["gpu"], RESERVED)


def megatron(row: Row) -> Measured | str:
    """Read the activations that Megatron-LM is said to keep with selective checkpointing: of a GPT, cut in sequence."""
    told = re.search(r"; activations ([\d.]+) GiB", row["other"])
    shape, layout = paper_model(row["model"]), layout_of(row["parallelism"], int(row["gpus"]))
    if told is None or shape is None or layout is None:
        return "no activations"
    pieces = re.search(r"int(\d+)", row["parallelism"])
    batch = row["local_batch"] if layout.pipeline > 1 else row["global_batch"]  # Source: arXiv 2205.05198, table 3
    tokens = int(batch) * int(row["seq_len"])
    training = Training(
        layout=layout,
        checkpointing="none",
        micro_batch_tokens=tokens,
        widths=PLAIN,
        interleaved=int(pieces[1]) if pieces else 1,
        logits="none",
    )
    found = waiting_bytes(shape, training)
    null = 2 * tokens * shape.hidden * shape.layers  # a layer's input alone, on all devices
    return Measured(label(row, "model", "parallelism"), "activations", float(told[1]) * 2**30, found, null, None)


def states(row: Row) -> Measured | str:
    """Read weights and optimizer states of Megatron-LM on a device, without embeddings, as the paper counts them."""
    told = re.search(r"weights\+optimizer ([\d.]+) GiB", row["other"])
    shape, layout = paper_model(row["model"]), layout_of(row["parallelism"], int(row["gpus"]))
    if told is None or shape is None or layout is None:
        return "no states"
    bare = replace(gpt(shape.hidden, shape.layers, shape.heads, 1), vocabulary=1)
    found = training_bytes(bare, Training(layout=layout, checkpointing="full", logits="none"), constants=ALLOCATED)
    peak, name = float(told[1]) * 2**30, label(row, "model", "parallelism")
    return Measured(name, "states", peak, _states(found), 16.0 * shape.parameters / layout.devices, None)
