"""The strips of a comparison: the chosen plan, and the named placements at their best."""

from __future__ import annotations

from collections.abc import Sequence

from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.model.charts import Comparison, PoolShare, Strip
from flowgraph.diagrams.model.quantities import layout_text, show_s
from placements.report.search_report import MEASURES, against, by_name, sorted_parts
from placements.search.block_placements import homes_of
from placements.search.named_placements import PlacementVariant
from placements.search.ranked_plan import RankedPlan
from placements.search.search import SearchResult
from placements.solver.problem import Objective
from placements.step.role_placements import RolePlacement, homes_by

CHOSEN, BEST = "this plan", "the best found"


def comparison_chart(found: SearchResult, objective: Objective = "step", *, plan: Plan | None = None) -> Comparison:
    """Return a plan, then each named placement at its best; those with the same pools share a strip.

    The plan is the best of the search, or another of the same problem: then the best has a strip too. A named placement
    whose best is the plan itself is in the plan's strip. One that does not fit has no parts.
    """
    drawn = plan or found.best.plan()
    forms = dict[tuple[tuple[str, ...], ...], list[tuple[PlacementVariant, RankedPlan | None]]]()
    for variant, ranked in by_name(found):
        forms.setdefault(sorted_parts(found, variant), []).append((variant, ranked))
    labels, strips = [CHOSEN], list[Strip]()
    for alike in forms.values():
        names, (first, ranked) = [variant.name for variant, _ in alike], alike[0]
        if ranked is None:
            strips.append(Strip(", ".join(names), None, (), f"does not fit: {first.about}"))
        elif is_plan(ranked, drawn):
            labels += names
        else:
            how = against(found, ranked, MEASURES[objective])
            strips.append(Strip(", ".join(names), ranked.step_s, _ranked_parts(ranked), how))
    if not is_plan(found.best, drawn):
        strips.insert(0, Strip(BEST, found.best.step_s, _ranked_parts(found.best), "the best"))
    how = _how(found, drawn, objective)
    strips.insert(0, Strip(", ".join(labels), period_s(drawn), plan_parts(drawn), how, chosen=True))
    devices = sum(len(node.devices) for node in found.setting.cluster.nodes)
    return Comparison(f"placements of {found.setting.graph.name}", tuple(strips), devices, _about(strips))


def is_plan(ranked: RankedPlan, plan: Plan) -> bool:
    """Return whether a candidate of a search is a plan: the same roles share as many devices, running the same way."""
    return _role_settings(homes_of(ranked.setting, ranked.blocks)) == _role_settings(homes_by(ranked.setting, plan))


def period_s(plan: Plan) -> float | None:
    """Return the seconds from one step of a plan to the next; None where they are not known."""
    return None if plan.step is None else plan.step.period_s


def _role_settings(homes: Sequence[RolePlacement]) -> dict[str, object]:
    """Return how each role runs and which roles share its pool, whatever pools and machines are called."""
    shared = {home.pool: frozenset(mate.role.name for mate in homes if mate.pool == home.pool) for home in homes}
    return {
        home.role.name: (shared[home.pool], home.seat.devices, home.engine, home.layout, home.running) for home in homes
    }


def _how(result: SearchResult, plan: Plan, objective: Objective) -> str:
    """Return how the plan that is drawn compares with the best of the search."""
    named = [ranked for _, ranked in result.named if ranked is not None]
    if is_plan(result.best, plan):
        faster = any(ranked.step_s < result.best.step_s * 0.9995 for ranked in named)
        return "the best of what was asked for" if faster else "the best"
    same = next((ranked for ranked in (*result.ranked, *named) if is_plan(ranked, plan)), None)
    if same is not None:
        return against(result, same, MEASURES[objective])
    seconds = period_s(plan)
    return "" if seconds is None else f"{seconds / result.best.step_s - 1:+.1%} beside the best"


def _about(strips: Sequence[Strip]) -> str:
    """Return which strip is the fastest, the slowest, and which do not fit."""
    known = [(strip.seconds, strip.label) for strip in strips if strip.seconds is not None]
    (shortest_s, fastest), (longest_s, slowest) = min(known), max(known)
    sentences = [f"The fastest is {fastest}: {show_s(shortest_s)} a step."]
    sentences += [f"The slowest that fits is {slowest}: {show_s(longest_s)}."] if slowest != fastest else []
    unfit = [strip.label for strip in strips if strip.seconds is None]
    return " ".join([*sentences, *([f"{'; '.join(unfit)} would not fit."] if unfit else [])])


def _ranked_parts(ranked: RankedPlan) -> tuple[PoolShare, ...]:
    homes = homes_of(ranked.setting, ranked.blocks)
    devices, roles = {home.pool: home.seat.devices for home in homes}, dict[str, list[str]]()
    for home in homes:
        roles.setdefault(home.pool, []).append(f"{home.role.name} {layout_text(home.layout)}")
    return tuple(PoolShare(pool, devices[pool], tuple(names)) for pool, names in roles.items())


def plan_parts(plan: Plan) -> tuple[PoolShare, ...]:
    """Return the pools of a plan with their devices and roles."""
    roles = {
        pool.name: tuple(f"{role.role} {layout_text(role.layout)}" for role in plan.placed if role.pool == pool.name)
        for pool in plan.pools
    }
    return tuple(PoolShare(pool.name, len(pool.devices), roles[pool.name]) for pool in plan.pools)
