"""Data of pictures: pool sizes of plans as strips, the plans of a search as dots, and the bytes of a graph's arrows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.model.arrow_sizes import ArrowSizes
from flowgraph.diagrams.model.charts import Comparison, Dot, DotMark, PoolShare, Scatter, Strip
from flowgraph.diagrams.model.quantities import layout_text, listed, many, show_s
from flowgraph.language.graph import Graph
from flowgraph.lowering.task_names import numbered
from placements.report.search_report import MEASURES, against, by_name, pools_of, sorted_parts
from placements.search.named_placements import PlacementVariant
from placements.search.plan_builder import RankedPlan
from placements.search.search import SearchResult
from placements.step.memory_forecast import forecasts_of
from placements.step.role_placements import RolePlacement, homes_of_plan
from placements.workload.graph_workload import StepWorkload
from placements.workload.step_facts import step_facts
from placements.workload.value_bytes import sent_number_bytes

if TYPE_CHECKING:
    from flowgraph.models import ModelShape

CHOSEN, BEST = "this plan", "the best found"
Point = tuple[float, int]
"""Seconds of a step, and bytes on the fullest device."""


def comparison_chart(search: SearchResult, *, plan: Plan | None = None) -> Comparison:
    """Return a chart of strips that compares a plan with each named placement of a search.

    `plan` None means the best plan of the search. If `plan` is another plan of the same problem, the best plan gets a
    strip too. Placements with the same pools share a strip, and placements whose best plan is `plan` are named in its
    strip, which is first. The strip of a placement that does not fit has no parts. Raises ResourceError if the search's
    cluster has no devices for a pool of `plan`.
    """
    chosen = plan or search.best.plan()
    forms = dict[tuple[tuple[str, ...], ...], list[tuple[PlacementVariant, RankedPlan | None]]]()
    for variant, ranked in by_name(search):
        forms.setdefault(sorted_parts(search, variant), []).append((variant, ranked))
    labels, strips = [CHOSEN], list[Strip]()
    for alike in forms.values():
        names, (first, ranked) = [variant.name for variant, _ in alike], alike[0]
        if ranked is None:
            strips.append(Strip(", ".join(names), None, (), f"does not fit: {first.about}"))
        elif is_plan(ranked, chosen):
            labels += names
        else:
            how = against(search, ranked, MEASURES["step"])
            strips.append(Strip(", ".join(names), ranked.step_s, _ranked_parts(ranked), how))
    if not is_plan(search.best, chosen):
        strips.insert(0, Strip(BEST, search.best.step_s, _ranked_parts(search.best), "the best"))
    how = _how(search, chosen)
    strips.insert(0, Strip(", ".join(labels), period_s(chosen), plan_parts(chosen), how, chosen=True))
    devices = sum(len(node.devices) for node in search.problem.cluster.nodes)
    timed = [(strip.seconds, strip.label) for strip in strips if strip.seconds is not None]
    (shortest_s, fastest), (longest_s, slowest) = min(timed), max(timed)
    about = f"The fastest is {fastest}: {show_s(shortest_s)} a step."
    about += f" The slowest that fits is {slowest}: {show_s(longest_s)}." if slowest != fastest else ""
    if unfit := [strip.label for strip in strips if strip.seconds is None]:
        about += f" {'; '.join(unfit)} would not fit."
    return Comparison(f"placements of {search.problem.graph.name}", tuple(strips), devices, about)


def is_plan(ranked: RankedPlan, plan: Plan) -> bool:
    """Return whether a candidate of a search equals a plan, apart from names of pools and the choice of devices.

    The same roles must share pools with as many devices, with the same engines, layouts and settings; how far their
    steps overlap, and in how many chunks groups are passed on, may differ. Raises ResourceError if the candidate's
    cluster has no devices for a pool of the plan.
    """
    return _role_settings(ranked.homes) == _role_settings(homes_of_plan(ranked.problem, plan))


def period_s(plan: Plan) -> float | None:
    """Return the seconds from one step of a plan to the next; None if they are not known."""
    return None if plan.step is None else plan.step.period_s


def _role_settings(homes: Sequence[RolePlacement]) -> dict[str, object]:
    shared = {home.pool: frozenset(mate.role.name for mate in homes if mate.pool == home.pool) for home in homes}
    return {
        home.role.name: (shared[home.pool], home.group.devices, home.engine, home.layout, home.running)
        for home in homes
    }


def _how(search: SearchResult, plan: Plan) -> str:
    named = [ranked for _, ranked in search.named if ranked is not None]
    if is_plan(search.best, plan):
        faster = any(ranked.step_s < search.best.step_s * 0.9995 for ranked in named)
        return "the best of what was asked for" if faster else "the best"
    same = next((ranked for ranked in (*search.ranked, *named) if is_plan(ranked, plan)), None)
    if same is not None:
        return against(search, same, MEASURES["step"])
    seconds = period_s(plan)
    return "" if seconds is None else f"{seconds / search.best.step_s - 1:+.1%} compared with the best"


def _ranked_parts(ranked: RankedPlan) -> tuple[PoolShare, ...]:
    homes = ranked.homes
    devices, roles = {home.pool: home.group.devices for home in homes}, dict[str, list[str]]()
    for home in homes:
        roles.setdefault(home.pool, []).append(f"{home.role.name} {layout_text(home.layout)}")
    return tuple(PoolShare(pool, devices[pool], tuple(names)) for pool, names in roles.items())


def plan_parts(plan: Plan) -> tuple[PoolShare, ...]:
    """Return for each pool of a plan its name, its number of devices, and a text with role and layout for each role."""
    roles = {
        pool.name: tuple(f"{role.role} {layout_text(role.layout)}" for role in plan.placed if role.pool == pool.name)
        for pool in plan.pools
    }
    return tuple(PoolShare(pool.name, len(pool.devices), roles[pool.name]) for pool in plan.pools)


def search_chart(search: SearchResult, *, plan: Plan | None = None) -> Scatter:
    """Return a scatter chart of all simulated plans of a search: seconds of a step against peak bytes of a device.

    Ranked plans come first, in the order of the search, then named placements that are not among them. Marks show the
    best plan, and those for which no plan with other seconds or bytes is at least as good in both. If `plan` is given
    and is not the best plan, the caption has the seconds of its step. Raises ResourceError if the search's cluster has
    no devices for a pool of `plan`.
    """
    simulated = candidates(search)
    points = [(candidate.step_s, fullest_bytes(candidate)) for candidate in simulated]
    names_of = {sorted_parts(search, variant): variant.name for variant, _ in reversed(by_name(search))}
    labels = numbered([names_of.get(tuple(sorted(candidate.parts())), pools_of(candidate)) for candidate in simulated])
    dots = list[Dot]()
    for place, (candidate, point, label) in enumerate(zip(simulated, points, labels, strict=True)):
        names = [variant.name for variant, best in search.named if best is not None and best.blocks == candidate.blocks]
        named = f"; {listed(names)} at its best" if names else ""
        what = f"{pools_of(candidate)}: {many(candidate.devices, 'device')}{named}"
        is_best = candidate.blocks == search.best.blocks
        why = "" if is_best else against(search, candidate, MEASURES["step"])
        mark: DotMark = "best" if place == 0 else "front" if on_front(point, points) else "other"
        dots.append(Dot(*point, label, mark, what, why))
    best, smallest = dots[0], min(dots, key=lambda dot: dot.memory_bytes)
    about = f"{many(len(dots), 'plan')} simulated. The best takes {show_s(best.seconds)} a step and at most "
    about += f"{show_bytes(best.memory_bytes)} on a device."
    if plan is not None and not is_plan(search.best, plan):
        about += f" This plan is another: it takes {show_s(period_s(plan))} a step."
    if smallest.memory_bytes < best.memory_bytes:
        about += f" The least memory is {show_bytes(smallest.memory_bytes)}, at {show_s(smallest.seconds)} a step."
    front = sum(dot.mark != "other" for dot in dots)
    about += f" {many(front, 'of them has', 'of them have')} no other that takes less of both."
    return Scatter(f"plans of {search.problem.graph.name}", tuple(dots), about)


def candidates(search: SearchResult) -> list[RankedPlan]:
    """Return each simulated plan of a search once: the ranked plans, then the best plans of named placements.

    Plans of named placements that are among the ranked plans are not repeated.
    """
    plans = {candidate.blocks: candidate for candidate in search.ranked}
    for _, candidate in search.named:
        if candidate is not None:
            plans.setdefault(candidate.blocks, candidate)
    return list(plans.values())


def fullest_bytes(ranked: RankedPlan) -> int:
    """Return the highest peak memory of any device of a plan, in bytes; 0 if no memory is forecast."""
    forecasts = forecasts_of(ranked.problem, ranked.homes)
    return max((forecast.worst.memory_bytes for forecast in forecasts if forecast.worst is not None), default=0)


def on_front(point: Point, points: Sequence[Point]) -> bool:
    """Return whether no different point of `points` is at least as good in both seconds and bytes; lower is better.

    >>> [on_front(point, [(1.0, 3), (2.0, 2), (3.0, 2)]) for point in [(1.0, 3), (2.0, 2), (3.0, 2)]]
    [True, True, False]
    """
    return not any(rival != point and rival[0] <= point[0] and rival[1] <= point[1] for rival in points)


def arrow_sizes(graph: Graph, shapes: Mapping[str, ModelShape], workload: StepWorkload, plan: Plan) -> ArrowSizes:
    """Return the bytes of each value that a node reads, by (value, reader) and part, and of models' trained weights.

    `shapes` has the sizes of models by parameter. Responses are assumed to have their maximum length. Weights have the
    precision in which they are sent to the sampling engine.
    """
    facts, params = step_facts(graph, shapes, workload, plan), {param.name for param in graph.params}
    values = {(edge.value, edge.reader): {part.name: part.size_bytes for part in edge.parts} for edge in facts.edges}
    weights = {name: sent_number_bytes(plan, name) * shape.trained for name, shape in shapes.items() if name in params}
    return ArrowSizes(values, weights)
