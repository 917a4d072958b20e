"""Generation as engines' own pages, InferenceX and blogs publish it, in one format, against our forecasts.

Three sorts of row can be forecast: so many requests always under way at a server, as many requests as an engine takes,
and a decoding batch that stays as it is. Rows with speculative decoding, or where requests queue, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from benchmarks.forecast.latency import request_seconds
from benchmarks.forecast.report import Case, Row, Table, View
from benchmarks.forecast.serving_models import device, links_within, model
from benchmarks.forecast.serving_throughput import layouts, tokens_per_s
from flowgraph.cluster.plan import Layout
from flowgraph.models.sizes import ModelShape
from placements.hardware.device_profiles import DeviceProfile, Precision
from placements.hardware.engine_constants import ServingConstants, constants
from placements.time.decode import ServingReplica, cache_tokens, replica_of, step_s, weight_bytes

ENGINES = {"sglang": "sglang", "vllm": "vllm", "tensorrt-llm": "trtllm"}
PRECISIONS: dict[str, Precision] = {
    "": "bfloat16",
    "bf16": "bfloat16",
    "fp8": "fp8",
    "fp8 (as the page says)": "fp8",
    "fp4": "fp4",
    "fp4 (mxfp4)": "fp4",
    "nvfp4": "fp4",
}
NOMINAL = 0.9  # of the lengths that a client of InferenceX asks for, their mean
SHARE = 0.9  # of the memory, what an engine is given unless it is said


@dataclass(frozen=True)
class Rollout:
    """A row that can be forecast: what runs it, and how many requests of which mean lengths a replica has."""

    shape: ModelShape
    device: DeviceProfile
    engine: str
    precision: Precision
    devices: int
    layout: Layout
    prompt_tokens: float
    response_tokens: float
    rows: float

    @cached_property
    def constants(self) -> ServingConstants:
        """Return the constants of the engine's newest release."""
        return constants(ServingConstants, self.engine)

    @cached_property
    def replica(self) -> ServingReplica:
        """Return one replica of the model."""
        links = links_within(self.device)
        return replica_of(self.shape, self.layout, links, self.constants, self.precision)

    @cached_property
    def requests_s(self) -> tuple[float, float] | None:
        """Return a request's seconds to its first token, and for each after it."""
        expert = self.layout.data if self.layout.expert > 1 else 1
        room = cache_tokens(
            self.shape, self.device, self.layout.tensor, SHARE, self.constants, self.precision, expert=expert
        )
        return request_seconds(
            self.shape,
            self.prompt_tokens,
            self.response_tokens,
            self.rows,
            self.layout,
            links_within(self.device),
            self.constants,
            self.precision,
            cache_tokens=room,
        )

    @property
    def null_s(self) -> float:
        """Return what a token takes if all weights are read at the memory's full rate, and nothing else counts."""
        return weight_bytes(self.replica) / self.device.memory_bytes_per_s


def rollout(row: Row) -> Rollout | str:
    """Read a row; a text if it cannot be forecast, which says why."""
    shape, kind = model(row["model"]), device(row["gpu"].lower())
    if shape is None or kind is None:
        return f"unknown {'model' if shape is None else 'device'}"
    if row["engine"] not in ENGINES or row["weights"] not in PRECISIONS:
        return "an engine or a precision that is not modelled"
    if row["speculative"] not in ("", "none"):
        return "drafts several tokens at a time"
    if "queue" in row["measures"] or "host" in row["measures"] or not row["gpus"]:
        return "requests queue, or no devices are said"
    devices, tensor, expert = int(row["gpus"]), int(row["tp"] or row["gpus"]), int(row["ep"] or 1)
    attends_apart = row["dp_attention"] == "yes" or row["arrangement"] == "decode only"
    layout = Layout(data=devices, expert=devices) if attends_apart else Layout(tensor=tensor, expert=expert)
    nominal = NOMINAL if "about 0.9" in row["lengths"] else 1.0
    said = float(row["concurrency"] or 0)
    return Rollout(
        shape=shape,
        device=kind,
        engine=ENGINES[row["engine"]],
        precision=PRECISIONS[row["weights"]],
        devices=devices,
        layout=layout,
        prompt_tokens=nominal * float(row["input_len_tokens"] or 0),
        response_tokens=nominal * float(row["output_len_tokens"] or 0),
        rows=float(row["batch_per_gpu"] or 0) if row["arrangement"] == "decode only" else said / layout.data,
    )


