"""A plan's memory as a chart: the memory of each pool's devices, phase by phase, as forecast and as measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flowgraph.cluster.cluster import DeviceKind, show_bytes
from flowgraph.cluster.plan import PhasePeak, Plan, Pool, PoolForecast
from flowgraph.diagrams.model.charts import MemoryChart, MemoryColumn, Phase

ENTERING = "to "
"""The beginning of the name of a transition's phase."""

Key = tuple[str, str, str]  # pool, phase, role


def memory_picture(
    plan: Plan, measured: Sequence[PoolForecast] = (), *, fills: Mapping[DeviceKind, float]
) -> MemoryChart:
    """Return the memory chart of a plan's forecast: a column of phases, in the order of the step, for each pool.

    Pools without a forecast are left out, and the capacity of a pool is that of its smallest device. `measured` has
    memory peaks of measured steps; the highest of each phase and role is shown. `fills` is the fraction of a device's
    memory that a plan may fill, by kind of device. Raises KeyError if `fills` lacks the kind of a pool's first device.
    """
    peaks_bytes, pools = highest_peaks(measured), {pool.name: pool for pool in plan.pools}
    stores = [
        _store(plan, pools[forecast.pool], forecast, peaks_bytes, fills)
        for forecast in plan.forecast
        if forecast.pool in pools
    ]
    about = " ".join(map(_about, stores)) or "The plan forecasts no memory."
    return MemoryChart(f"memory of {plan.flow}", tuple(stores), about)


def highest_peaks(forecasts: Iterable[PoolForecast]) -> dict[Key, int]:
    """Return the highest memory peak in bytes by (pool, phase, role), among forecasts or measurements of pools."""
    peaks_bytes = dict[Key, int]()
    for forecast in forecasts:
        for peak in forecast.peaks:
            key = (forecast.pool, peak.phase, peak.role)
            peaks_bytes[key] = max(peaks_bytes.get(key, 0), peak.memory_bytes)
    return peaks_bytes


def _store(
    plan: Plan, pool: Pool, forecast: PoolForecast, measured: Mapping[Key, int], fills: Mapping[DeviceKind, float]
) -> MemoryColumn:
    devices = [plan.cluster.device(*place) for place in pool.devices]
    smallest_bytes = min((device.memory_bytes for device in devices if device is not None), default=0)
    first = devices[0]
    room_bytes = int(fills[first.kind] * smallest_bytes) if first is not None else smallest_bytes
    count = "1 device" if len(devices) == 1 else f"each of {len(devices):,} devices"
    phases = list[Phase]()
    for peak in forecast.peaks:
        roles = {same.role for same in forecast.peaks if same.phase == peak.phase}
        label = f"{peak.phase} ({peak.role})" if len(roles) > 1 else peak.phase
        measured_bytes = measured.get((forecast.pool, peak.phase, peak.role))
        phases.append(Phase(label, bytes_by_role(peak), peak.phase.startswith(ENTERING), measured_bytes))
    return MemoryColumn(f"{pool.name}: {count}", pool.name, tuple(phases), smallest_bytes, room_bytes)


def bytes_by_role(peak: PhasePeak) -> tuple[tuple[str, int], ...]:
    """Return (role, bytes) for each role that holds memory at a peak.

    If the bytes of roles are unknown or do not add up to the peak, the role that the peak names has all bytes.

    >>> bytes_by_role(PhasePeak(phase="update", role="m.train", memory_bytes=8))
    (('m.train', 8),)
    """
    complete = peak.held and sum(peak.held.values()) == peak.memory_bytes
    return tuple(peak.held.items()) if complete else ((peak.role, peak.memory_bytes),)


def _about(store: MemoryColumn) -> str:
    peak = max(store.phases, key=lambda phase: phase.size_bytes, default=None)
    if peak is None:
        return f"Nothing runs on {store.pool}."
    if peak.size_bytes > store.capacity_bytes:
        margin = f"{show_bytes(peak.size_bytes - store.capacity_bytes)} too much"
    elif peak.size_bytes > store.room_bytes:
        margin = f"{show_bytes(peak.size_bytes - store.room_bytes)} more than a plan may use"
    else:
        margin = f"{show_bytes(store.room_bytes - peak.size_bytes)} less than a plan may use"
    text = f"On {store.pool} the highest phase is {peak.label}: {show_bytes(peak.size_bytes)} of"
    text += f" {show_bytes(store.capacity_bytes)}, {margin}."
    exceeded = [phase.label for phase in store.phases if (phase.measured_bytes or 0) > phase.size_bytes]
    return text + (f" Measured, {', '.join(exceeded)} took more than forecast." if exceeded else "")
