"""What a search found, as text: the best plan with its bytes and seconds, the next ones, and why the named ones lost.

Of at most 100 columns unless a name is long: what does not fit goes on beneath.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, inf

from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import Plan, Pool, PoolForecast, TimedTask
from flowgraph.diagrams.model.quantities import show_s as show_s
from placements.chunked_logits import chunk_lines
from placements.cuts import many
from placements.finding import TIED_SHARE, Found
from placements.folding import CARRIED_AT_MOST
from placements.moves import Here
from placements.named import Variant, name_of
from placements.problem import Objective
from placements.published_errors import error_lines
from placements.ranked import Ranked
from placements.robust import COST_ERROR, DRAWS
from placements.setting import Setting
from placements.step_rows import Row, step_rows
from placements.steps import HOST
from placements.text import broken, flowing, pool_sizes, show_devices, show_range, table
from placements.what_if import Changed

TOP = 5  # plans that are shown
PARTS = 4  # of a task's seconds
LEAST_SHARE = 0.05  # of a task's seconds, that a part or the rest of them has to be to be told
BAR_CELLS = 10
FIRST = "hybrid:verl"  # of named placements that are the same for a flow, the one that the others are told by


Played = Ranked | Here
"""A plan whose step is known: found by a search, or as it stands in a file."""


@dataclass(frozen=True)
class Measure:
    """What a search makes least: how much of it a plan takes, in which unit, how that is shown, and what the least is.

    Money is in the currency of the cluster's prices. `worse` is a plan that takes more than another where seconds are
    other than forecast.
    """

    unit: str
    of: Callable[[Ranked], float]
    show: Callable[[float], str]
    least: str
    worse: str


def found_text(found: Found, plan: Plan, *, top: int = TOP, objective: Objective = "step") -> str:
    """Print what a search found for an objective; `plan` is its best one."""
    measure = MEASURES[objective]
    return "\n".join(
        [
            *_head(found, measure),
            "",
            *_asked(found.setting, plan),
            "",
            *_pools(plan),
            *chunk_lines(found.setting, plan),
            "",
            *_seconds(plan),
            *error_lines(plan),
            "",
            *_ranked(found, top, measure),
            *(["", *_steadiness(found, measure)] if found.regrets else []),
            *(["", *_named(found, measure)] if found.named else []),
        ]
    )


def _head(found: Found, measure: Measure) -> Iterator[str]:
    setting, best = found.setting, found.best
    tokens = _tokens(setting)
    yield f"{setting.graph.name}: {show_s(best.step_s)} a step, {tokens / best.step_s:,.0f} tokens/s"
    if cost := best.cost_per_step:
        yield f"a step costs {cost:,.2f}, a million tokens {1e6 * cost / tokens:,.2f}, in the cluster's currency"
    yield from broken(f"{_proof(found, measure)}; {many(found.played, 'plan')} played", "; ")
    if found.regrets and best is not min(found.ranked, key=measure.of):
        yield f"it is not the {measure.least} as forecast, but loses least where costs are other than forecast"


def _tokens(setting: Setting) -> float:
    """Count the tokens of a step: of all that is drawn, prompts with it; where nothing is, of what an update reads."""
    drawn = sum(load.rows * load.row_tokens for load in setting.loads if load.phase == "generate")
    return drawn or max(load.tokens.tokens for load in setting.loads)


def _asked(setting: Setting, plan: Plan) -> Iterator[str]:
    """Say what a step is, what its models are, and what the machines are taken to have."""
    drawn = [load for load in setting.loads if load.phase == "generate"]
    for load in drawn[:1]:
        each = f" × {load.samples}" if load.samples > 1 else ""
        prompts = f"{setting.prompts:,} prompts{each}, of {load.prompt} tokens"
        yield from broken(f"a step: {prompts}; responses of {load.response} tokens", "; ")
    steps = [f"{load.node} {many(load.steps, 'optimizer step')}" for load in setting.loads if load.phase == "update"]
    models = [f"{name} {model}" for name, model in plan.assumed.models.items()] if plan.assumed is not None else []
    yield from broken("; ".join(", ".join(each) for each in (models, steps) if each), "; ")
    for of in setting.classes:
        network = of.network_bytes_per_s
        links = (
            f", {network * of.node_devices * 8 / 1e9:,.0f} Gbit/s to others" if network and len(of.nodes) > 1 else ""
        )
        machines = f"{many(len(of.nodes), 'machine')} of {of.node_devices} {of.model or of.kind}"
        yield f"{machines}, {show_bytes(of.host_memory_bytes)} of host memory each{links}"


def plan_lines(plan: Plan) -> Iterator[str]:
    """Print one plan: each pool with its roles and peaks, and the seconds of a step."""
    yield from _pools(plan)
    yield from _seconds(plan)
    if plan.step is not None:
        yield f"a step takes {show_s(plan.step.period_s)}"


def _proof(found: Found, measure: Measure) -> str:
    """Return what no plan takes less than, of those that the search has considered."""
    if found.proven:
        return f"proven the {measure.least} of the layouts considered"
    if found.cut:
        ways = f"of the ways to share a pool the {CARRIED_AT_MOST} fastest of each set of roles were combined"
        return f"not proven: {ways}; of these {_bound_of(found, measure)}"
    return _bound_of(found, measure)


def _bound_of(found: Found, measure: Measure) -> str:
    if found.gap == 0.0:
        return "no plan takes less"
    if found.bound is None or found.gap is None:
        return "how much less another plan may take is not known"
    if found.bound_s is not None and measure.unit == "devices":
        bound = f"{measure.show(found.bound)} takes less than {show_s(found.bound_s)} a step"
        return f"no layout considered on {bound} ({found.gap:.1%} less)"
    unit = " a step" if measure.unit == "s" else ""
    return f"no layout considered takes less than {measure.show(found.bound)}{unit} ({found.gap:.1%} less)"


def _pools(plan: Plan) -> Iterator[str]:
    forecasts = {each.pool: each for each in plan.forecast}
    for pool in plan.pools:
        yield f"{pool.name}: {_devices(plan, pool)}"
        here = [placed for placed in plan.placed if placed.pool == pool.name]
        yield from flowing(
            [[each.role, each.engine, str(each.layout), f"{each.running} {each.late}".strip()] for each in here]
        )
        yield from _peaks(plan, pool, forecasts[pool.name])


def _devices(plan: Plan, pool: Pool) -> str:
    found = {device.model or device.kind for place in pool.devices if (device := plan.cluster.device(*place))}
    sizes = show_range(pool_sizes(plan, pool))
    return f"{len(pool.devices)} {', '.join(sorted(found))} of {sizes}: {show_devices(pool.devices)}"


def _peaks(plan: Plan, pool: Pool, forecast: PoolForecast) -> Iterator[str]:
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
    rows, longest = step_rows(step), max((each.seconds or 0.0 for each in step.tasks), default=0.0)
    yield from flowing([_second_cells(each, longest) for each in rows], " · ")
    between_s = max((each.pause_s for each in step.waits), default=0.0)
    if between_s:
        yield f"between steps, by the driver: {show_s(between_s)}; host times are estimates (`calibrate` fits them)"
    if step.cycle:
        everything = all(each.name in step.cycle for each in step.tasks if each.pools and each.seconds)
        named = "everything, one after another" if everything else " → ".join(step.cycle)
        yield from flowing([[f"critical path: {named}"]], " → ")


def _second_cells(row: Row, longest: float) -> list[str]:
    alone = row.tasks[0] if len(row.tasks) == 1 else None
    name, told = (
        (row.label, f"{len(row.tasks)} of them") if alone is None else (alone.name, show_seconds_by_part(alone))
    )
    return [name, "+".join(row.pools), show_s(row.seconds), bar(row.seconds, longest), told]


def bar(seconds: float | None, longest: float) -> str:
    """Draw seconds as a bar, the longest being full.

    >>> bar(1.0, 2.0), bar(None, 2.0)
    ('▇▇▇▇▇', '')
    """
    return "▇" * round(BAR_CELLS * seconds / longest) if seconds and longest else ""


def show_seconds_by_part(task: TimedTask) -> str:
    """Name the largest parts of a task, none below a twentieth, and first those that are not known; then the rest.

    >>> show_seconds_by_part(TimedTask(name="a", kind="update", parts={"matmul": 9.0, "memory": 0.4, "data": 0.6}))
    'matmul 9 s · data 600 ms'
    >>> show_seconds_by_part(TimedTask(name="a", kind="update", parts={"matmul": 9.0, "memory": 0.4, "data": 0.4}))
    'matmul 9 s · rest 800 ms'
    """
    total = task.seconds or fsum(each for each in task.parts.values() if each is not None)
    least = LEAST_SHARE * total
    large = {name: each for name, each in task.parts.items() if each is None or each >= least}
    ordered = sorted(large.items(), key=lambda item: -(item[1] or 0.0) if item[1] is not None else -inf)[:PARTS]
    rest = fsum(each for name, each in task.parts.items() if each is not None and name not in dict(ordered))
    told = [*ordered, *([("rest", rest)] if rest >= least and rest else [])]
    return " · ".join(f"{name} {show_s(each)}" for name, each in told) if len(task.parts) > 1 else ""


def _money(amount: float) -> str:
    return f"{amount:,.2f} a step"


def _devices_of(count: float) -> str:
    return many(round(count), "device")


MEASURES: Mapping[Objective, Measure] = {
    "step": Measure("s", lambda plan: plan.step_s, show_s, "fastest", "slower"),
    "cost": Measure("currency", lambda plan: plan.cost_per_step, _money, "cheapest", "dearer"),
    "devices": Measure("devices", lambda plan: float(plan.devices), _devices_of, "smallest", "slower"),
}


def _ranked(found: Found, top: int, measure: Measure) -> Iterator[str]:
    yield f"the best {min(top, len(found.ranked))} of {len(found.ranked)} plans that were played"
    rows = list[list[str]]()
    for number, each in enumerate(found.ranked[:top], 1):
        near = "" if number == 1 else _near(each, found.best, measure, "tie")
        rows.append([str(number), *_figures(each, measure), near, *_shape(each)])
    yield from flowing(rows, " | ")


def _figures(ranked: Ranked, measure: Measure) -> list[str]:
    """Write what a plan takes: the seconds of a step, and its cost where that is what was asked about."""
    return [*([_money(ranked.cost_per_step)] if measure.unit == "currency" else []), show_s(ranked.step_s)]


def _near(ranked: Ranked, best: Ranked, measure: Measure, tie: str) -> str:
    """Say how much more a plan takes than the best: a share of it, or some devices."""
    if measure.unit == "devices" and ranked.devices != best.devices:
        more = ranked.devices - best.devices
        return f"{'+' if more > 0 else '-'}{_devices_of(abs(more))}"
    share = _more(ranked, best, measure)
    return tie if abs(share) <= TIED_SHARE else f"{share:+.0%}"


def _more(ranked: Ranked, best: Ranked, measure: Measure) -> float:
    """Return by which share a plan takes more than the best; of as few devices, by which its step is longer."""
    if measure.unit == "devices" and ranked.devices == best.devices:
        return ranked.step_s / best.step_s - 1
    least = measure.of(best)
    return measure.of(ranked) / least - 1 if least else 0.0


def _shape(ranked: Ranked) -> tuple[str, str]:
    return name_of(ranked.setting.graph, ranked.parts()).partition(":")[0], pools_of(ranked)


def pools_of(ranked: Ranked) -> str:
    """Name the roles of each pool, how many devices it has, and of which kind where there are several."""
    blocks = zip(ranked.parts(), ranked.blocks, strict=True)
    return " | ".join(f"{'+'.join(part)} on {_many(ranked.setting, option.devices)}" for part, (_, option) in blocks)


def _many(setting: Setting, devices: Sequence[int]) -> str:
    """Write how many devices of each class a pool has."""
    kinds = [of.model or of.kind for of in setting.classes]
    if len(set(kinds)) == 1:
        return str(sum(devices))
    return " and ".join(f"{count} {kind}" for count, kind in zip(devices, kinds, strict=True) if count)


def _named(found: Found, measure: Measure) -> Iterator[str]:
    yield "named placements, each at its best"
    rows, blank = list[list[str]](), [""] * (2 if measure.unit == "currency" else 1)
    seen = dict[tuple[tuple[str, ...], ...], str]()
    for variant, ranked in by_name(found):
        parts = sorted_parts(found, variant)
        if parts in seen:
            rows.append([variant.name, *blank, f"the same as {seen[parts]} for this flow"])
            continue
        seen[parts] = variant.name
        if ranked is None:
            rows.append([variant.name, "does not fit", *blank[1:], variant.about])
        else:
            rows.append([variant.name, *_figures(ranked, measure), against(found, ranked, measure)])
    yield from flowing(rows, "; ")


def by_name(found: Found) -> list[tuple[Variant, Ranked | None]]:
    """Return the named placements in their order, but FIRST before all where another is the same."""
    alike = Counter(sorted_parts(found, variant) for variant, _ in found.named)

    def later(each: tuple[Variant, Ranked | None]) -> bool:
        return each[0].name != FIRST or alike[sorted_parts(found, each[0])] == 1

    return sorted(found.named, key=later)


def sorted_parts(found: Found, variant: Variant) -> tuple[tuple[str, ...], ...]:
    """Return the parts of a named placement in an order of their own: the same for placements of one form."""
    return tuple(sorted(variant.parts_of(found.setting.graph)))


def against(found: Found, ranked: Ranked, measure: Measure) -> str:
    """Say how a named placement at its best stands beside the best plan, and why it is no better."""
    more = _more(ranked, found.best, measure)
    if more <= 0:
        played = ranked.blocks in {each.blocks for each in found.ranked}
        why = "loses more where costs are other" if found.regrets and played else "what was asked for leaves it out"
        return "the best" if more > -0.0005 else f"{more:+.0%}: {why}"
    near = _near(ranked, found.best, measure, "a tie")
    if ranked.step_s <= found.best.step_s:
        return f"{near}: it takes {_devices_of(ranked.devices)}"
    return f"{near}: {why_slower(ranked, found.best)}"


def why_slower(one: Played, other: Played) -> str:
    """Say why one plan's step is longer than another's: what takes longer, and what no longer runs beside the rest.

    At most three of each are named, those that make a tenth of the difference or more.
    """
    mine, theirs = _by_task(one.step.tasks), _by_task(other.step.tasks)
    least = max(0.1 * (one.step_s - other.step_s), 1e-3)
    longer = {name: mine[name] - theirs.get(name, 0.0) for name in one.step.cycle if name in mine}
    most = sorted(longer.items(), key=lambda item: -item[1])[:3]
    said = [f"{name} +{show_s(more)}" for name, more in most if more >= least]
    beside = [name for name in one.step.cycle if name in theirs and name not in other.step.cycle]
    turns = [name for name in beside if mine.get(name, 0.0) >= least][:3]
    said += [f"{', '.join(turns)} no longer overlap other work"] if turns else []
    return "; ".join(said) if said else _waiting(one.step.tasks)


def _waiting(tasks: Sequence[TimedTask]) -> str:
    """Say why a step takes longer in which no task does: what works on one pool takes turns, pools wait."""
    pools = {pool for task in tasks for pool in task.pools} - {HOST}
    return "its pools wait for each other" if len(pools) > 1 else "all of it takes turns on one pool"


def _by_task(tasks: Iterable[TimedTask]) -> Mapping[str, float]:
    return {task.name: task.seconds for task in tasks if task.seconds is not None}


def what_if_text(found: Found, others: Sequence[Changed], objective: Objective = "step") -> str:
    """Print what a step takes with one thing changed at a time, each with its own best plan."""
    lines, measure = ["what if, each with its own best plan"], MEASURES[objective]
    blank = [""] * (2 if measure.unit == "currency" else 1)
    rows = list[list[str]]()
    for each in others:
        if each.found is None:
            rows.append([each.change, "does not fit", *blank, ""])
            continue
        best = each.found.best
        share = f"{_more(best, found.best, measure):+.0%}"
        rows.append([each.change, *_figures(best, measure), share, _pools_beside(each.found, found)])
    return "\n".join([*lines, *flowing(rows, " | ")])


def _pools_beside(changed: Found, found: Found) -> str:
    """Say what the pools of the best plan are, where they or their devices are others than those of a plan."""
    pools, idle = pools_of(changed.best), ""
    if changed.setting.ratio is not None and not apart(changed.best):
        idle = ", so that no ratio holds: drawing and training share a pool"
    return f"{'the same pools' if pools == pools_of(found.best) else pools}{idle}"


def apart(ranked: Ranked) -> bool:
    """Say whether what trains and what draws have no pool in common."""
    uses = [{ranked.setting.roles[place].use for place in block} for block, _ in ranked.blocks]
    return not any({"train", "sample"} <= each for each in uses)


def _steadiness(found: Found, measure: Measure) -> Iterator[str]:
    """Say how the best plans do where costs are other than forecast."""
    yield f"if each role's seconds are off by up to {COST_ERROR:.0%}, of {DRAWS} draws"
    rows = list[list[str]]()
    for number, each in enumerate(found.regrets[:TOP], 1):
        regret = f"{each.mean:.1%} {measure.worse} than the best on average, {each.worst:.0%} at worst"
        rows.append([str(number), f"best in {each.best_share:.0%}", regret])
    yield from table(rows)
