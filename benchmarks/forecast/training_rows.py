"""Rows of the training tables as `Trained`: of vTrain, llm-foundry, Megatron-Bridge and prime-rl.

What a table does not say is taken as the comment beside it says. Not here: runs of single papers (`training_papers`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from benchmarks.forecast.cells import AMOUNT, AMOUNT_OR_EMPTY, COUNT, COUNT_OR_EMPTY, Number, columns
from benchmarks.forecast.report import Row
from benchmarks.forecast.training_case import Trained, device, full_rows, gpt, label, links, model
from flowgraph.cluster.plan import Layout, Precision
from placements.profiles import profile

# ------------------------------------------------------------------------------------------------------------- vTrain

# Eight A100 and 800 Gb/s in each machine, all activations computed again, a vocabulary of GPT-2's. Source: vTrain's
# own configurations of these runs: inter_node_bandwidth, node_size, use_checkpoint, vocab_size.
VTRAIN_NETWORK = 800e9 / 8 / 8
VTRAIN_VOCABULARY = 50_257
VTRAIN_NUMBERS = ("gpus", "global_batch", "micro_batch", "hidden", "heads", "layers", "seq_len", "tp", "dp", "pp")
VTRAIN = frozenset(("testbed", "iter_time_ms", *VTRAIN_NUMBERS))
VTRAIN_CELLS = columns(COUNT, *VTRAIN_NUMBERS) | columns(AMOUNT, "iter_time_ms")


def vtrain(row: Row) -> Trained | str:
    """Read a row of vTrain's measurements: GPT on Megatron-DeepSpeed, in 16 bits, 1F1B."""
    n = {name: int(row[name]) for name in VTRAIN_NUMBERS}
    return Trained(
        label=label(row, *VTRAIN_NUMBERS),
        name=f"hidden {n['hidden']}, {n['layers']} layers",
        group="one node" if n["gpus"] <= 8 else "many nodes",
        seconds=float(row["iter_time_ms"]) / 1e3,
        shape=gpt(n["hidden"], n["layers"], n["heads"], VTRAIN_VOCABULARY),
        tokens=full_rows(n["global_batch"], n["seq_len"]),
        layout=Layout(data=n["dp"], tensor=n["tp"], pipeline=n["pp"]),
        links=links(profile("a100-sxm-80g"), n["gpus"], VTRAIN_NETWORK),
        engine="megatron",
        version="2022",
        micro_batch_tokens=n["micro_batch"] * n["seq_len"],
    )


# -------------------------------------------------------------------------------------------------------- llm-foundry

# MPT by its size: hidden, layers, heads. Source: scripts/train/benchmarking of llm-foundry; with these, `numparams` of
# every row is met within 0.2%.
MPT = {
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 48, 56),
    "70b": (8192, 80, 64),
}
MPT_VOCABULARY = 50_368
FOUNDRY = frozenset(("model", "seqlen_t", "gpus", "gpu", "globalbatchsize_t", "throughput_t_s", "sharding_strategy"))
FOUNDRY_CELLS = columns(COUNT, "seqlen_t", "gpus", "globalbatchsize", "microbatchsize") | columns(
    AMOUNT, "globalbatchsize_t", "throughput_t_s"
)


def foundry(row: Row) -> Trained | str:
    """Read a row of llm-foundry's table: MPT on FSDP of PyTorch 2.0, each micro-batch full sequences."""
    kind, gpus, length = device(row["gpu"]), int(row["gpus"]), int(row["seqlen_t"])
    if row["model"] not in MPT or kind is None:
        return f"unknown {'device' if kind is None else 'model'}"
    if row["activation_cpuoffload"] == "True":
        return "activations in host memory are not modelled"
    return Trained(
        label=label(row, "model", "seqlen_t", "gpus", "gpu", "precision", "microbatchsize", "sharding_strategy"),
        name=row["model"],
        group=row["gpu"],
        seconds=float(row["globalbatchsize_t"]) / float(row["throughput_t_s"]),
        shape=gpt(*MPT[row["model"]], MPT_VOCABULARY),
        tokens=full_rows(int(row["globalbatchsize"]), length),
        layout=Layout(data=gpus, sharding="gradients" if row["sharding_strategy"] == "SHARD_GRAD_OP" else "full"),
        links=links(kind, gpus),
        engine="fsdp",
        version="1",
        micro_batch_tokens=int(row["microbatchsize"]) * length,
        checkpointing="full" if row["activation_checkpointing"] == "True" else "none",
        precision="fp8" if "fp8" in row["precision"] else "bfloat16",
    )


# ---------------------------------------------------------------------------------------------------- Megatron-Bridge

