"""Rows of single published runs as `Trained`: of torchtitan, Megatron-LM and ZeRO-3."""

from __future__ import annotations

import re

from benchmarks.forecast.cells import AMOUNT_OR_EMPTY, COUNT, COUNT_OR_EMPTY, columns
from benchmarks.forecast.report import Row
from benchmarks.forecast.training_case import Trained, device, full_rows, gpt, label, links, model
from flowgraph.cluster.plan import Checkpointing, Layout
from flowgraph.models.sizes import ModelShape

# GPT of papers by their parameters in 10⁹: hidden, layers, heads. Source: Narayanan et al. 2021, arXiv 2104.04473,
# tables 1 and 2; Korthikanti et al. 2022, arXiv 2205.05198, table 3.
GPTS = {
    "1.7": (2304, 24, 24),
    "3.6": (3072, 30, 32),
    "7.5": (4096, 36, 32),
    "18.4": (6144, 40, 48),
    "22": (6144, 48, 64),
    "39.1": (8192, 48, 64),
    "76.1": (10240, 60, 80),
    "145.6": (12288, 80, 96),
    "174.6": (12288, 96, 96),
    "175": (12288, 96, 96),
    "310.1": (16384, 96, 128),
    "529.6": (20480, 105, 128),
    "530": (20480, 105, 128),
    "1008": (25600, 128, 160),
    "1000": (25600, 128, 160),
}
GPT_VOCABULARY = 51_200
MEGATRON, ZERO, TITAN = ("megatron", "2022"), ("fsdp", "1"), ("fsdp", "2")
GROUPS = {MEGATRON: "Megatron-LM", ZERO: "ZeRO-3 of 2021", TITAN: "torchtitan"}
PAPER = frozenset(("model", "task", "gpu", "parallelism", "local_batch", "iter_time_s", "tflops_per_gpu", "quality"))
PAPER_CELLS = (
    columns(COUNT, "gpus", "seq_len")
    | columns(COUNT_OR_EMPTY, "local_batch", "global_batch")
    | columns(AMOUNT_OR_EMPTY, "iter_time_s", "tokens_per_sec_per_gpu", "tflops_per_gpu")
)


def paper(row: Row) -> Trained | str:
    """Read a row of a single published run."""
    kind, layout = device(row["gpu"]), layout_of(row["parallelism"], int(row["gpus"]))
    shape = paper_model(row["model"])
    if shape is None or kind is None:
        return f"unknown {'device' if kind is None else 'model'}"
    if layout is None:
        return "its layout is not said"
    batch = _batch(row, layout)
    seconds = _seconds(row, shape, batch)
    if seconds is None:
        return "no time"
    engine = TITAN if "torchtitan" in row["source"] else ZERO if layout.sharding == "full" else MEGATRON
    return Trained(
        label=label(row, "model", "gpus", "parallelism", "precision", "activation_ckpt", "seq_len", "source"),
        name=row["model"],
        group=GROUPS[engine],
        seconds=seconds,
        shape=shape,
        tokens=full_rows(batch, int(row["seq_len"])),
        layout=layout,
        links=links(kind, int(row["gpus"])),
        engine=engine[0],
        version=engine[1],
        micro_batch_tokens=_micro_rows(row, layout) * int(row["seq_len"]),
        checkpointing=_checkpointing(row),
        precision="fp8" if "fp8" in row["precision"] else "bfloat16",
        told=_told(row, rows_of_rl=engine == TITAN),
    )


def paper_model(name: str) -> ModelShape | None:
    """Give the sizes of a model by how a paper names it: GPT and Megatron by their parameters, else as on the hub."""
    size = re.search(r"(?:GPT3?|Megatron|MT-NLG)-([\d.]+)(B|T)", name)
    if size is None:
        return model(name)
    billions = f"{float(size[1]) * (1000 if size[2] == 'T' else 1):g}"
    return gpt(*GPTS[billions], GPT_VOCABULARY) if billions in GPTS else None


def layout_of(text: str, gpus: int) -> Layout | None:
    """Read a layout: `FSDP32 TP8`, `TP8 PP8 int3 SP`, `PTD MP96`, `ZeRO-3`; None where it is not said.

    Model parallelism of n is eight ranks of tensor parallelism, the rest a pipeline. Source: arXiv 2104.04473, table 2.
    """
    if text == "ZeRO-3":
        return Layout(data=gpus, sharding="full")
    degrees = {name: int(degree) for name, degree in re.findall(r"(FSDP|TP|PP|CP|MP)(\d+)", text)}
    if not degrees:
        return None
    tensor, pipeline = degrees.get("TP", 1), degrees.get("PP", 1)
    if "MP" in degrees:
        tensor, pipeline = 8, degrees["MP"] // 8
    sequence = degrees.get("CP", 1)
    return Layout(
        data=gpus // (tensor * pipeline * sequence),
        tensor=tensor,
        pipeline=pipeline,
        sequence=sequence,
        sharding="full" if "FSDP" in degrees else "none",
    )


def _batch(row: Row, layout: Layout) -> int:
    """Give the sequences of a step; where only those of a data rank are said, as many on each."""
    return int(row["global_batch"] or int(row["local_batch"] or 1) * layout.data)


def _micro_rows(row: Row, layout: Layout) -> int:
    """Give the sequences of a micro-batch: torchtitan cuts a local batch into single ones for a pipeline."""
    cut = "torchtitan" in row["source"] and layout.pipeline > 1
    return 1 if cut else int(row["local_batch"] or 1)


def _checkpointing(row: Row) -> Checkpointing:
    kinds: dict[str, Checkpointing] = {"full": "full", "selective": "selective"}
    return kinds.get(row["activation_ckpt"], "none")


def _told(row: Row, *, rows_of_rl: bool) -> dict[str, float]:
    """Say what a row tells of the engine: interleaved stages, and whether ranks of tensor parallelism share norms.

    Constants of RL add what an RL step has besides, which pre-training has not.
    """
    found = re.search(r"int(\d)", row["parallelism"])
    told = {"chunks": float(found[1])} if found else {}
    told |= {"replicated": 0.0} if row["parallelism"].endswith(" SP") else {}
    return told | ({"step_s": 0.01} if rows_of_rl else {})


def _seconds(row: Row, shape: ModelShape, batch: int) -> float | None:
    """Give the measured seconds of a step, from whatever a row has of them.

    FLOP/s of arXiv 2104.04473 count what is computed again: 96·B·s·L·h²·(1 + s/6h + V/16Lh), equation 3.
    """
    gpus, length = int(row["gpus"]), int(row["seq_len"])
    if row["iter_time_s"]:
        return float(row["iter_time_s"])
    if row["tokens_per_sec_per_gpu"]:
        return batch * length / (gpus * float(row["tokens_per_sec_per_gpu"]))
    if not row["tflops_per_gpu"]:
        return None
    more = 1 + length / (6 * shape.hidden) + GPT_VOCABULARY / (16 * shape.layers * shape.hidden)
    flops = 96 * batch * length * shape.layers * shape.hidden**2 * more
    return flops / (gpus * float(row["tflops_per_gpu"]) * 1e12)
