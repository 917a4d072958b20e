"""Serving latencies of SGLang, vLLM and TensorRT-LLM, as aiconfigurator-core ships them, against `request_seconds`.

A request's latency is its time to the first token and that of all others: how an engine shares out waiting between
the two differs, and their sum is what a rollout waits for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.forecast.cells import AMOUNT, COUNT, COUNT_OR_EMPTY, columns
from benchmarks.forecast.latency import request_seconds
from benchmarks.forecast.report import Case, Row, Table, View
from benchmarks.forecast.serving_models import ENGINES, device, links_within, model, release
from flowgraph.cluster.plan import Layout
from flowgraph.models.sizes import ModelShape
from placements.hardware.device_profiles import DeviceProfile, Precision
from placements.hardware.engine_constants import ServingConstants, constants
from placements.time.decode import cache_tokens, replica_of, weight_bytes

CACHED = "prompts that are in the cache already, as it seems"
REPEATED = "the measurement of another row again"
PRECISIONS: dict[str, Precision] = {"": "bfloat16", "bf16": "bfloat16", "fp8": "fp8", "fp4": "fp4"}
SHARE = 0.9  # of the memory, what vLLM is given unless asked; the benchmarks that these rows are from do not say


@dataclass(frozen=True)
class Served:
    """A row of the table: what was asked of which engine, and what came of it."""

    shape: ModelShape
    device: DeviceProfile
    engine: str
    version: str
    precision: Precision
    cache_precision: Precision
    layout: Layout
    prompt_tokens: float
    response_tokens: float
    batch: float
    first_s: float
    each_s: float

    @property
    def measured_s(self) -> float:
        """Return the seconds of a request."""
        return self.first_s + (self.response_tokens - 1) * self.each_s

    @property
    def measurement(self) -> object:
        """Tell it from others: the same of nearly the same seconds was written down again, under another release."""
        return replace(self, version="", first_s=round(self.first_s, 3), each_s=round(self.each_s, 5))


def served(row: Row) -> Served | str:
    """Read a row; a text if it cannot be forecast, which says why."""
    shape, kind = model(row["model_path"]), device(row["system"])
    if shape is None or kind is None:
        return f"unknown {'model' if shape is None else 'device'}"
    if row["backend"] not in ENGINES or row["precision"] not in PRECISIONS or _whole(row, "pp_size") > 1:
        return "an engine, a precision or a pipeline that is not modelled"
    ranks, precision = _whole(row, "attention_dp_size"), PRECISIONS[row["precision"]]
    told = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
    batch = _whole(row, "batch_size")
    quantised = precision in ("fp8", "fp4") and row["gemm_quant_mode"] != "fp8_block"
    return Served(
        shape=shape,
        device=kind,
        engine=row["backend"],
        version=row["backend_version"],
        precision=precision,
        cache_precision="fp8" if quantised else "bfloat16",
        layout=_layout(row, ranks),
        prompt_tokens=_whole(row, "isl"),
        response_tokens=_whole(row, "osl"),
        batch=batch / ranks if told and int(told[1]) == batch else batch,  # of a rank, unless it is all there are
        first_s=float(row["silicon_ttft_ms"]) / 1e3,
        each_s=float(row["silicon_tpot_ms"]) / 1e3,
    )


def _layout(row: Row, ranks: int) -> Layout:
    """Read the layout. Some rows say of TP n with EP n that it takes n · n devices: each is another row's again."""
    tensor, cut, expert = (_whole(row, name) for name in ("tp_size", "moe_tp_size", "moe_ep_size"))
    return Layout(data=ranks, tensor=expert if cut == expert > 1 and tensor == cut * expert else tensor, expert=expert)


def _whole(row: Row, name: str) -> int:
    return int(float(row[name] or 1))


def forecast_s(asked: Served, moved: ServingConstants | None = None) -> tuple[float, float] | None:
    """Forecast the seconds to the first token, and of each other."""
    engine = moved or constants(ServingConstants, asked.engine, release(asked.engine, asked.version))
    links = links_within(asked.device)
    room = cache_tokens(
        asked.shape,
        asked.device,
        asked.layout.tensor,
        SHARE,
        engine,
        asked.precision,
        expert=asked.layout.data if asked.layout.expert > 1 else 1,
        cache_precision=asked.cache_precision,
    )
    return request_seconds(
        asked.shape,
        asked.prompt_tokens,
        asked.response_tokens,
        asked.batch,
        asked.layout,
        links,
        engine,
        asked.precision,
        cache_tokens=room,
        cache_precision=asked.cache_precision,
    )


def null_s(asked: Served) -> float:
    """Return what a request takes if each token reads all weights at the memory's full rate."""
    engine = constants(ServingConstants, asked.engine)
    replica = replica_of(asked.shape, asked.layout, links_within(asked.device), engine, asked.precision)
    return asked.response_tokens * weight_bytes(replica) / asked.device.memory_bytes_per_s


def cached(row: Row) -> bool:
    """Return whether the row is of the group whose prompts were in the cache."""
    return row["backend"] == "vllm" and row["model_path"] == "nvidia/Llama-3.1-8B-Instruct-FP8"


def _cases(rows: Sequence[Row], cached_prompts: bool, tokens: bool = False) -> Iterator[Case]:
    seen = set[object]()
    for row in rows:
        if cached(row) != cached_prompts:
            continue
        label = " ".join(row[name] for name in ("model_path", "system", "backend", "precision", "tp_size"))
        group = " ".join(
            (row["model_path"].rpartition("/")[2], row["backend"], row["system"], row["precision"] or "bf16")
        )
        asked = served(row)
        if isinstance(asked, str) or asked.measurement in seen:
            yield Case(label, 0.0, None, group=group, why=asked if isinstance(asked, str) else REPEATED)
            continue
        seen.add(asked.measurement)
        found = forecast_s(asked)
        if tokens:
            yield Case(label, asked.each_s, found and found[1], null_s(asked) / asked.response_tokens, group)
        else:
            whole = found and found[0] + (asked.response_tokens - 1) * found[1]
            yield Case(label, asked.measured_s, whole, null_s(asked), group)


TABLES = [
    Table(
        "serving latency (aiconfigurator-core)",
        frozenset(("backend", "isl", "osl", "batch_size", "tp_size", "silicon_ttft_ms", "silicon_tpot_ms")),
        (
            View("request latency", "s", lambda rows: _cases(rows, cached_prompts=False)),
            View(f"request latency, apart: {CACHED}", "s", lambda rows: _cases(rows, cached_prompts=True)),
            View("time per output token", "s", lambda rows: _cases(rows, cached_prompts=False, tokens=True)),
        ),
        columns(COUNT, "isl", "osl")
        | columns(COUNT_OR_EMPTY, "batch_size", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
        | columns(AMOUNT, "silicon_ttft_ms", "silicon_tpot_ms"),
    )
]
