"""Draw a plan without its flow: pools as frames, with their devices and roles."""

from __future__ import annotations

from itertools import count

from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.build.device_boxes import device_boxes
from flowgraph.diagrams.build.plan_picture import devices_text
from flowgraph.diagrams.model.layout_text import layout_text
from flowgraph.diagrams.model.picture import Box, Frame, Picture
from flowgraph.diagrams.model.quantities import many


def roles_picture(plan: Plan, *, unfold: bool = False) -> Picture:
    """Return the picture of a plan: its pools, their devices, and the roles on each."""
    frames = {
        pool.name: Frame(f"f{place}", f"{pool.name}: {devices_text(pool)}", None, "pool", pool.name)
        for place, pool in enumerate(plan.pools)
    }
    boxes = list[Box]()
    for place, placed in enumerate(plan.placed):
        if placed.pool in frames:
            memory_bytes = sum(placed.memory.values())
            size = [show_bytes(memory_bytes)] if memory_bytes else []
            label = (placed.role, f"{placed.engine} · {layout_text(placed.layout)}", *size)
            boxes.append(Box(f"n{place}", label, "model", frames[placed.pool].id))
    ids = (f"n{place}" for place in count(len(plan.placed)))
    for pool in plan.pools:
        boxes += device_boxes(pool, plan.cluster, frames[pool.name].id, ids, unfold=unfold)
    about = f"{many(len(plan.placed), 'role')} on {many(len(plan.pools), 'pool')}."
    return Picture(plan.flow, tuple(boxes), tuple(frames.values()), (), about)
