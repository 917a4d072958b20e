"""Whether a plan fits its devices; and if not, in which phase it overflows, by how much, and what would fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flowgraph.cluster import show_bytes
from flowgraph.errors import ResourceError
from flowgraph.graph import Graph, Node, rewrite
from flowgraph.plan import Forecast, Peak, Plan
from placements.memory import Need, at_once, by_part, forecast
from placements.pools import forecast_plan, needs_on
from placements.text import pool_sizes, show_parts, show_process
from placements.work import Workload

if TYPE_CHECKING:
    from flowgraph.models import ModelShape

# What may be made smaller, and the least that still trains: first what changes nothing but memory and time, then what
# changes the results. Each as (free, settings of nodes, fields of the workload).
_TURNED: tuple[tuple[bool, Mapping[str, int], Mapping[str, int]], ...] = (
    (True, {"micro_batch_tokens": 1}, {"sample_rows": 1, "forward_tokens": 1}),
    (False, {"n": 2, "max_tokens": 16}, {"prompts": 1}),
)


@dataclass(frozen=True)
class Overflow:
    """A pool whose smallest device has `room_bytes`, less than the peak of a phase."""

    pool: str
    peak: Peak
    room_bytes: int

    @property
    def over_bytes(self) -> int:
        """Give how much is missing."""
        return self.peak.memory_bytes - self.room_bytes


@dataclass(frozen=True)
class Sized:
    """What a forecast is made from, with the changes that led to it, as the user would write them."""

    graph: Graph
    workload: Workload
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Knob:
    """One number that can be halved, of a node or of the workload, down to `least`; `free` if results stay the same."""

    name: str
    value: int
    least: int
    free: bool
    turned: Callable[[Sized, int], Sized]


def overflow(plan: Plan) -> Overflow | None:
    """Find the pool that overflows by the most, if any does; by the plan's own forecast."""
    found = list[Overflow]()
    for pool in plan.pools:
        worst, room = forecast_of(plan, pool.name).worst, min(pool_sizes(plan, pool), default=None)
        if worst is not None and room is not None and worst.memory_bytes > room:
            found.append(Overflow(pool.name, worst, room))
    return max(found, key=lambda over: over.over_bytes, default=None)


def forecast_of(plan: Plan, pool: str) -> Forecast:
    """Give what a plan says of a pool; nothing, if it says nothing."""
    nothing = Forecast(pool=pool, process_bytes=0, peaks=())
    return next((each for each in plan.forecast if each.pool == pool), nothing)


def check_fits(
    plan: Plan,
    graph: Graph,
    shapes: Mapping[str, ModelShape],
    workload: Workload,
    *,
    on: str = "this machine",
) -> None:
    """Refuse a plan for this graph, with these sizes and this workload, that does not fit; `on` names the cluster.

    The plan is forecast anew, whatever it says of itself. Raises ResourceError: which role needs how much in which
    phase, its parts, what is held beside it, and the smallest changes that fit, each found by forecasting the plan
    again with a number halved until it does. Raises PlanError as `forecast_plan` does.
    """
    plan = forecast_plan(plan, graph, shapes, workload)
    over = overflow(plan)
    if over is None:
        return
    peak, room = over.peak, over.room_bytes
    overflows = (
        f"{peak.role} needs {show_bytes(peak.memory_bytes)} in {peak.phase}, "
        f"{show_bytes(over.over_bytes)} more than the {show_bytes(room)} that {_whose(plan, over.pool)} has"
    )
    needs = needs_on(plan, over.pool, forecast(plan, graph, shapes, workload))
    changes = smallest_changes(plan, graph, shapes, workload)
    hint = f"smallest changes that fit: {' · '.join(changes)}" if changes else _at_least(needs)
    notes = _notes(needs, peak, forecast_of(plan, over.pool))
    raise ResourceError.no_placement(plan.flow, on, overflows, notes, hint)


def _whose(plan: Plan, pool: str) -> str:
    """Say whose memory it is: that of one device, or of each device of a pool, or of its smallest."""
    found = next(each for each in plan.pools if each.name == pool)
    where = "" if len(plan.pools) == 1 else f" in pool `{pool}`"
    if len(found.devices) == 1:
        return f"its device{where}"
    return f"{'each' if len(set(pool_sizes(plan, found))) == 1 else 'the smallest'} of its devices{where}"


