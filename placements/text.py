"""Plans as text: short, stable, diff-able."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowgraph.cluster import show_bytes
from flowgraph.plan import Forecast, Placed, Plan, Pool
from placements.fits import room_bytes


def plan_text(plan: Plan) -> str:
    """Print a plan: each pool with its devices, the roles on it, and its peak in each phase with the margin left."""
    lines = [f"plan of {plan.flow}, structure {plan.structure_hash[:12]}"]
    forecasts = {forecast.pool: forecast for forecast in plan.forecast}
    for pool in plan.pools:
        lines += _pool(plan, pool)
        lines += _peaks(plan, pool, forecasts[pool.name]) if pool.name in forecasts else []
    return "\n".join(lines)


def _pool(plan: Plan, pool: Pool) -> list[str]:
    room, devices = room_bytes(plan, pool.name), ", ".join(f"{node}/{index}" for node, index in pool.devices)
    lines = [f"pool {pool.name}: {devices}, {'unknown memory' if room is None else show_bytes(room)} each"]
    return [*lines, *_table([_role(placed) for placed in plan.placed if placed.pool == pool.name])]


def _role(placed: Placed) -> list[str]:
    return [placed.role, placed.engine, str(placed.layout), show_parts(placed.memory)]


def show_parts(parts: Mapping[str, int]) -> str:
    """Print bytes by part on one line.

    >>> show_parts({"weights": 1024, "logits": 2048})
    'weights 1.0 KiB · logits 2.0 KiB'
    """
    return " · ".join(f"{part} {show_bytes(count)}" for part, count in parts.items())


def _peaks(plan: Plan, pool: Pool, forecast: Forecast) -> list[str]:
    room = room_bytes(plan, pool.name) or 0
    found = [(peak, room - peak.memory_bytes) for peak in forecast.peaks]
    rows = [[peak.phase, peak.role, show_bytes(peak.memory_bytes), _margin(left)] for peak, left in found]
    return [f"peaks on {pool.name}, {show_bytes(forecast.process_bytes)} of each for the process", *_table(rows)]


def _margin(left_bytes: int) -> str:
    return f"{show_bytes(left_bytes)} left" if left_bytes >= 0 else f"{show_bytes(-left_bytes)} too much"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    padded = (zip(row, widths, strict=True) for row in rows)
    return ["  " + "  ".join(cell.ljust(width) for cell, width in row).rstrip() for row in padded]