BRIDGE_PRECISIONS: Mapping[str, Precision] = {
    "BF16": "bfloat16",
    "FP8": "fp8",
    "FP8-CS": "fp8",
    "FP8-MX": "fp8",
    "MXFP8": "fp8",
    "NVFP4": "fp4",
}
BRIDGE_NUMBERS = ("gpus", "gbs", "mbs", "seq_len", "fsdp", "tp", "pp", "cp", "vp", "ep")
BRIDGE = frozenset(("container", "kind", "model", "system", "precision", "tokens_per_sec_per_gpu", *BRIDGE_NUMBERS))
BRIDGE_CELLS = (
    columns(COUNT, "gpus", "gbs", "mbs", "seq_len")
    | columns(Number(whole=True, minimum=1, optional=True, words="n/a"), "tp", "pp", "cp", "vp", "ep")
    | columns(Number(whole=True, minimum=0, optional=True, words="n/a"), "fsdp")
    | columns(AMOUNT, "tokens_per_sec_per_gpu")
)


def bridge(row: Row) -> Trained | str:
    """Read a row of Megatron-Bridge's table; it does not say what is computed again, so nothing is taken to be."""
    shape, kind = model(row["model"], adapted="LoRA" in row["kind"]), device(row["system"])
    if shape is None or kind is None:
        return f"unknown {'device' if kind is None else 'model'}"
    if row["precision"] not in BRIDGE_PRECISIONS:
        return "its precision is not said"
    n = {name: int(row[name]) if row[name].isdecimal() else 1 for name in BRIDGE_NUMBERS}
    tokens = full_rows(n["gbs"], n["seq_len"])
    return Trained(
        label=label(row, "container", "kind", "model", "system", "precision", *BRIDGE_NUMBERS),
        name=row["model"],
        group=row["model"],
        seconds=tokens.tokens / (n["gpus"] * float(row["tokens_per_sec_per_gpu"])),
        shape=shape,
        tokens=tokens,
        layout=_bridge_layout(n, experts=bool(shape.experts)),
        links=links(kind, n["gpus"]),
        engine="megatron",
        version="26",
        micro_batch_tokens=n["mbs"] * n["seq_len"],
        checkpointing="none",
        precision=BRIDGE_PRECISIONS[row["precision"]],
        told={"chunks": float(n["vp"])},
    )


def _bridge_layout(n: Mapping[str, int], *, experts: bool) -> Layout:
    data = n["gpus"] // (n["tp"] * n["pp"] * n["cp"])
    return Layout(
        data=data,
        tensor=n["tp"],
        pipeline=n["pp"],
        sequence=n["cp"],
        expert=min(n["ep"], data) if experts else 1,
        sharding="full" if n["fsdp"] > 1 else "optimizer",
    )


# ---------------------------------------------------------------------------------------------------------- prime-rl

# What kernels of FlashAttention-2 do in a second on any device. Source: Shah et al. 2024, arXiv 2407.08608: 35% of an
# H100's peak.
FLASH_2 = {"attention_flops": 3.5e14}
SUPERVISED = {"step_s": 0.1}  # no log-probs, entropy and weights to hand on: of the rows themselves, 0.1 to 0.15 s
PRIME = frozenset(("model", "type", "seq_len", "activation_ckpt", "attn", "ep", "cp", "gpus", "microbatch_time_s"))
PRIME_CELLS = (
    columns(COUNT, "gpus", "seq_len")
    | columns(COUNT_OR_EMPTY, "ep", "cp")
    | columns(AMOUNT_OR_EMPTY, "microbatch_time_s")
)


def prime(row: Row) -> Trained | str:
    """Read a row of prime-rl's table: FSDP2, one sequence on each device (or group of `cp`) in a step."""
    shape, kind = model(row["model"], adapted="LoRA" in row["type"]), device(row["gpu"])
    if shape is None or kind is None:
        return f"unknown {'device' if kind is None else 'model'}"
    if not row["microbatch_time_s"]:
        return "no time"
    gpus, length, sequence = int(row["gpus"]), int(row["seq_len"]), int(row["cp"] or 1)
    data = gpus // sequence
    return Trained(
        label=label(row, "model", "type", "seq_len", "activation_ckpt", "attn", "ep", "cp", "gpus", "gpu"),
        name=row["model"],
        group=re.split(r"\(", row["type"])[0],
        seconds=float(row["microbatch_time_s"]),
        shape=shape,
        tokens=full_rows(data, length),
        layout=Layout(data=data, sequence=sequence, expert=min(int(row["ep"] or 1), data), sharding="full"),
        links=links(kind, gpus),
        engine="fsdp",
        version="2",
        micro_batch_tokens=length,
        checkpointing="full" if row["activation_ckpt"] else "none",
        told=(FLASH_2 if row["attn"] == "FA2" else {}) | (SUPERVISED if row["type"].startswith("SFT") else {}),
    )