def _notes(needs: Sequence[Need], peak: Peak, told: Forecast) -> list[str]:
    """Say what the role that works holds, and what is held beside it, largest first."""
    always = [need for need in needs if need.phase is None]
    own = [*(need for need in always if need.role == peak.role), *at_once(needs, peak.role, peak.phase)]
    beside = [(need.needed_bytes, f"{need.role} {need.part}") for need in always if need.role != peak.role]
    beside = sorted([*beside, (told.process_bytes, show_process(told))], reverse=True)
    return [
        show_parts(by_part(own)),
        "beside it: " + " · ".join(f"{name} {show_bytes(count)}" for count, name in beside),
    ]


def _at_least(needs: Sequence[Need]) -> str:
    """Say what no batch makes smaller, of which what is gathered counts for the role that gathers most."""
    kept = sum(need.needed_bytes for need in needs if need.part in ("weights", "gradients", "optimizer"))
    gathered = max((need.needed_bytes for need in needs if need.part == "gathered"), default=0)
    return f"no smaller batch fits: models, gradients and optimizer alone take {show_bytes(kept + gathered)}"


def smallest_changes(plan: Plan, graph: Graph, shapes: Mapping[str, ModelShape], workload: Workload) -> tuple[str, ...]:
    """Give the single changes after which every pool of the plan fits; else one joint change, if any does.

    A number is halved until it fits. A joint change is of those that leave results as they are, or of the batch too.
    """

    def fit(sized: Sized) -> bool:
        return overflow(forecast_plan(plan, sized.graph, shapes, sized.workload)) is None

    start, knobs = Sized(graph, workload), [*_knobs(graph, workload)]
    found = [_halved(start, [knob], fit) for knob in knobs]
    if not any(found):
        free = [knob for knob in knobs if knob.free]
        found = [_halved(start, free, fit) or _halved(start, [*free, *(k for k in knobs if k.name == "batch")], fit)]
    return tuple(" and ".join(each.changes) for each in found if each is not None)


def _halved(start: Sized, knobs: Sequence[Knob], fit: Callable[[Sized], bool]) -> Sized | None:
    """Halve these numbers together until all fits, then put each back as far as it goes; None if nothing fits."""
    values = {knob: knob.value for knob in knobs}
    while not fit(_turned(start, values)):
        smaller = {knob: value // 2 if value // 2 >= knob.least else value for knob, value in values.items()}
        if smaller == values:
            return None
        values = smaller
    for knob in knobs:
        while values[knob] < knob.value and fit(_turned(start, values | {knob: _back(knob, values[knob])})):
            values[knob] = _back(knob, values[knob])
    return _turned(start, values)


def _turned(start: Sized, values: Mapping[Knob, int]) -> Sized:
    for knob, value in values.items():
        start = knob.turned(start, value) if value != knob.value else start
    return start


def _back(knob: Knob, value: int) -> int:
    """Give the value before it was last halved."""
    before = knob.value
    while before // 2 > value:
        before //= 2
    return before


def _knobs(graph: Graph, workload: Workload) -> Iterator[Knob]:
    for free, settings, fields in _TURNED:
        for node in graph.nodes:
            for setting, least in settings.items():
                value = getattr(node.settings, setting, None)
                if isinstance(value, int):
                    yield Knob(f"{node.name}.{setting}", value, least, free, _turning_node(node.name, setting))
        for field, least in fields.items():
            yield Knob(_shown(field), getattr(workload, field), least, free, _turning_workload(field))


def _shown(field: str) -> str:
    return "batch" if field == "prompts" else field


def _turning_workload(field: str) -> Callable[[Sized, int], Sized]:
    def turned(sized: Sized, value: int) -> Sized:
        workload = replace(sized.workload, **{field: value})
        return Sized(sized.graph, workload, (*sized.changes, f"{_shown(field)}={value}"))

    return turned


def _turning_node(name: str, setting: str) -> Callable[[Sized, int], Sized]:
    def turned(sized: Sized, value: int) -> Sized:
        def change(node: Node) -> Node:
            smaller = node.settings.model_copy(update={setting: value})
            return replace(node, settings=smaller) if node.name == name else node

        return Sized(rewrite(sized.graph, change), sized.workload, (*sized.changes, f"{name}.{setting}={value}"))

    return turned
