"""Draw what a plan says without its flow: pools as frames, and in them the roles that they host."""

from __future__ import annotations

from itertools import count

from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import PlacedRole, Plan
from flowgraph.diagrams.build.device_boxes import device_boxes
from flowgraph.diagrams.build.plan_picture import devices_text
from flowgraph.diagrams.model.layout_text import layout_text
from flowgraph.diagrams.model.picture import Box, Frame, Picture
from flowgraph.diagrams.model.quantities import many


def roles_picture(plan: Plan, *, unfold: bool = False) -> Picture:
    """Give the picture of a plan: its pools, their devices, and the roles on each."""
    frames = {
        pool.name: Frame(f"f{i}", f"{pool.name}: {devices_text(pool)}", None, "pool", pool.name)
        for i, pool in enumerate(plan.pools)
    }
    boxes = [
        Box(f"n{i}", tuple(_lines(each)), "model", frames[each.pool].id)
        for i, each in enumerate(plan.placed)
        if each.pool in frames
    ]
    ids = (f"n{place}" for place in count(len(plan.placed)))
    for pool in plan.pools:
        boxes += device_boxes(pool, plan.cluster, frames[pool.name].id, ids, unfold=unfold)
    about = f"{many(len(plan.placed), 'role')} on {many(len(plan.pools), 'pool')}."
    return Picture(plan.flow, tuple(boxes), tuple(frames.values()), (), about)


def _lines(placed: PlacedRole) -> list[str]:
    held = sum(placed.memory.values())
    return [placed.role, f"{placed.engine} · {layout_text(placed.layout)}", *([show_bytes(held)] if held else [])]
