"""A plan's memory as a chart: what each pool's devices hold, phase by phase, as forecast and as measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from flowgraph.cluster.cluster import DeviceKind, show_bytes
from flowgraph.cluster.plan import PhasePeak, Plan, Pool, PoolForecast
from flowgraph.diagrams.model.charts import MemoryChart, Phase, PoolMemory

ENTERING = "to "
"""What the phase of a peak begins with that is on the way to another."""

Key = tuple[str, str, str]  # pool, phase, role


def memory_picture(
    plan: Plan, measured: Sequence[PoolForecast] = (), *, fills: Mapping[DeviceKind, float]
) -> MemoryChart:
    """Give the chart of a plan's forecast, its phases in the order of the step; a pool without a forecast has none.

    `measured` are the forecasts of measured steps, of which the highest peaks count. `fills` says what part of a
    device of each kind a plan may fill. Capacity is that of the smallest device of a pool.
    """
    seen, pools = highest(measured), {pool.name: pool for pool in plan.pools}
    told = [each for each in plan.forecast if each.pool in pools]
    stores = tuple(_store(plan, pools[each.pool], each, seen, fills) for each in told)
    about = " ".join(_about(store) for store in stores) or "The plan forecasts no memory."
    return MemoryChart(f"memory of {plan.flow}", stores, about)


def highest(forecasts: Iterable[PoolForecast]) -> dict[Key, int]:
    """Give the highest peak of each pool, phase and role."""
    found = dict[Key, int]()
    for forecast in forecasts:
        for peak in forecast.peaks:
            key = (forecast.pool, peak.phase, peak.role)
            found[key] = max(found.get(key, 0), peak.memory_bytes)
    return found


def _store(
    plan: Plan, pool: Pool, forecast: PoolForecast, seen: Mapping[Key, int], fills: Mapping[DeviceKind, float]
) -> PoolMemory:
    smallest = smallest_bytes(plan, pool)
    device = plan.cluster.device(*pool.devices[0])
    room = int(fills[device.kind] * smallest) if device is not None else smallest
    phases = tuple(_phases(forecast, seen))
    return PoolMemory(f"{pool.name}: {_each_device(pool)}", pool.name, phases, smallest, room)


def smallest_bytes(plan: Plan, pool: Pool) -> int:
    """Give the memory of the smallest device of a pool; 0 if none of them is there."""
    found = (plan.cluster.device(*place) for place in pool.devices)
    return min((device.memory_bytes for device in found if device is not None), default=0)


def _each_device(pool: Pool) -> str:
    return "1 device" if len(pool.devices) == 1 else f"each of {len(pool.devices):,} devices"


def _phases(forecast: PoolForecast, seen: Mapping[Key, int]) -> Iterator[Phase]:
    """Give the forecast peaks of a pool, each with what was measured of the same phase and role."""
    for peak in forecast.peaks:
        measured = seen.get((forecast.pool, peak.phase, peak.role))
        yield Phase(_label(forecast, peak), parts_of(peak), peak.phase.startswith(ENTERING), measured)


def _label(forecast: PoolForecast, peak: PhasePeak) -> str:
    """Name a phase, with its role where the pool has the phase of two."""
    roles = {each.role for each in forecast.peaks if each.phase == peak.phase}
    return f"{peak.phase} ({peak.role})" if len(roles) > 1 else peak.phase


def parts_of(peak: PhasePeak) -> tuple[tuple[str, int], ...]:
    """Give what is held by role; all of it by the role that works, where no more is known or it is not all.

    >>> parts_of(PhasePeak(phase="update", role="m.train", memory_bytes=8))
    (('m.train', 8),)
    """
    told = sum(peak.held.values()) == peak.memory_bytes
    return tuple(peak.held.items()) if peak.held and told else ((peak.role, peak.memory_bytes),)


def _about(store: PoolMemory) -> str:
    """Say which phase of a pool is the highest, and by how much that fits."""
    most = max(store.phases, key=lambda phase: phase.size_bytes, default=None)
    if most is None:
        return f"Nothing works on {store.pool}."
    high = f"On {store.pool} the highest phase is {most.label}: {show_bytes(most.size_bytes)} of"
    high += f" {show_bytes(store.capacity_bytes)}, {_margin(store, most.size_bytes)}."
    over = [phase for phase in store.phases if (phase.measured_bytes or 0) > phase.size_bytes]
    return high + (f" Measured, {', '.join(phase.label for phase in over)} took more than forecast." if over else "")


def _margin(store: PoolMemory, size_bytes: int) -> str:
    """Say by how much a peak is below what a plan fills, between that and all that there is, or above."""
    if size_bytes > store.capacity_bytes:
        return f"{show_bytes(size_bytes - store.capacity_bytes)} too much"
    if size_bytes > store.room_bytes:
        return f"{show_bytes(size_bytes - store.room_bytes)} more than a plan fills"
    return f"{show_bytes(store.room_bytes - size_bytes)} below what a plan fills"