def _label(row: Row) -> tuple[str, str]:
    lengths = f"{row['input_len_tokens']}+{row['output_len_tokens']}"
    group = " ".join((row["engine"], row["model"], row["weights"], row["gpu"]))
    return f"{group} x{row['gpus']} {lengths} {row['concurrency']} at once", group


def _under_way(
    rows: Sequence[Row], measured: Callable[[Row], str], figures: Callable[[Rollout], tuple[float | None, float]]
) -> Iterator[Case]:
    """Return the cases of rows where a client keeps so many requests under way: a forecast, and the null model's."""
    for row in rows:
        value = measured(row)
        if row["arrangement"] != "aggregated" or not (row["concurrency"] and row["output_len_tokens"] and value):
            continue
        (label, group), asked = _label(row), rollout(row)
        if isinstance(asked, str) or not asked.prompt_tokens:
            yield Case(label, 0.0, None, group=group, why=asked if isinstance(asked, str) else "no length of prompts")
            continue
        forecast, null = figures(asked)
        yield Case(label, float(value), forecast, null, group)


def _served(rows: Sequence[Row]) -> Iterator[Case]:
    """Return the milliseconds of each token, the first left out."""

    def token_ms(asked: Rollout) -> tuple[float | None, float]:
        found = asked.requests_s
        return found and found[1] * 1e3, asked.null_s * 1e3

    return _under_way(rows, lambda row: row["median_tpot_ms"] or row["mean_tpot_ms"], token_ms)


def _request_rate(rows: Sequence[Row]) -> Iterator[Case]:
    """Return tokens per second and device."""

    def rate(asked: Rollout) -> tuple[float | None, float]:
        tokens, found = asked.response_tokens, asked.requests_s
        under_way = asked.rows * asked.layout.data / asked.devices
        return found and under_way * tokens / (found[0] + (tokens - 1) * found[1]), under_way / asked.null_s

    return _under_way(rows, lambda row: row["output_tokens_per_s_per_gpu"], rate)


def _saturated(rows: Sequence[Row]) -> Iterator[Case]:
    """Return tokens per second and device of as many requests as the engine takes."""
    for row in rows:
        measured = row["output_tokens_per_s_per_gpu"]
        if "most throughput" not in row["measures"] or not measured or row["concurrency"]:
            continue
        (label, group), asked = _label(row), rollout(row)
        if isinstance(asked, str) or not asked.prompt_tokens or asked.engine != "trtllm":
            yield Case(label, 0.0, None, group=group, why=asked if isinstance(asked, str) else "lengths or engine")
            continue
        lengths = int(asked.prompt_tokens), int(asked.response_tokens)
        tried = layouts(asked.shape, asked.devices)
        best = max(tokens_per_s(asked.shape, asked.device, each, asked.precision, *lengths) for each in tried)
        peak = asked.device.peak_flops.get(asked.precision, 0.0) / (2 * asked.shape.active * sum(lengths)) * lengths[1]
        yield Case(label, float(measured), best / asked.devices or None, peak, group, "does not fit")


def _decoding(rows: Sequence[Row]) -> Iterator[Case]:
    """Return tokens per second and device of a batch that decodes and stays as it is."""
    for row in rows:
        measured = row["output_tokens_per_s_per_gpu"]
        if row["arrangement"] != "decode only" or not (measured and row["batch_per_gpu"] and row["input_len_tokens"]):
            continue
        (label, group), asked = _label(row), rollout(row)
        if isinstance(asked, str):
            yield Case(label, 0.0, None, group=group, why=asked)
            continue
        rate = asked.rows / step_s(asked.replica, asked.rows, asked.prompt_tokens)
        yield Case(label, float(measured), rate, asked.rows / asked.null_s, group)


TABLES = (
    Table(
        "generation by engines' own figures",
        frozenset(("engine", "arrangement", "concurrency", "batch_per_gpu", "output_tokens_per_s_per_gpu", "weights")),
        (
            View("time per output token, requests under way stated", "ms", _served),
            View("output tokens per second and device, requests under way stated", "1/s", _request_rate),
            View("output tokens per second and device at saturation; null model: all at the peak", "1/s", _saturated),
            View("output tokens per second and device of a batch that decodes", "1/s", _decoding),
        ),
    ),
)
