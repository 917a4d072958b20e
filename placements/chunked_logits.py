"""Where a plan fits only because logits come in chunks, and what all of a micro-batch would take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import Plan
from placements.footprint import room_bytes
from placements.homes import Home, homes_by
from placements.memory_forecast import footprint_of
from placements.setting import Setting
from placements.text import broken


def relied_on(setting: Setting, plan: Plan) -> Mapping[str, int]:
    """Return the roles that fit their devices only with logits in chunks, and the bytes that whole ones would take."""
    if setting.kind != "gpu":
        return {}
    found = dict[str, int]()
    for home in homes_by(setting, plan):
        if home.role.use == "sample" or home.running.logits != "chunked":
            continue
        whole, chunked = _peak_bytes(setting, home, "whole"), _peak_bytes(setting, home, "chunked")
        peaks = [peak for each in plan.forecast if each.pool == home.pool for peak in each.peaks]
        own = max((peak.memory_bytes for peak in peaks if peak.role == home.role.name), default=0)
        if own + whole - chunked > room_bytes(home.seat.of.memory_bytes):
            found[home.role.name] = whole - chunked
    return found


def chunk_lines(setting: Setting, plan: Plan) -> Iterator[str]:
    """Print the roles that fit only with logits in chunks, and how much more each would take without."""
    found = relied_on(setting, plan)
    if found:
        more = ", ".join(f"{role} takes {show_bytes(more_bytes)} more" for role, more_bytes in found.items())
        yield from broken(f"logits come in chunks, a fused loss: all at once they do not fit, {more}", ", ")


def _peak_bytes(setting: Setting, home: Home, logits: str) -> int:
    running = home.running.model_copy(update={"logits": logits})
    return footprint_of(setting, replace(home, running=running)).peak_bytes
