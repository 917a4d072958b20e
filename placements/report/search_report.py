"""The report of a search as text: the best plan with its bytes and seconds, the next plans, and why named ones lost.

Lines have at most 100 columns unless a name is long; longer cells continue on the next line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import fsum, inf

from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import Plan, StepForecast, TimedTask
from flowgraph.diagrams.model.quantities import show_s as show_s
from placements.format import broken, flowing, pool_sizes, show_devices, show_range, table
from placements.hardware.engine_constants import HOST
from placements.memory.footprint import room_bytes
from placements.report.overlap_report import overlap_lines
from placements.report.published_errors import error_lines
from placements.search.alternatives import CurrentPlan
from placements.search.dominance import CARRIED_AT_MOST
from placements.search.named_placements import PlacementVariant, name_of
from placements.search.plan_builder import RankedPlan
from placements.search.search import COST_ERROR, DRAWS, TIED_SHARE, SearchResult, value_of
from placements.solver.problem import Objective
from placements.step.memory_forecast import footprint_of
from placements.step.role_placements import homes_of_plan
from placements.step.task_rows import task_rows, without_chunk
from placements.workload.batch_partition import many
from placements.workload.planning_problem import PlanningProblem

TOP = 5  # plans that are shown
PARTS = 4  # of a task's seconds
LEAST_SHARE = 0.05  # of a task's seconds: a smaller part or rest is not shown
BAR_CELLS = 10
FIRST = "hybrid:verl"  # the named placement that stands for all that are the same for a flow


TimedPlan = RankedPlan | CurrentPlan
"""A plan whose step is known: a candidate of a search, or the plan in a file."""


@dataclass(frozen=True)
class ObjectiveMeasure:
    """How reports describe an objective: the unit and format of its values, and words to compare plans.

    `unit` is `s`, `currency` (that of the cluster's prices) or `devices`, and `show` returns a value as text. `best` is
    the word for the plan with the lowest value, `worse` the word for a plan that takes more than another.
    """

    objective: Objective
    unit: str
    show: Callable[[float], str]
    best: str
    worse: str


def search_report(search: SearchResult, plan: Plan, *, top: int = TOP) -> str:
    """Return the report of a search as text; `plan` is its best plan, and at most `top` ranked plans are listed.

    It has the seconds, bytes and devices of the best plan, how far the search is proven, and the named placements.
    """
    measure, roles = MEASURES[search.objective], relied_on(search.problem, plan)
    texts = ", ".join(f"{role} takes {show_bytes(more_bytes)} more" for role, more_bytes in roles.items())
    logits = f"logits are chunked by a fused loss: whole logits do not fit, {texts}"
    return "\n".join(
        [
            *_head(search, measure),
            "",
            *_problem(search.problem, plan),
            "",
            *_pools(plan),
            *(broken(logits, ", ") if roles else ()),
            "",
            *_seconds(plan.step),
            *(text for line in overlap_lines(search.problem, plan, search.ranked) for text in broken(line, ", ")),
            *error_lines(plan),
            "",
            *_ranked(search, top, measure),
            *(["", *_named(search, measure)] if search.named else []),
        ]
    )


def pool_lines(plan: Plan) -> Iterator[str]:
    """Yield for each pool of a plan a line with its number of devices, then lines with the pool's roles."""
    for pool in plan.pools:
        yield f"{pool.name}: {len(pool.devices)} devices"
        yield from _role_lines(plan, pool.name)


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield the lines of one plan: each pool with its roles and peak memory, and the seconds of a step by task.

    Raises KeyError if a pool has no forecast of memory. A plan without a forecast step has no lines about seconds.
    """
    yield from _pools(plan)
    yield from _seconds(plan.step)
    if plan.step is not None:
        yield f"a step takes {show_s(plan.step.period_s)}"


# ---------------------------------------------------------------------------------------- the problem and the proof


def _head(search: SearchResult, measure: ObjectiveMeasure) -> Iterator[str]:
    problem, best = search.problem, search.best
    generated = sum(load.rows * load.row_tokens for load in problem.loads if load.phase == "generate")
    tokens = generated or max(load.tokens.tokens for load in problem.loads)
    yield f"{problem.graph.name}: {show_s(best.step_s)} a step, {tokens / best.step_s:,.0f} tokens/s"
    if cost := best.cost_per_step:
        yield f"a step costs {cost:,.2f}, a million tokens {1e6 * cost / tokens:,.2f}, in the cluster's currency"
    yield from broken(f"{_proof(search, measure)}; {many(search.simulated, 'plan')} simulated", "; ")
    if search.regrets and best is not min(search.ranked, key=lambda plan: value_of(plan, search.objective)):
        yield f"it is not the {measure.best} by the forecast, but loses least if costs differ from the forecast"


def _proof(search: SearchResult, measure: ObjectiveMeasure) -> str:
    if search.proven:
        return f"proven the {measure.best} of the layouts considered"
    if search.gap == 0.0:
        bound = "no plan takes less"
    elif search.bound is None or search.gap is None:
        bound = "how much less another plan may take is not known"
    elif search.bound_s is not None and measure.unit == "devices":
        limit = f"{measure.show(search.bound)} takes less than {show_s(search.bound_s)} a step"
        bound = f"no layout considered on {limit} ({search.gap:.1%} less)"
    else:
        unit = " a step" if measure.unit == "s" else ""
        bound = f"no layout considered takes less than {measure.show(search.bound)}{unit} ({search.gap:.1%} less)"
    if not search.cut:
        return bound
    ways = f"of the ways to share a pool the {CARRIED_AT_MOST} fastest of each set of roles were combined"
    return f"not proven: {ways}; of these {bound}"


def _problem(problem: PlanningProblem, plan: Plan) -> Iterator[str]:
    generates = [load for load in problem.loads if load.phase == "generate"]
    for load in generates[:1]:
        samples = f" × {load.samples}" if load.samples > 1 else ""
        prompts = f"{problem.prompts:,} prompts{samples}, of {load.prompt} tokens"
        yield from broken(f"a step: {prompts}; responses of {load.response} tokens", "; ")
    steps = [f"{load.node} {many(load.steps, 'optimizer step')}" for load in problem.loads if load.phase == "update"]
    models = [f"{name} {model}" for name, model in plan.assumed.models.items()] if plan.assumed is not None else []
    yield from broken("; ".join(", ".join(names) for names in (models, steps) if names), "; ")
    for devices in problem.classes:
        gbits = (devices.network_bytes_per_s or 0.0) * devices.node_devices * 8 / 1e9
        network = f", {gbits:,.0f} Gbit/s to others" if gbits and len(devices.nodes) > 1 else ""
        machines = f"{many(len(devices.nodes), 'machine')} of {devices.node_devices} {devices.model or devices.kind}"
        yield f"{machines}, {show_bytes(devices.host_memory_bytes)} of host memory each{network}"


# ---------------------------------------------------------------------------------------- pools and seconds of a plan


def _pools(plan: Plan) -> Iterator[str]:
    forecasts = {forecast.pool: forecast for forecast in plan.forecast}
    for pool in plan.pools:
        devices = [device for place in pool.devices if (device := plan.cluster.device(*place))]
        kinds = ", ".join(sorted({device.model or device.kind for device in devices}))
        sizes = pool_sizes(plan, pool)
        yield f"{pool.name}: {len(pool.devices)} {kinds} of {show_range(sizes)}: {show_devices(pool.devices)}"
        yield from _role_lines(plan, pool.name)
        room = min(sizes, default=0)
        yield from table(
            [
                [
                    f"  {peak.phase}",
                    peak.role,
                    show_bytes(peak.memory_bytes),
                    f"{peak.memory_bytes / room:.0%} of a device",
                ]
                for peak in forecasts[pool.name].peaks
            ]
        )


def _role_lines(plan: Plan, pool: str) -> list[str]:
    roles = [role for role in plan.placed if role.pool == pool]
    return flowing(
        [[role.role, role.engine, str(role.layout), f"{role.running} {role.late}".strip()] for role in roles]
    )


def _seconds(step: StepForecast | None) -> Iterator[str]:
    if step is None:
        return
    yield "seconds of a step"
    longest = max((task.seconds or 0.0 for task in step.tasks), default=0.0)
    cells = list[list[str]]()
    for row in task_rows(step):
        name, detail = row.label, f"{len(row.tasks)} of them"
        if len(row.tasks) == 1:
            name, detail = row.tasks[0].name, show_seconds_by_part(row.tasks[0])
            rare = [f"once in {row.tasks[0].every} steps"] if row.tasks[0].every > 1 else []
            detail = " · ".join([*rare, *([detail] if detail else [])])
        cells.append([name, "+".join(row.pools), show_s(row.seconds), bar(row.seconds, longest), detail])
    yield from flowing(cells, " · ")
    between_s = max((wait.pause_s for wait in step.waits), default=0.0)
    if between_s:
        yield f"between steps, by the driver: {show_s(between_s)}; host times are estimates (`calibrate` fits them)"
    if step.cycle:
        everything = all(task.name in step.cycle for task in step.tasks if task.pools and task.seconds)
        path = (
            "everything, one after another" if everything else " → ".join(dict.fromkeys(map(without_chunk, step.cycle)))
        )
        yield from flowing([[f"critical path: {path}"]], " → ")


def bar(seconds: float | None, longest: float) -> str:
    """Return a bar of `10 * seconds / longest` block characters, rounded; "" if either number is None or 0.

    >>> bar(1.0, 2.0), bar(None, 2.0)
    ('▇▇▇▇▇', '')
    """
    return "▇" * round(BAR_CELLS * seconds / longest) if seconds and longest else ""


def show_seconds_by_part(task: TimedTask) -> str:
    """Return the seconds of a task's largest parts as text, then the sum of the other parts as `rest`.

    At most four parts are listed: those with unknown seconds first, then the longest. Parts, and a `rest`, below a
    twentieth of the task's seconds are left out. Returns "" for a task with fewer than two parts.

    >>> show_seconds_by_part(TimedTask(name="a", kind="update", parts={"matmul": 9.0, "memory": 0.4, "data": 0.6}))
    'matmul 9 s · data 600 ms'
    >>> show_seconds_by_part(TimedTask(name="a", kind="update", parts={"matmul": 9.0, "memory": 0.4, "data": 0.4}))
    'matmul 9 s · rest 800 ms'
    """
    if len(task.parts) <= 1:
        return ""
    total = task.seconds or fsum(seconds for seconds in task.parts.values() if seconds is not None)
    smallest = LEAST_SHARE * total
    large = [(name, seconds) for name, seconds in task.parts.items() if seconds is None or seconds >= smallest]
    printed = dict(sorted(large, key=lambda part: -inf if part[1] is None else -part[1])[:PARTS])
    rest = fsum(seconds for name, seconds in task.parts.items() if seconds is not None and name not in printed)
    if rest and rest >= smallest:
        printed["rest"] = rest
    return " · ".join(f"{name} {show_s(seconds)}" for name, seconds in printed.items())


def relied_on(problem: PlanningProblem, plan: Plan) -> Mapping[str, int]:
    """Return by role the peak bytes per device that chunked logits save, for roles that would not fit without them.

    Roles that only sample are left out. The result is empty for CPU devices. Raises ResourceError if the problem's
    cluster has no devices for a pool of the plan.
    """
    if problem.kind != "gpu":
        return {}
    more_bytes = dict[str, int]()
    for home in homes_of_plan(problem, plan):
        if home.role.use == "sample" or home.running.logits != "chunked":
            continue
        unchunked = replace(home, running=home.running.model_copy(update={"logits": "whole"}))
        added = footprint_of(problem, unchunked).peak_bytes - footprint_of(problem, home).peak_bytes
        peaks = [peak for pool in plan.forecast if pool.pool == home.pool for peak in pool.peaks]
        highest = max((peak.memory_bytes for peak in peaks if peak.role == home.role.name), default=0)
        if highest + added > room_bytes(home.group.of.memory_bytes):
            more_bytes[home.role.name] = added
    return more_bytes


# ---------------------------------------------------------------------------------------- plans beside each other


def _devices(count: float) -> str:
    return many(round(count), "device")


MEASURES: Mapping[Objective, ObjectiveMeasure] = {
    "step": ObjectiveMeasure("step", "s", show_s, "fastest", "slower"),
    "cost": ObjectiveMeasure("cost", "currency", "{:,.2f} a step".format, "cheapest", "dearer"),
    "devices": ObjectiveMeasure("devices", "devices", _devices, "smallest", "slower"),
}


def _ranked(search: SearchResult, top: int, measure: ObjectiveMeasure) -> Iterator[str]:
    yield f"the best {min(top, len(search.ranked))} of {len(search.ranked)} plans that were simulated"
    rows = list[list[str]]()
    for number, ranked in enumerate(search.ranked[:top], 1):
        difference = "" if number == 1 else _difference(ranked, search.best, measure, "tie")
        name = name_of(ranked.problem.graph, ranked.parts()).partition(":")[0]
        rows.append([str(number), *_figures(ranked, measure), difference, name, pools_of(ranked)])
    yield from flowing(rows, " | ")
    if search.regrets:
        yield ""
        yield f"if each role's seconds are off by up to {COST_ERROR:.0%}, of {DRAWS} draws"
        regrets = list[list[str]]()
        for number, plan in enumerate(search.regrets[:TOP], 1):
            regret = f"{plan.mean:.1%} {measure.worse} than the best on average, {plan.worst:.0%} at worst"
            regrets.append([str(number), f"best in {plan.best_share:.0%}", regret])
        yield from table(regrets)


def _figures(ranked: RankedPlan, measure: ObjectiveMeasure) -> list[str]:
    return [*([measure.show(ranked.cost_per_step)] if measure.unit == "currency" else []), show_s(ranked.step_s)]


def _difference(ranked: RankedPlan, best: RankedPlan, measure: ObjectiveMeasure, tie: str) -> str:
    excess = ranked.devices - best.devices
    if measure.unit == "devices" and excess:
        return f"{'+' if excess > 0 else '-'}{_devices(abs(excess))}"
    share = _more(ranked, best, measure)
    return tie if abs(share) <= TIED_SHARE else f"{share:+.0%}"


def _more(ranked: RankedPlan, best: RankedPlan, measure: ObjectiveMeasure) -> float:
    if measure.unit == "devices" and ranked.devices == best.devices:
        return ranked.step_s / best.step_s - 1
    lowest = value_of(best, measure.objective)
    return value_of(ranked, measure.objective) / lowest - 1 if lowest else 0.0


def pools_of(ranked: RankedPlan) -> str:
    """Return the pools of a plan as text: `actor.train+actor.sample on 8 | critic.train on 4`.

    The numbers count devices; their models are named if the cluster has several.
    """
    kinds = [devices.model or devices.kind for devices in ranked.problem.classes]
    texts = list[str]()
    for part, (_, option) in zip(ranked.parts(), ranked.blocks, strict=True):
        counts = [f"{count} {kind}" for count, kind in zip(option.devices, kinds, strict=True) if count]
        devices = str(sum(option.devices)) if len(set(kinds)) == 1 else " and ".join(counts)
        texts.append(f"{'+'.join(part)} on {devices}")
    return " | ".join(texts)


def _named(search: SearchResult, measure: ObjectiveMeasure) -> Iterator[str]:
    yield "named placements, each at its best"
    rows, blank = list[list[str]](), [""] * (2 if measure.unit == "currency" else 1)
    names = dict[tuple[tuple[str, ...], ...], str]()
    for variant, ranked in by_name(search):
        parts = sorted_parts(search, variant)
        if parts in names:
            rows.append([variant.name, *blank, f"the same as {names[parts]} for this flow"])
            continue
        names[parts] = variant.name
        if ranked is None:
            rows.append([variant.name, "does not fit", *blank[1:], variant.about])
        else:
            rows.append([variant.name, *_figures(ranked, measure), against(search, ranked, measure)])
    yield from flowing(rows, "; ")


def by_name(search: SearchResult) -> list[tuple[PlacementVariant, RankedPlan | None]]:
    """Return the named placements of a search with their best plans, None if none fits, in the order of the search.

    `hybrid:verl` comes first if another placement has the same pools, so that reports use its name for all of these.
    """
    parts = {variant.name: sorted_parts(search, variant) for variant, _ in search.named}
    counts = Counter(parts.values())
    return sorted(search.named, key=lambda named: named[0].name != FIRST or counts[parts[FIRST]] == 1)


def sorted_parts(search: SearchResult, variant: PlacementVariant) -> tuple[tuple[str, ...], ...]:
    """Return the role names of each pool of a named placement, with pools sorted so that equal pools compare equal."""
    return tuple(sorted(variant.parts_of(search.problem.graph)))


def against(search: SearchResult, ranked: RankedPlan, measure: ObjectiveMeasure) -> str:
    """Return a text that compares a plan with the best plan of the search, and says why the plan takes more.

    `measure` is what is compared, such as the seconds of a step. A plan that takes up to 5% more is a tie, unless
    numbers of devices are compared and it has more. A plan that takes as much, or less by under 0.05%, is called the
    best. If it takes at least 0.05% less, the text says why it is not the best: your request excludes it, or it loses
    more if costs differ from the forecast.
    """
    excess = _more(ranked, search.best, measure)
    if excess <= 0:
        simulated = ranked.blocks in {candidate.blocks for candidate in search.ranked}
        why = "loses more if costs differ" if search.regrets and simulated else "your request excludes it"
        return "the best" if excess > -0.0005 else f"{excess:+.0%}: {why}"
    difference = _difference(ranked, search.best, measure, "a tie")
    if ranked.step_s <= search.best.step_s:
        return f"{difference}: it takes {_devices(ranked.devices)}"
    return f"{difference}: {why_slower(ranked, search.best)}"


def why_slower(slow: TimedPlan, fast: TimedPlan) -> str:
    """Return a text that says why the step of `slow` is longer than that of `fast`.

    The text names tasks on the critical path of `slow` that take longer or no longer overlap others: at most three of
    each, and only those that account for at least a tenth of the difference and a millisecond. If there are none, the
    text says that pools wait for each other, or that there is only one pool.
    """
    slow_s, fast_s = (
        {task.name: task.seconds / task.every for task in plan.step.tasks if task.seconds is not None}
        for plan in (slow, fast)
    )
    smallest = max(0.1 * (slow.step_s - fast.step_s), 1e-3)
    longer = {name: slow_s[name] - fast_s.get(name, 0.0) for name in slow.step.cycle if name in slow_s}
    reasons = [
        f"{name} +{show_s(more_s)}"
        for name, more_s in sorted(longer.items(), key=lambda item: -item[1])[:3]
        if more_s >= smallest
    ]
    moved = [name for name in slow.step.cycle if name in fast_s and name not in fast.step.cycle]
    turns = [name for name in moved if slow_s.get(name, 0.0) >= smallest][:3]
    reasons += [f"{', '.join(turns)} no longer overlap{'' if len(turns) > 1 else 's'} other work"] if turns else []
    if reasons:
        return "; ".join(reasons)
    pools = {pool for task in slow.step.tasks for pool in task.pools} - {HOST}
    return "its pools wait for each other" if len(pools) > 1 else "all tasks take turns on one pool"


def what_if_text(search: SearchResult) -> str:
    """Return a table of a search's what-ifs: seconds of a step of the best plan after each change, and its pools.

    If the objective is cost, the cost of a step is listed too. A percentage compares the objective with that of the
    best plan of `search`; for the objective devices, it compares seconds if the number of devices is the same. A change
    with which no plan fits has the text "does not fit".
    """
    measure = MEASURES[search.objective]
    blank = [""] * (2 if measure.unit == "currency" else 1)
    rows = list[list[str]]()
    for change, changed in search.what_ifs:
        if changed is None:
            rows.append([change, "does not fit", *blank, ""])
            continue
        best = changed.best
        pools = "the same pools" if pools_of(best) == pools_of(search.best) else pools_of(best)
        if changed.problem.ratio is not None and not best.disaggregated:
            pools += ", so no ratio applies: rollout and training share a pool"
        rows.append([change, *_figures(best, measure), f"{_more(best, search.best, measure):+.0%}", pools])
    return "\n".join(["what if, each with its own best plan", *flowing(rows, " | ")])
