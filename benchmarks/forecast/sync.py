"""Weights on their way from a training pool to a generation pool, as frameworks publish it, in machines of eight.

A row does not say how many tensors a model has, nor what its pools talk over: the first is counted here from public
configurations, the second is taken from the device's profile. The null model is one network adapter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.forecast.cells import AMOUNT_OR_EMPTY, columns
from benchmarks.forecast.collectives import MACHINE_DEVICES, machine
from benchmarks.forecast.kernels import measured_device
from benchmarks.forecast.report import Case, Row, Table, View
from placements.hardware.device_profiles import PoolLinks
from placements.time.transitions import Method, sync_seconds

FACTOR = 2.0
METHODS: dict[str, Method] = {
    "per-tensor NCCL": "broadcast",
    "nccl full broadcast": "staged",
    "checkpoint-engine": "bucketed",
    "checkpoint-engine bucketed": "bucketed",
    "checkpoint-engine broadcast": "parallel",
    "checkpoint-engine p2p": "parallel",
    "delta_sharded": "delta",
}
# Decoder layers, tensors of a layer without its experts, and experts over all layers, each of three matrices; of a
# checkpoint in fp8 every matrix has a tensor of scales. Source: the configurations on the models' public pages.
TENSORS: dict[str, tuple[int, int, int]] = {
    "Qwen2.5-0.5B": (24, 12, 0),
    "Qwen2.5-1.5B": (28, 12, 0),
    "Qwen2.5-3B": (36, 12, 0),
    "Qwen2.5-7B": (28, 12, 0),
    "Qwen2.5-Math-7B": (28, 12, 0),
    "Qwen2.5-14B": (48, 12, 0),
    "Qwen2.5-32B": (64, 12, 0),
    "Qwen2.5-72B": (80, 12, 0),
    "Qwen3-0.6B": (28, 11, 0),
    "Qwen3-1.7B": (28, 11, 0),
    "Qwen3-4B": (36, 11, 0),
    "Qwen3-8B": (36, 11, 0),
    "Qwen3-14B": (40, 11, 0),
    "Qwen3-32B": (64, 11, 0),
    "Qwen3-30B-A3B": (48, 9, 48 * 128),
    "Qwen3-235B-A22B": (94, 9, 94 * 128),
    "GLM-4.5-Air": (46, 12, 45 * 128),
    "DeepSeek-V3": (61, 13, 58 * 256),
    "Kimi-K2": (61, 13, 60 * 384),
}
# Bytes of what is sent, where a row leaves them out. Source: as above.
MODEL_BYTES: dict[str, float] = {
    "GLM-4.5-Air": 2 * 107e9,
    "Qwen3-235B-A22B": 470e9,
    "DeepSeek-V3": 688e9,
    "Kimi-K2": 1030e9,
}


@dataclass(frozen=True)
class Sync:
    """What a row says of one sync."""

    size_bytes: float
    tensors: int
    pools: tuple[tuple[PoolLinks, int], tuple[PoolLinks, int]]
    replicas: int
    method: Method
    together: bool


def read_sync(row: Row) -> Sync | str:
    """Read a row; where it does not say enough, give what is missing."""
    name = max((each for each in TENSORS if row["model"].startswith(each)), key=len, default="")
    method = METHODS.get(re.sub(r" \(.*\)$", "", row["method"]))
    device = measured_device(re.split(r"[ /]", row["gpu"])[0])
    devices = _devices(row)
    size_bytes = 1e9 * float(row["bytes_gb"]) if row["bytes_gb"] else MODEL_BYTES.get(name)
    if method is None:
        return f"the method {row['method']}"
    if device is None or devices is None or not name or size_bytes is None:
        missing = {"device": device, "devices": devices, "tensors": name or None, "bytes": size_bytes}
        return "no " + ", ".join(what for what, each in missing.items() if each is None)
    source, target = (machine(device, min(each, MACHINE_DEVICES)) for each in devices)
    tensor = int((re.search(r"TP(\d+)$", row["gpu"]) or re.search(r"gen TP(\d+)", row["model"]) or [0, 1])[1])
    together = sum(devices) <= MACHINE_DEVICES
    tensors = _tensors(name) * (2 if "FP8" in row["model"] else 1)
    pools = ((source, devices[0]), (target, devices[1]))
    return Sync(size_bytes, tensors, pools, max(1, devices[1] // tensor), method, together)


def _tensors(name: str) -> int:
    layers, each, experts = TENSORS[name]
    return layers * each + 3 * experts + 3


def _devices(row: Row) -> tuple[int, int] | None:
    """Give the devices of both pools; of one machine without numbers, each has half."""
    if row["src_gpus"].isdigit() and row["dst_gpus"].isdigit():
        return int(row["src_gpus"]), int(row["dst_gpus"])
    return (MACHINE_DEVICES // 2, MACHINE_DEVICES // 2) if "1 node" in row["model"] else None


def forecast_s(sync: Sync) -> float | None:
    """Give the forecast of a row's sync."""
    (source, source_devices), (target, target_devices) = sync.pools
    return sync_seconds(
        sync.size_bytes,
        sync.tensors,
        source,
        source_devices,
        target,
        target_devices,
        sync.replicas,
        sync.method,
        together=sync.together,
    ).total_s


def measured_s(text: str) -> float | None:
    """Read a time or a range of times, of which the middle counts; None for what is no number.

    >>> measured_s("11.0-12.0"), measured_s("0.12"), measured_s("<3"), measured_s("10 -> 17")
    (11.5, 0.12, None, None)
    """
    return mean(map(float, text.split("-"))) if re.fullmatch(r"[\d.]+(-[\d.]+)?", text.strip()) else None


def cases_of(rows: Iterable[Row]) -> Iterator[Case]:
    """Give the rows that were read from a table and have a time, by method."""
    for row in rows:
        time_s = measured_s(row["time_s"])
        if row["quality"] != "table" or time_s is None:
            continue
        sync, label = read_sync(row), f"{row['model']} {row['gpu']} {row['method']}"
        if isinstance(sync, str):
            yield Case(label, time_s, None, None, row["method"], sync)
            continue
        network = sync.pools[0][0].network_bytes_per_s
        yield Case(label, time_s, forecast_s(sync), sync.size_bytes / network, sync.method)


def hit(measured: float, forecast: float | None) -> bool:
    """Say whether a forecast is within a factor of two."""
    return forecast is not None and measured / FACTOR <= forecast <= measured * FACTOR


def _misses(rows: Sequence[Row]) -> Iterator[Case]:
    """Give each row as 1, and its forecast as 1 where it is a hit and 2 where it is not: the mean is their share."""
    for case in cases_of(rows):
        if case.forecast is None:
            yield case
        else:
            ours, null = (2.0 - hit(case.measured, each) for each in (case.forecast, case.null))
            yield Case(case.label, 1.0, ours, null, case.group)


TABLES = (
    Table(
        "weight syncs",
        frozenset(("model", "bytes_gb", "src_gpus", "dst_gpus", "gpu", "method", "time_s", "quality")),
        (
            View("rows read from tables, by method", "s", cases_of),
            View("off by more than a factor of 2: the mean is the share of rows", "-", _misses),
        ),
        columns(AMOUNT_OR_EMPTY, "bytes_gb"),
    ),
)
