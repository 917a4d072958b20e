"""Placements beside each other, to be drawn as strips: the plan that was chosen, and what the named ones would be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowgraph.cluster.cluster import Cluster
from flowgraph.cluster.plan import Layout, Plan
from flowgraph.diagrams.model.charts import Comparison, PoolShare, Strip
from flowgraph.diagrams.model.layout_text import layout_text
from flowgraph.diagrams.model.quantities import show_s
from placements.finding import Found
from placements.found_text import MEASURES, against, by_name, sorted_parts
from placements.homes import Home, homes_by, homes_of
from placements.named import Variant
from placements.problem import Objective
from placements.ranked import Ranked

CHOSEN, BEST = "this plan", "the best found"

Names = tuple[str, ...]


def comparison_picture(found: Found, objective: Objective = "step", *, plan: Plan | None = None) -> Comparison:
    """Return a plan, then each named placement at its best; those of one form share a strip.

    The plan is the best of the search, unless it is another of the same setting: then the best has a strip too. A named
    placement whose best is the plan itself is in the plan's strip. One that does not fit has no parts.
    """
    drawn = plan or found.best.plan()
    joined = list(_joined(found))
    own = [names for names, _, ranked in joined if ranked is not None and is_plan(ranked, drawn)]
    label = ", ".join([CHOSEN, *(name for names in own for name in names)])
    chosen = Strip(label, period_s(drawn), plan_parts(drawn), _how(found, drawn, objective), chosen=True)
    best = Strip(BEST, found.best.step_s, _parts(found.best), "the best")
    others = (_strip(found, names, first, ranked, objective) for names, first, ranked in joined if names not in own)
    strips = (chosen, *([] if is_plan(found.best, drawn) else [best]), *others)
    title = f"placements of {found.setting.graph.name}"
    return Comparison(title, strips, _devices(found.setting.cluster), _about(strips))


def is_plan(ranked: Ranked, plan: Plan) -> bool:
    """Say whether a candidate of a search is a plan: the same roles share as many devices, running the same way."""
    return _lives(homes_of(ranked.setting, ranked.blocks)) == _lives(homes_by(ranked.setting, plan))


def period_s(plan: Plan) -> float | None:
    """Return the seconds from one step of a plan to the next; None where they are not known."""
    return None if plan.step is None else plan.step.period_s


def _lives(homes: Sequence[Home]) -> dict[str, object]:
    """Return where each role lives, whatever the pools and machines are called."""
    shared = {home.pool: frozenset(each.role.name for each in homes if each.pool == home.pool) for home in homes}
    return {
        home.role.name: (shared[home.pool], home.seat.devices, home.engine, home.layout, home.running) for home in homes
    }


def _how(found: Found, plan: Plan, objective: Objective) -> str:
    """Say how the plan that is drawn stands beside the best of the search."""
    faster = any(each is not None and each.step_s < found.best.step_s * 0.9995 for _, each in found.named)
    if is_plan(found.best, plan):
        return "the best of what was asked for" if faster else "the best"
    played = (*found.ranked, *(each for _, each in found.named if each is not None))
    same = next((each for each in played if is_plan(each, plan)), None)
    if same is not None:
        return against(found, same, MEASURES[objective])
    mine_s = period_s(plan)
    return "" if mine_s is None else f"{mine_s / found.best.step_s - 1:+.1%} beside the best"


def _joined(found: Found) -> Iterator[tuple[Names, Variant, Ranked | None]]:
    """Return the named placements of one form together, with the first of them and its best plan."""
    forms = dict[tuple[tuple[str, ...], ...], list[tuple[Variant, Ranked | None]]]()
    for variant, ranked in by_name(found):
        forms.setdefault(sorted_parts(found, variant), []).append((variant, ranked))
    for alike in forms.values():
        yield tuple(variant.name for variant, _ in alike), *alike[0]


def _strip(found: Found, names: Names, first: Variant, ranked: Ranked | None, objective: Objective) -> Strip:
    if ranked is None:
        return Strip(", ".join(names), None, (), f"does not fit: {first.about}")
    return Strip(", ".join(names), ranked.step_s, _parts(ranked), against(found, ranked, MEASURES[objective]))


def _parts(ranked: Ranked) -> tuple[PoolShare, ...]:
    homes = homes_of(ranked.setting, ranked.blocks)
    devices = {home.pool: home.seat.devices for home in homes}
    own = {pool: [_role(home.role.name, home.layout) for home in homes if home.pool == pool] for pool in devices}
    return tuple(PoolShare(pool, count, tuple(own[pool])) for pool, count in devices.items())


def _role(name: str, layout: Layout) -> str:
    return f"{name} {layout_text(layout)}"


def _devices(cluster: Cluster) -> int:
    return sum(len(node.devices) for node in cluster.nodes)


def _about(strips: Sequence[Strip]) -> str:
    """Say which strip is the fastest, the slowest, and which do not fit."""
    known = [(strip.seconds, strip.label) for strip in strips if strip.seconds is not None]
    (least_s, fastest), (most_s, slowest) = min(known), max(known)
    told = [f"The fastest is {fastest}: {show_s(least_s)} a step."]
    told += [f"The slowest that fits is {slowest}: {show_s(most_s)}."] if slowest != fastest else []
    short = [strip.label for strip in strips if strip.seconds is None]
    return " ".join([*told, f"{'; '.join(short)} would not fit."] if short else told)


def plan_parts(plan: Plan) -> tuple[PoolShare, ...]:
    """Return the pools of a plan with their devices and roles."""
    roles = {pool.name: [each for each in plan.placed if each.pool == pool.name] for pool in plan.pools}
    return tuple(
        PoolShare(pool.name, len(pool.devices), tuple(_role(each.role, each.layout) for each in roles[pool.name]))
        for pool in plan.pools
    )
