"""Throughput of TensorRT-LLM with as many requests as it takes, and latencies of vLLM in 2023, against our forecasts.

The first as NVIDIA publishes it with TensorRT-LLM 1.0, against `generate_seconds` of a stream of requests. The second
as splitwise-sim ships it: batches that start together, which takes what a closed loop of as many requests does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.forecast.cells import AMOUNT, COUNT, columns
from benchmarks.forecast.latency import request_seconds
from benchmarks.forecast.report import Case, Row, Table, View
from benchmarks.forecast.serving_models import device, links_within, model
from flowgraph.cluster.plan import Layout
from flowgraph.models.sizes import ModelShape
from placements.hardware.device_profiles import DeviceProfile, Precision
from placements.hardware.engine_constants import ServingConstants, constants
from placements.time.decode import cache_tokens, replica_of, weight_bytes
from placements.time.generation import generate_seconds
from placements.workload.lengths import LengthDistribution

PRECISIONS: dict[str, Precision] = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8", "fp4": "fp4"}
FREE = 0.9  # of the memory, what TensorRT-LLM takes: its default of what is free
STREAM = 100_000  # requests of each replica: as good as endless
OLD = "0.2"  # vLLM's release of 2023


def layouts(shape: ModelShape, devices: int) -> list[Layout]:
    """Return the layouts that a search for the most throughput tries: tensor ranks, or experts over data ranks."""
    tensor = Layout(tensor=devices)
    return [tensor, Layout(data=devices, expert=devices)] if shape.experts else [tensor]


def tokens_per_s(
    shape: ModelShape, kind: DeviceProfile, layout: Layout, precision: Precision, isl: int, osl: int
) -> float:
    """Forecast the tokens per second of a stream of requests of these lengths."""
    engine = constants(ServingConstants, "trtllm")
    cache_precision: Precision = "fp8" if precision in ("fp8", "fp4") else "bfloat16"
    room = cache_tokens(
        shape,
        kind,
        layout.tensor,
        FREE,
        engine,
        precision,
        expert=layout.expert,
        cache_precision=cache_precision,
    )
    if room < isl + osl:
        return 0.0
    found = generate_seconds(
        shape,
        STREAM * layout.data,
        LengthDistribution.fixed(isl),
        LengthDistribution.fixed(osl),
        layout,
        links_within(kind),
        engine,
        cache_tokens=room,
        precision=precision,
        streamed=True,
        cache_precision=cache_precision,
        rollout=False,
    )
    return STREAM * layout.data * osl / (found.total_s or float("inf"))


def throughput_cases(rows: Sequence[Row]) -> Iterator[Case]:
    """Return the cases of rows that have as many requests as an engine takes, one for each."""
    for row in rows:
        label = " ".join(row[name] for name in ("model", "gpu", "precision", "tp_gpus", "isl", "osl"))
        group = " ".join(row[name] for name in ("model", "gpu", "precision"))
        shape, kind = model(row["model"]), device(row["gpu"])
        if shape is None or kind is None or row["precision"] not in PRECISIONS:
            why = f"unknown {'model' if shape is None else 'device' if kind is None else 'precision'}"
            yield Case(label, 0.0, None, group=group, why=why)
            continue
        precision, devices, isl, osl = PRECISIONS[row["precision"]], *(int(row[n]) for n in ("tp_gpus", "isl", "osl"))
        best = max(tokens_per_s(shape, kind, each, precision, isl, osl) for each in layouts(shape, devices))
        null = devices * kind.peak_flops.get(precision, 0.0) / (2 * shape.active * (isl + osl)) * osl
        yield Case(label, float(row["output_tokens_per_s_total"]), best or None, null, group, "does not fit")


def _batches(rows: Sequence[Row]) -> Iterator[Case]:
    engine = constants(ServingConstants, "vllm", OLD)
    for row in rows:
        capped = row["gpu"].endswith("-pcap")
        group = f"{row['model']} {row['gpu'].removesuffix('-pcap')}{', power capped' if capped else ''}"
        label = f"{group} {row['prompt_len']} + {row['output_tokens']}, {row['batch']} at once"
        shape, kind = model(row["model"]), device(row["gpu"].removesuffix("-pcap"))
        if shape is None or kind is None:
            yield Case(label, 0.0, None, group=group, why=f"unknown {'model' if shape is None else 'device'}")
            continue
        prompt, tokens, batch, ranks = (int(row[n]) for n in ("prompt_len", "output_tokens", "batch", "tp"))
        layout, links = Layout(tensor=ranks), links_within(kind)
        found = request_seconds(shape, prompt, tokens, batch, layout, links, engine)
        measured = (float(row["prefill_ms"]) + (tokens - 1) * float(row["tpot_ms"])) / 1e3
        whole = found and found[0] + (tokens - 1) * found[1]
        null = tokens * weight_bytes(replica_of(shape, layout, links, engine, "bfloat16")) / kind.memory_bytes_per_s
        yield Case(label, measured, whole, null, group)


TABLES = [
    Table(
        "throughput (TensorRT-LLM 1.0)",
        frozenset(("model", "gpu", "precision", "tp_gpus", "isl", "osl", "output_tokens_per_s_total")),
        (View("output tokens per second at saturation; null model: all at the peak", "1/s", throughput_cases),),
        columns(COUNT, "tp_gpus", "isl", "osl") | columns(AMOUNT, "output_tokens_per_s_total"),
    ),
    Table(
        "serving latency of 2023 (splitwise-sim)",
        frozenset(("model", "gpu", "tp", "prompt_len", "batch", "output_tokens", "prefill_ms", "tpot_ms")),
        (View("request latency", "s", _batches),),
        columns(COUNT, "tp", "prompt_len", "batch", "output_tokens") | columns(AMOUNT, "prefill_ms", "tpot_ms"),
    ),
]
