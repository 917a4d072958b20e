"""The roles of a plan that fit only because logits come in chunks, and the bytes that whole logits would take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import Plan
from placements.format import broken
from placements.memory.footprint import room_bytes
from placements.step.memory_forecast import footprint_of
from placements.step.role_placements import homes_by
from placements.workload.planning_problem import PlanningProblem


def relied_on(problem: PlanningProblem, plan: Plan) -> Mapping[str, int]:
    """Return the roles that fit their devices only with chunked logits, and how many more bytes whole ones take."""
    if problem.kind != "gpu":
        return {}
    more_bytes = dict[str, int]()
    for home in homes_by(problem, plan):
        if home.role.use == "sample" or home.running.logits != "chunked":
            continue
        whole = replace(home, running=home.running.model_copy(update={"logits": "whole"}))
        added = footprint_of(problem, whole).peak_bytes - footprint_of(problem, home).peak_bytes
        peaks = [peak for pool in plan.forecast if pool.pool == home.pool for peak in pool.peaks]
        highest = max((peak.memory_bytes for peak in peaks if peak.role == home.role.name), default=0)
        if highest + added > room_bytes(home.seat.of.memory_bytes):
            more_bytes[home.role.name] = added
    return more_bytes


def chunk_lines(problem: PlanningProblem, plan: Plan) -> Iterator[str]:
    """Yield the roles that fit only with logits in chunks, and how much more each would take without."""
    if roles := relied_on(problem, plan):
        more = ", ".join(f"{role} takes {show_bytes(more_bytes)} more" for role, more_bytes in roles.items())
        yield from broken(f"logits come in chunks, a fused loss: all at once they do not fit, {more}", ", ")
