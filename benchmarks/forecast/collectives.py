"""Collectives inside one machine of up to eight devices, as aiconfigurator-core publishes them (nccl-tests).

Messages are of two bytes a number. The null model is a constant share of the link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.forecast.cells import AMOUNT, COUNT, columns
from benchmarks.forecast.kernels import LARGE_BYTES, NULL_SHARE, measured_device
from benchmarks.forecast.report import Case, Row, Table, View
from placements.hardware.device_profiles import DeviceProfile, PoolLinks
from placements.time.collectives import Collective, collective_seconds

OPS: dict[str, Collective] = {
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
}
ELEMENT_BYTES = 2
MACHINE_DEVICES = 8


def machine(device: DeviceProfile, devices: int = MACHINE_DEVICES) -> PoolLinks:
    """Give what a pool of machines with so many of a device each talks over."""
    network = device.network_bytes_per_s or device.host_bytes_per_s
    return PoolLinks(device, min(device.domain, devices), devices, network)


def collective(row: Row, device: DeviceProfile) -> tuple[float, float, float]:
    """Return the bytes of a collective, and its milliseconds by the forecast and the null model."""
    devices, size_bytes, op = int(row["num_gpus"]), ELEMENT_BYTES * float(row["message_elems"]), OPS[row["op_name"]]
    forecast_s = collective_seconds(op, size_bytes, devices, machine(device))
    passes = 2 if op == "all_reduce" else 1
    null_s = passes * size_bytes * (devices - 1) / devices / (device.link_bytes_per_s * NULL_SHARE)
    return size_bytes, 1e3 * forecast_s, 1e3 * null_s


def _cases(rows: Sequence[Row], least_bytes: float, *, measured: bool) -> Iterator[Case]:
    for row in rows:
        devices, size_bytes = int(row["num_gpus"]), ELEMENT_BYTES * float(row["message_elems"])
        label, group = f"{row['system']} {row['op_name']} {devices} {size_bytes:.0f}", row["system"]
        measured_ms, device = float(row["latency_ms"]), measured_device(row["system"], measured=measured)
        if device is None or row["op_name"] not in OPS:
            why = "no profile of the device" if device is None else f"the collective {row['op_name']}"
            yield Case(label, measured_ms, None, None, group, why)
        elif size_bytes >= least_bytes:
            _, forecast_ms, null_ms = collective(row, device)
            yield Case(label, measured_ms, forecast_ms, null_ms, group)


def _view(name: str, least_bytes: float = 0.0, *, measured: bool = True) -> View:
    def cases(rows: Sequence[Row]) -> Iterable[Case]:
        return _cases(rows, least_bytes, measured=measured)

    return View(name, "ms", cases)


TABLES = (
    Table(
        "collectives of one machine",
        frozenset(("system", "op_name", "num_gpus", "message_elems", "latency_ms")),
        (
            _view("all"),
            _view("messages of 1 MB and more", LARGE_BYTES),
            _view("messages of 1 MB and more, by the architecture alone", LARGE_BYTES, measured=False),
        ),
        columns(COUNT, "num_gpus") | columns(AMOUNT, "message_elems", "latency_ms"),
    ),
)
