"""Products and attention that decodes, as aiconfigurator-core publishes them for one device each.

The null model is a constant share of the peak, or of the memory's bandwidth. Attention was measured over and over on
the same cache, so it is forecast as if the device's own cache still held it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil, log2

from benchmarks.forecast.cells import AMOUNT, COUNT, Number, columns
from benchmarks.forecast.report import Case, Row, Table, View
from flowgraph.errors import UnknownNameError
from placements.hardware.architectures import attained
from placements.hardware.device_profiles import DeviceProfile, profile
from placements.time.kernels import matmul_seconds, overlapped, peak_flops

NULL_SHARE = 0.7
LARGE_TOKENS = 256
LARGE_BYTES = 1e6
MERGED_TOKENS = (128, 1024)  # of a row: up to the first one processor attends to it, from the second on several do
# Shares of the cache: a read up to the first hits it entirely, from the second on not at all. Measured: 67 MB hit a
# cache of 96 (L40S) and of 126 (B200), 34 one of 50 (H100); twice as much does not.
CACHE_HITS = (0.7, 1.1)
# How well reading and waves overlap, less than in products: errors change by 0.02 between 1.25 and 2.
ATTENTION_OVERLAP = 1.5
Measure = Callable[[Row, DeviceProfile], tuple[float, float, float]]  # its size, the forecast and the null model, in ms


def measured_device(system: str, *, measured: bool = True) -> DeviceProfile | None:
    """Return the profile of a system's device, None if there is none; without what was measured on it if so asked."""
    try:
        found = profile(system.replace("_", "-"))
    except UnknownNameError:
        return None
    return found if measured else replace(found, shares={})


def product(row: Row, device: DeviceProfile) -> tuple[float, float, float]:
    """Return the tokens of a product, and its milliseconds by the forecast and the null model."""
    m, n, k = (int(row[name]) for name in "mnk")
    null_s = 2 * m * n * k / (peak_flops(device, "bfloat16") * NULL_SHARE)
    return m, 1e3 * matmul_seconds(m, n, k, device), 1e3 * null_s


def attention(row: Row, device: DeviceProfile) -> tuple[float, float, float]:
    """Return the bytes that an attention reads, and its milliseconds by the forecast and the null model."""
    rows, context = int(row["batch_size"]), int(row["isl"]) + int(row["step"])
    heads, kv_heads, head_dim = (int(row[name]) for name in ("num_heads", "num_key_value_heads", "head_dim"))
    read_bytes = 4.0 * rows * context * kv_heads * head_dim
    forecast_s = decode_attention_seconds(rows, context, heads, kv_heads, head_dim, device, warm=True)
    return read_bytes, 1e3 * forecast_s, 1e3 * read_bytes / (device.memory_bytes_per_s * NULL_SHARE)


def decode_attention_seconds(
    rows: float,
    context_tokens: float,
    heads: int,
    kv_heads: int,
    head_dim: int,
    device: DeviceProfile,
    cache_bytes: float = 2,
    *,
    warm: bool = False,
) -> float:
    """Return the seconds in which one layer attends for the next token of each row, `cache_bytes` a cached number.

    Keys and values are read once; a processor takes a minimum time for each row and head of keys. `warm` says that the
    device's cache still holds them, as when one kernel is measured over and over; in a model it never does.
    Source: Dao et al. 2023, Flash-Decoding, for rows split over processors; Williams et al. 2009, Roofline.
    """
    if min(rows, context_tokens) <= 0:
        return 0.0
    attains = attained(device)
    read_bytes = 2 * cache_bytes * (rows * context_tokens * kv_heads * head_dim)
    read_s = read_bytes / (device.memory_bytes_per_s * attains.attention)
    if warm:
        missed = _between(read_bytes / attains.cache_bytes, *CACHE_HITS)
        read_s *= missed + (1 - missed) / attains.cached
    work_s = 4 * rows * context_tokens * heads * head_dim / (peak_flops(device, "bfloat16") * attains.prefill)
    waves_s = (ceil(rows * kv_heads / attains.processors) - 1) * attains.block_s
    merge_s = attains.merge_s * _between(log2(context_tokens), *map(log2, MERGED_TOKENS))
    return attains.attention_launch_s + merge_s + overlapped(waves_s, max(read_s, work_s), ATTENTION_OVERLAP)


def _between(value: float, low: float, high: float) -> float:
    """Return how far a value is from one bound to the other, 0 and 1 beyond them.

    >>> _between(1.5, 1.0, 2.0), _between(9.0, 1.0, 2.0)
    (0.5, 1.0)
    """
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _cases(rows: Sequence[Row], measure: Measure, least: float, *, measured: bool) -> Iterator[Case]:
    for row in rows:
        device = measured_device(row["system"], measured=measured)
        label = " ".join(value for name, value in row.items() if name not in ("latency_ms", "tflops", "source"))
        if device is None:
            yield Case(label, float(row["latency_ms"]), None, None, row["system"], "no profile of the device")
            continue
        size, forecast_ms, null_ms = measure(row, device)
        if size >= least:
            yield Case(label, float(row["latency_ms"]), forecast_ms, null_ms, row["system"])


def _view(name: str, measure: Measure, least: float = 0.0, *, measured: bool = True) -> View:
    def cases(rows: Sequence[Row]) -> Iterable[Case]:
        return _cases(rows, measure, least, measured=measured)

    return View(name, "ms", cases)


TABLES = (
    Table(
        "products of bfloat16",
        frozenset(("system", "m", "n", "k", "latency_ms")),
        (
            _view("all", product),
            _view(f"m of {LARGE_TOKENS} and more", product, LARGE_TOKENS),
            _view(f"m of {LARGE_TOKENS} and more, by the architecture alone", product, LARGE_TOKENS, measured=False),
        ),
        columns(COUNT, "m", "n", "k") | columns(AMOUNT, "latency_ms"),
    ),
    Table(
        "attention that decodes",
        frozenset(("system", "batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim")),
        (
            _view("all", attention),
            _view("caches of 1 MB and more", attention, LARGE_BYTES),
            _view("caches of 1 MB and more, by the architecture alone", attention, LARGE_BYTES, measured=False),
        ),
        columns(COUNT, "batch_size", "num_heads", "num_key_value_heads", "head_dim")
        | columns(Number(whole=True, minimum=0), "isl", "step")
        | columns(AMOUNT, "latency_ms"),
    ),
)
