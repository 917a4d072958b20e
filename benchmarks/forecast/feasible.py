"""The least devices that verl documents for a model, against the least on which our footprints of its roles fit.

The policy is trained and sampled and a reference read on one pool. All that can be is on the host, where the optimizer
steps; or it is put away between phases only. A row's lengths are not published: 2,048 tokens are taken. The null model
is the states' bytes over a device's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from math import ceil

from benchmarks.forecast.cells import COUNT, columns
from benchmarks.forecast.report import Case, Row, Table, View
from benchmarks.forecast.training_case import device, model
from flowgraph.cluster.plan import Layout, Offloaded
from flowgraph.models.sizes import ModelShape
from placements.memory.footprint import FITS_SHARE, MemoryConstants, room_bytes
from placements.memory.pool_peaks import PhaseTurn, PoolResident, pool_peaks
from placements.memory.serving import generation_bytes, inference_bytes
from placements.memory.training import TrainingSettings, training_bytes

COUNTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
ALL_OFF: tuple[Offloaded, ...] = ("parameters", "gradients", "optimizer")
CACHED_ROWS = 16  # a replica has room for so many rows at full length
CONSTANTS = MemoryConstants()


def least(row: Row, offload: tuple[Offloaded, ...] = ALL_OFF) -> int | str:
    """Return the least devices on which a row's roles fit if so much is offloaded, or why that is not known."""
    kind, shape = device(row["gpu"]), model(row["model"], adapted="LoRA" in row["algorithm"])
    if kind is None or shape is None:
        return "unknown model or device"
    tokens, usable = int(row["row_tokens"]), kind.memory_bytes
    found = (count for count in COUNTS if _fits(shape, count, usable, row["train"], tokens, offload))
    return next(found, None) or "on no number of devices"


def _fits(
    shape: ModelShape, devices: int, usable_bytes: int, train: str, row_tokens: int, offload: tuple[Offloaded, ...]
) -> bool:
    return any(
        _fits_so(shape, trained, sampled, usable_bytes, row_tokens, offload)
        for trained in _trained(devices, train, bool(shape.experts))
        for sampled in _sampled(devices)
    )


def _trained(devices: int, train: str, experts: bool) -> Iterator[Layout]:
    """Yield the layouts of a trainer: FSDP over all, or Megatron's, with as much of each as divides."""
    if train == "fsdp":
        yield Layout(data=devices, sharding="full")
        return
    for tensor in (degree for degree in (1, 2, 4, 8) if devices % degree == 0):
        for pipeline in (degree for degree in range(1, 17) if devices // tensor % degree == 0):
            data = devices // tensor // pipeline
            yield Layout(
                data=data, tensor=tensor, pipeline=pipeline, expert=data if experts else 1, sharding="optimizer"
            )


def _sampled(devices: int) -> Iterator[Layout]:
    """Yield the layouts of a sampler: replicas of up to eight ranks, or of several machines in a pipeline."""
    for tensor in (degree for degree in (1, 2, 4, 8) if devices % degree == 0):
        yield Layout(data=devices // tensor, tensor=tensor)
    if devices % 8 == 0:
        yield Layout(data=1, tensor=8, pipeline=devices // 8)


def _fits_so(
    shape: ModelShape,
    trained: Layout,
    sampled: Layout,
    usable_bytes: int,
    row_tokens: int,
    offload: tuple[Offloaded, ...],
) -> bool:
    kept = {"parameters"} if trained.sharding != "full" else set[str]()  # Megatron computes with weights where they lie
    training = TrainingSettings(layout=trained, offload=frozenset(offload) - kept, micro_batch_tokens=row_tokens)
    cache_tokens = CACHED_ROWS * row_tokens
    held = [
        PoolResident("policy.train", training_bytes(shape, training, sequence_tokens=row_tokens), sleeps=True),
        PoolResident(
            "policy.sample",
            generation_bytes(shape, sampled, device_bytes=usable_bytes, cache_tokens=cache_tokens),
            True,
        ),
    ]
    turns = [PhaseTurn("generate", "policy.sample", "policy.train"), PhaseTurn("update", "policy.train")]
    if not shape.adapters:
        held.append(
            PoolResident("ref.infer", inference_bytes(shape, trained, row_tokens, offload=ALL_OFF[:1]), process="train")
        )
        turns.insert(1, PhaseTurn("logprob", "ref.infer"))
    # A bucket holds at least the embedding whole, in bfloat16.
    peaks = pool_peaks(held, turns, bucket_bytes=max(int(CONSTANTS.bucket_bytes), 2 * shape.vocabulary * shape.hidden))
    return all(peak.peak_bytes <= room_bytes(usable_bytes) for peak in peaks)


def _counts(rows: Sequence[Row], offload: tuple[Offloaded, ...] = ALL_OFF) -> Iterator[Case]:
    for row in rows:
        found, label = least(row, offload), f"{row['model']} {row['algorithm']} {row['gpu']} {row['train']}"
        if isinstance(found, str):
            yield Case(label, float(row["gpus"]), None, group="left out", why=found)
        else:
            yield Case(label, float(row["gpus"]), float(found), _null(row), row["algorithm"])


@cache
def _states_bytes(name: str, adapted: bool) -> float:
    shape = model(name)
    return 0.0 if shape is None else (4.0 if adapted else 16.0) * shape.parameters


def _null(row: Row) -> float:
    kind = device(row["gpu"])
    usable = FITS_SHARE * kind.memory_bytes if kind else 1.0
    return float(ceil(_states_bytes(row["model"], "LoRA" in row["algorithm"]) / usable))


def _feasible(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield 1 for each row whose roles fit on the devices that it is known to run on."""
    for case in _counts(rows):
        forecast = None if case.forecast is None else float(case.forecast <= case.measured)
        null = None if case.null is None else float(case.null <= case.measured)
        yield Case(case.label, 1.0, forecast, null, case.group, case.why)


TABLES = (
    Table(
        "least devices of verl",
        frozenset(("model", "algorithm", "gpu", "gpus", "train", "row_tokens")),
        (
            View("fits on the devices that it is known to run on: 1 is yes", "rows", _feasible),
            View("least devices, all on the host", "devices", _counts),
            View("least devices, put away between phases only", "devices", lambda rows: _counts(rows, ())),
        ),
        columns(COUNT, "gpus", "row_tokens"),
    ),
)
