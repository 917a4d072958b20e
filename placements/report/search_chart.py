"""The plans that a search played as dots of a chart: seconds of a step, and bytes on the fullest device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.model.charts import Dot, DotMark, Scatter
from flowgraph.diagrams.model.quantities import listed, many, show_s
from flowgraph.lowering.task_names import numbered
from placements.report.comparison import is_plan, period_s
from placements.report.search_report import MEASURES, against, by_name, pools_of, sorted_parts
from placements.search.block_placements import homes_of
from placements.search.ranked_plan import RankedPlan
from placements.search.search import SearchResult
from placements.solver.problem import Objective
from placements.step.memory_forecast import forecasts_of

Point = tuple[float, int]
"""Seconds of a step, and bytes on the fullest device."""


def search_chart(found: SearchResult, objective: Objective = "step", *, plan: Plan | None = None) -> Scatter:
    """Return the candidates that were played, in the order of the search; named placements not among them last.

    The best is the search's best plan; a note is added if `plan` is another.
    """
    played = candidates(found)
    points = [(candidate.step_s, fullest_bytes(candidate)) for candidate in played]
    labels = numbered([_label(found, candidate) for candidate in played])
    dots = list[Dot]()
    for place, (candidate, point, label) in enumerate(zip(played, points, labels, strict=True)):
        names = [variant.name for variant, best in found.named if best is not None and best.blocks == candidate.blocks]
        named = f"; {listed(names)} at its best" if names else ""
        what = f"{pools_of(candidate)}: {many(candidate.devices, 'device')}{named}"
        is_best = candidate.blocks == found.best.blocks
        why = "" if is_best else against(found, candidate, MEASURES[objective])
        mark: DotMark = "best" if place == 0 else "front" if on_front(point, points) else "other"
        dots.append(Dot(*point, label, mark, what, why))
    return Scatter(f"plans of {found.setting.graph.name}", tuple(dots), " ".join(_about(found, dots, plan)))


def candidates(found: SearchResult) -> list[RankedPlan]:
    """Return each plan that was played once: the ranked ones, then named ones that are not among them."""
    plans = {candidate.blocks: candidate for candidate in found.ranked}
    for _, candidate in found.named:
        if candidate is not None:
            plans.setdefault(candidate.blocks, candidate)
    return list(plans.values())


def fullest_bytes(ranked: RankedPlan) -> int:
    """Return the highest peak of a plan, on any of its devices."""
    forecasts = forecasts_of(ranked.setting, homes_of(ranked.setting, ranked.blocks))
    return max((forecast.worst.memory_bytes for forecast in forecasts if forecast.worst is not None), default=0)


def on_front(point: Point, points: Sequence[Point]) -> bool:
    """Return whether no point is better in seconds or bytes and at least as good in the other.

    >>> [on_front(point, [(1.0, 3), (2.0, 2), (3.0, 2)]) for point in [(1.0, 3), (2.0, 2), (3.0, 2)]]
    [True, True, False]
    """
    return not any(rival != point and rival[0] <= point[0] and rival[1] <= point[1] for rival in points)


def _label(result: SearchResult, ranked: RankedPlan) -> str:
    """Return the first named placement with a candidate's parts, else its pools."""
    parts = tuple(sorted(ranked.parts()))
    names = (variant.name for variant, _ in by_name(result) if sorted_parts(result, variant) == parts)
    return next(names, "") or pools_of(ranked)


def _about(result: SearchResult, dots: Sequence[Dot], plan: Plan | None) -> Iterator[str]:
    """Yield the number of candidates, the figures of the best, and the candidate with the least memory."""
    best, smallest = dots[0], min(dots, key=lambda dot: dot.memory_bytes)
    yield f"{many(len(dots), 'plan')} played."
    yield f"The best takes {show_s(best.seconds)} a step and at most {show_bytes(best.memory_bytes)} on a device."
    if plan is not None and not is_plan(result.best, plan):
        yield f"This plan is another: it takes {show_s(period_s(plan))} a step."
    if smallest.memory_bytes < best.memory_bytes:
        yield f"The least memory is {show_bytes(smallest.memory_bytes)}, at {show_s(smallest.seconds)} a step."
    front = sum(dot.mark != "other" for dot in dots)
    yield f"{many(front, 'of them has', 'of them have')} no other that takes less of both."
