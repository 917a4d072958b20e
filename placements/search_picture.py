"""What a search played as dots to be drawn: the seconds of a step, and the bytes on the fullest device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.model.charts import Dot, DotMark, Scatter
from flowgraph.diagrams.model.quantities import listed, many, show_s
from flowgraph.lowering.task_names import numbered
from placements.comparison_picture import is_plan, period_s
from placements.finding import Found
from placements.found_text import MEASURES, against, by_name, pools_of, sorted_parts
from placements.homes import homes_of
from placements.memory_forecast import forecasts_of
from placements.problem import Objective
from placements.ranked import Ranked

Point = tuple[float, int]
"""Seconds of a step, and bytes on the fullest device."""


def search_picture(found: Found, objective: Objective = "step", *, plan: Plan | None = None) -> Scatter:
    """Return the candidates that were played, in the order of the search; named placements not among them last.

    The best is the plan that the search gives; that `plan` is another is said.
    """
    played = candidates(found)
    points = [(each.step_s, fullest_bytes(each)) for each in played]
    labels = numbered([_label(found, each) for each in played])
    dots = tuple(
        Dot(*point, label, _mark(place, point, points), _what(found, each), _why(found, each, objective))
        for place, (each, point, label) in enumerate(zip(played, points, labels, strict=True))
    )
    return Scatter(f"plans of {found.setting.graph.name}", dots, " ".join(_about(found, dots, plan)))


def candidates(found: Found) -> list[Ranked]:
    """Return each plan that was played once: those that are ranked, then the named ones that are not."""
    there = {each.blocks for each in found.ranked}
    named = {each.blocks: each for _, each in found.named if each is not None and each.blocks not in there}
    return [*found.ranked, *named.values()]


def fullest_bytes(ranked: Ranked) -> int:
    """Return the highest peak of a plan, on any of its devices."""
    forecasts = forecasts_of(ranked.setting, homes_of(ranked.setting, ranked.blocks))
    return max((each.worst.memory_bytes for each in forecasts if each.worst is not None), default=0)


def on_front(point: Point, points: Sequence[Point]) -> bool:
    """Say whether no other point is better in one of both, seconds and bytes, and as good in the other.

    >>> [on_front(each, [(1.0, 3), (2.0, 2), (3.0, 2)]) for each in [(1.0, 3), (2.0, 2), (3.0, 2)]]
    [True, True, False]
    """
    return not any(other != point and other[0] <= point[0] and other[1] <= point[1] for other in points)


def _mark(place: int, point: Point, points: Sequence[Point]) -> DotMark:
    return "best" if place == 0 else "front" if on_front(point, points) else "other"


def _label(found: Found, ranked: Ranked) -> str:
    """Name a candidate by the first named placement that has its parts, else by its pools."""
    own = tuple(sorted(ranked.parts()))
    named = (variant.name for variant, _ in by_name(found) if sorted_parts(found, variant) == own)
    return next(named, "") or pools_of(ranked)


def _what(found: Found, ranked: Ranked) -> str:
    """Say on which pools a candidate is, and which named placements it is at their best."""
    names = [variant.name for variant, each in found.named if each is not None and each.blocks == ranked.blocks]
    named = f"; {listed(names)} at its best" if names else ""
    return f"{pools_of(ranked)}: {many(ranked.devices, 'device')}{named}"


def _why(found: Found, ranked: Ranked, objective: Objective) -> str:
    return "" if ranked.blocks == found.best.blocks else against(found, ranked, MEASURES[objective])


def _about(found: Found, dots: Sequence[Dot], plan: Plan | None) -> Iterator[str]:
    """Say how many candidates there are, what the best takes, and which takes the least memory."""
    best, least = dots[0], min(dots, key=lambda dot: dot.memory_bytes)
    yield f"{many(len(dots), 'plan')} played."
    yield f"The best takes {show_s(best.seconds)} a step and at most {show_bytes(best.memory_bytes)} on a device."
    if plan is not None and not is_plan(found.best, plan):
        yield f"This plan is another: it takes {show_s(period_s(plan))} a step."
    if least.memory_bytes < best.memory_bytes:
        yield f"The least memory is {show_bytes(least.memory_bytes)}, at {show_s(least.seconds)} a step."
    front = sum(dot.mark != "other" for dot in dots)
    yield f"{many(front, 'of them has', 'of them have')} no other that takes less of both."
