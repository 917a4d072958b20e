"""What a search found, as text: the best plan with its bytes and seconds, the next ones, and why the named ones lost.

Of at most 100 columns unless a name is long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from flowgraph.cluster import show_bytes
from flowgraph.plan import Forecast, Plan, Pool, Timed
from placements.finding import Found
from placements.named import Variant, name_of
from placements.problem import Answer
from placements.ranked import Ranked
from placements.robust import COST_ERROR, DRAWS
from placements.text import pool_sizes, show_devices, show_range, table
from placements.what_if import Changed

TOP = 5  # plans that are shown
BAR_CELLS = 24


def found_text(found: Found, plan: Plan, *, top: int = TOP) -> str:
    """Print what a search found; `plan` is its best one."""
    return "\n".join(
        [
            *_head(found),
            "",
            *_pools(plan),
            "",
            *_seconds(plan),
            "",
            *_ranked(found, top),
            *(["", *_steadiness(found)] if found.regrets else []),
            *(["", *_named(found)] if found.named else []),
        ]
    )


def _head(found: Found) -> Iterator[str]:
    setting, best, answer = found.setting, found.best, found.answer
    tokens = sum(load.rows * load.row_tokens for load in setting.loads if load.phase == "generate")
    yield f"{setting.graph.name}: {show_s(best.step_s)} a step, {tokens / best.step_s:,.0f} tokens/s"
    if cost := best.cost_per_step:
        yield f"a step costs {cost:,.2f}, a million tokens {1e6 * cost / tokens:,.2f}, in the cluster's currency"
    yield f"the search's own figure {show_s(answer.best.step_s)}, {_proof(answer)}; {answer.examined:,} plans examined"
    if found.moved:
        yield "played as steps, another plan than the search's first is the fastest"


def plan_lines(plan: Plan) -> Iterator[str]:
    """Print one plan: each pool with its roles and peaks, and the seconds of a step."""
    yield from _pools(plan)
    yield from _seconds(plan)
    if plan.step is not None:
        yield f"a step takes {show_s(plan.step.period_s)}"


def _proof(answer: Answer) -> str:
    """Say how sure the search is that nothing is better, by its own figure."""
    if answer.exact:
        return "proven the least"
    return f"at most {answer.gap:.1%} above the least" if answer.gap is not None else "not bounded"


def _pools(plan: Plan) -> Iterator[str]:
    forecasts = {each.pool: each for each in plan.forecast}
    for pool in plan.pools:
        yield f"{pool.name}: {_devices(plan, pool)}"
        here = [placed for placed in plan.placed if placed.pool == pool.name]
        yield from table(
            [[each.role, each.engine, str(each.layout), f"{each.running} {each.late}".strip()] for each in here]
        )
        yield from _peaks(plan, pool, forecasts[pool.name])


def _devices(plan: Plan, pool: Pool) -> str:
    found = {device.model or device.kind for place in pool.devices if (device := plan.cluster.device(*place))}
    sizes = show_range(pool_sizes(plan, pool))
    return f"{len(pool.devices)} {', '.join(sorted(found))} of {sizes}: {show_devices(pool.devices)}"


def _peaks(plan: Plan, pool: Pool, forecast: Forecast) -> Iterator[str]:
    room = min(pool_sizes(plan, pool), default=0)
    rows = [
        [f"  {peak.phase}", peak.role, show_bytes(peak.memory_bytes), f"{peak.memory_bytes / room:.0%} of a device"]
        for peak in forecast.peaks
    ]
    yield from table(rows)


def _seconds(plan: Plan) -> Iterator[str]:
    step = plan.step
    if step is None:
        return
    yield "seconds of a step"
    longest = max((each.seconds or 0.0 for each in step.tasks), default=0.0)
    rows = [
        [each.name, "+".join(each.pools), show_s(each.seconds), bar(each.seconds, longest), show_seconds_by_part(each)]
        for each in step.tasks
    ]
    yield from table(rows)
    if step.cycle:
        yield f"  what comes round slowest: {' → '.join(step.cycle)}"


def bar(seconds: float | None, longest: float) -> str:
    """Draw seconds as a bar, the longest being full.

    >>> bar(1.0, 2.0), bar(None, 2.0)
    ('▇▇▇▇▇▇▇▇▇▇▇▇', '')
    """
    return "▇" * round(BAR_CELLS * seconds / longest) if seconds and longest else ""


def show_seconds_by_part(task: Timed) -> str:
    """Name the parts that are at least a twentieth of a task, largest first, and all that are not known."""
    total = task.seconds or sum(each for each in task.parts.values() if each is not None)
    large = {name: each for name, each in task.parts.items() if each is None or each >= total / 20}
    ordered = sorted(large.items(), key=lambda item: -(item[1] or 0.0))
    return " · ".join(f"{name} {show_s(each)}" for name, each in ordered) if len(task.parts) > 1 else ""


def show_s(seconds: float | None) -> str:
    """Write seconds in three digits; what is not known as `unknown`.

    >>> show_s(123.4), show_s(12.34), show_s(0.01234), show_s(None)
    ('123 s', '12.3 s', '12.3 ms', 'unknown')
    """
    if seconds is None:
        return "unknown"
    if seconds and seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def _ranked(found: Found, top: int) -> Iterator[str]:
    ties = found.ties()
    yield f"the best {min(top, len(found.ranked))} of {len(found.ranked)} plans that were played"
    rows = list[list[str]]()
    for number, each in enumerate(found.ranked[:top], 1):
        near = "" if number == 1 else "tie" if each in ties else f"{each.step_s / found.best.step_s - 1:+.0%}"
        rows.append([str(number), show_s(each.step_s), near, *_shape(each)])
    yield from table(rows)


def _shape(ranked: Ranked) -> tuple[str, str]:
    name = name_of(ranked.setting.graph, ranked.parts()).partition(":")[0]
    blocks = zip(ranked.parts(), ranked.blocks, strict=True)
    parts = (f"{'+'.join(part)} on {sum(option.devices)}" for part, (_, option) in blocks)
    return name, " | ".join(parts)


def _named(found: Found) -> Iterator[str]:
    yield "named placements, each at its best"
    rows = list[list[str]]()
    seen = dict[tuple[tuple[str, ...], ...], str]()
    for variant, ranked in found.named:
        parts = tuple(sorted(variant.parts_of(found.setting.graph)))
        if parts in seen:
            rows.append([variant.name, "", f"the same as {seen[parts]} for this flow"])
            continue
        seen[parts] = variant.name
        rows.append([variant.name, *_against(found, variant, ranked)])
    yield from table(rows)


def _against(found: Found, variant: Variant, ranked: Ranked | None) -> tuple[str, str]:
    if ranked is None:
        return "does not fit", variant.about
    change = ranked.step_s / found.best.step_s - 1
    if change <= 0:
        why = "the best" if change > -0.0005 else f"{change:+.0%}: what was asked for leaves it out"
        return show_s(ranked.step_s), why
    near = "a tie" if ranked.step_s <= found.best.step_s * 1.05 else f"{change:+.0%}"
    return show_s(ranked.step_s), f"{near}: {why_slower(ranked, found.best)}"


def why_slower(one: Ranked, other: Ranked) -> str:
    """Say why one plan's step is longer than another's: what takes longer, and what no longer runs beside the rest.

    At most three of each are named, those that make a tenth of the difference or more.
    """
    mine, theirs = _by_task(one.step.tasks), _by_task(other.step.tasks)
    least = max(0.1 * (one.step_s - other.step_s), 1e-3)
    longer = {name: mine[name] - theirs.get(name, 0.0) for name in one.step.cycle if name in mine}
    most = sorted(longer.items(), key=lambda item: -item[1])[:3]
    said = [f"{name} +{show_s(more)}" for name, more in most if more >= least]
    turns = [name for name in one.step.cycle if name not in other.step.cycle and mine.get(name, 0.0) >= least][:3]
    said += [f"{', '.join(turns)} in turn with the rest"] if turns else []
    return "; ".join(said) if said else "its pools wait for each other"


def _by_task(tasks: Iterable[Timed]) -> Mapping[str, float]:
    return {task.name: task.seconds for task in tasks if task.seconds is not None}


def what_if_text(found: Found, others: Sequence[Changed]) -> str:
    """Print what a step takes with one thing changed at a time, each with its own best plan."""
    lines = ["what if, each with its own best plan"]
    rows = list[list[str]]()
    for each in others:
        if each.found is None:
            rows.append([each.change, "does not fit", "", ""])
            continue
        best = each.found.best
        same = (
            "the same pools"
            if best.parts() == found.best.parts()
            else " | ".join("+".join(part) for part in best.parts())
        )
        rows.append([each.change, show_s(best.step_s), f"{best.step_s / found.best.step_s - 1:+.0%}", same])
    return "\n".join([*lines, *table(rows)])


def _steadiness(found: Found) -> Iterator[str]:
    """Say how the best plans do where costs are other than forecast."""
    yield f"if each role's seconds are off by up to {COST_ERROR:.0%}, of {DRAWS} draws"
    rows = list[list[str]]()
    for number, each in enumerate(found.regrets[:TOP], 1):
        regret = f"{each.mean:.1%} slower than the best on average, {each.worst:.0%} at worst"
        rows.append([str(number), f"best in {each.best_share:.0%}", regret])
    yield from table(rows)
