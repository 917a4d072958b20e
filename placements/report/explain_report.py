"""Reports that explain a plan: alternative pools and layouts for each role, and a comparison of several plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from flowgraph.cluster.cluster import DeviceKind, show_bytes
from flowgraph.cluster.plan import Plan
from flowgraph.errors import PlanError
from placements.format import COLUMNS, flowing, pool_sizes, table
from placements.memory.footprint import fits
from placements.report.search_report import TimedPlan, show_s, why_slower
from placements.search.alternatives import (
    AlternativeLayout,
    AlternativePool,
    CurrentPlan,
    alternative_layouts,
    alternative_pools,
    parts_of,
)
from placements.search.named_placements import Parts
from placements.search.pool_options import PoolOptions
from placements.search.search import TIED_SHARE, solved
from placements.step.task_rows import TaskRow, task_rows
from placements.workload.batch_partition import many
from placements.workload.planning_problem import PlanningProblem

ABSENT = "-"


@dataclass(frozen=True)
class Explanation:
    """Alternatives to a plan with known seconds, as data and as text; `current` is the plan's step."""

    problem: PlanningProblem
    plan: Plan
    current: CurrentPlan

    @cached_property
    def parts(self) -> Parts:
        """Return the names of the roles on each pool of the plan, a tuple per pool; empty pools are left out."""
        return parts_of(self.plan)

    def neighbours(self, role: str) -> tuple[str, ...]:
        """Return the names of all roles on the pool of `role`, including `role`.

        `role` must be a role of the plan.
        """
        return next(part for part in self.parts if role in part)

    def alternatives(self, role: str) -> tuple[AlternativePool, ...]:
        """Search for the best plan with `role` on each other pool, then on a pool of its own if `role` shares one now.

        Returns an alternative for each of these pools. Its attribute `ranked` is the best plan found, which may be
        slower than the current plan; None if none is found. Raises PlanError if no role has the name `role`.
        """
        names = [placed.name for placed in self.problem.roles]
        if role not in names:
            raise PlanError.unknown("explain", "role", role, names)
        return tuple(alternative_pools(self.problem, self.parts, role))

    def faster_text(self) -> str:
        """Search for the fastest plan with the same roles on each pool, and return a line that compares the two plans.

        Returns "" if no plan is found, or if the fastest found is not at least 0.05% faster than this one.
        """
        return fastest_text(self.current, solved(self.problem, PoolOptions(self.problem), self.parts))

    def text(self, role: str, pools: Sequence[AlternativePool]) -> str:
        """Return a table of step times with `role` on each of `pools`, fastest first; infeasible pools come last."""
        return alternatives_text(role, self.neighbours(role), self.current, pools)

    def layouts_text(self, role: str) -> str:
        """Return a table of the role's possible layouts on its pool, with their seconds and bytes, fastest first.

        `role` must be a role of the plan.
        """
        home = next(placed for placed in self.plan.placed if placed.role == role)
        pool = next(pool for pool in self.plan.pools if pool.name == home.pool)
        return layouts_text(role, alternative_layouts(self.problem, self.plan, role), len(pool.devices))


def explain(problem: PlanningProblem, plan: Plan) -> Explanation:
    """Return an object that finds and describes alternatives to a plan.

    Raises AssertionError if the seconds of the plan's step are not known.
    """
    assert plan.step is not None and plan.step.period_s is not None, "only a plan of known seconds can be explained"
    return Explanation(problem, plan, CurrentPlan(plan.step, plan.step.period_s, len(plan.used())))


def alternatives_text(role: str, home: Sequence[str], current: TimedPlan, moved: Sequence[AlternativePool]) -> str:
    """Return a table of step times with `role` on other pools, fastest first; pools that do not fit come last.

    `home` has the names of the roles on the current pool of `role`, `current` is the plan to compare with, and `moved`
    has the other pools. A step within 5% of the current one is called a tie; a slower one has the reason.
    """
    mates = [name for name in home if name != role]
    where = f"shares a pool with {', '.join(mates)}" if mates else "has a pool of its own"
    simulated, unfit = list[tuple[float, list[str]]](), list[list[str]]()
    for move in moved:
        place = f"with {'+'.join(move.neighbours)}" if move.neighbours else "alone"
        if move.ranked is None:
            unfit.append([place, "does not fit", "", ""])
        else:
            moved_to = move.ranked
            change = moved_to.step_s / current.step_s - 1
            why = "a tie" if change > -TIED_SHARE else "better than this plan"
            why = why_slower(moved_to, current) if change > TIED_SHARE else why
            why += f", on {many(moved_to.devices, 'device')}" if moved_to.devices != current.devices else ""
            simulated.append((moved_to.step_s, [place, show_s(moved_to.step_s), f"{change:+.1%}", why]))
    simulated.sort(key=lambda row: row[0])
    head = f"{role} {where}: {show_s(current.step_s)} a step"
    return "\n".join([head, *flowing([*(cells for _, cells in simulated), *unfit], "; ")])


def fastest_text(current: TimedPlan, best: TimedPlan | None) -> str:
    """Return a line that compares a plan with `best`, the fastest plan with the same roles on each pool.

    Returns "" if `best` is None, or is not faster by at least 0.05%.
    """
    if best is None or best.step_s > current.step_s * (1 - 5e-4):
        return ""
    faster = f"{show_s(best.step_s)}, {best.step_s / current.step_s - 1:+.1%}, on {many(best.devices, 'device')}"
    return f"a step of this plan takes {show_s(current.step_s)}; the same pools at their fastest {faster}"


def layouts_text(role: str, layouts: Sequence[AlternativeLayout], devices: int) -> str:
    """Return a table of layouts for a role on its pool of `devices` devices, with seconds, peak bytes and settings.

    Rows are in the order of `layouts`; `→` marks the current layout. Layouts that do not fit are marked, too.
    """
    rows = [
        [
            "→" if option.current else "",
            f"{option.layout}",
            show_s(option.seconds),
            f"{show_bytes(option.peak_bytes)} at work{'' if option.fits else ': does not fit'}",
            str(option.running),
        ]
        for option in layouts
    ]
    head = f"{role} on its {many(devices, 'device')}: the current layout (→), and the fastest that fits of each layout"
    return "\n".join([head, *flowing(rows)])


def plans_text(named: Sequence[tuple[str, Plan]], columns: int = COLUMNS) -> str:
    """Return a table with a column for each plan: seconds by task, cost if known, layouts of roles, and fullest device.

    `named` has (name, plan) pairs. If the table is wider than `columns`, plans are listed one below the other. Raises
    KeyError if a plan has forecast seconds and its cluster lacks a machine of the plan.
    """
    wide = table([["", *(name for name, _ in named)], *_rows([plan for _, plan in named])])
    if max(map(len, wide)) - 2 <= columns:
        return "\n".join(line[2:] for line in wide)
    return "\n\n".join("\n".join([name, *flowing(list(_rows([plan])), columns=columns)]) for name, plan in named)


def _rows(plans: Sequence[Plan]) -> Iterator[list[str]]:
    yield ["flow", *(plan.flow for plan in plans)]
    yield ["a step", *(show_s(plan.step.period_s if plan.step else None) for plan in plans)]
    yield ["devices", *(str(sum(len(pool.devices) for pool in plan.pools)) for plan in plans)]
    costs = [cost_per_step(plan) for plan in plans]
    if any(cost is not None for cost in costs):
        yield ["a step costs", *("unknown" if cost is None else f"{cost:,.2f}" for cost in costs)]
    tasks = [{row.label: row for row in task_rows(plan.step)} if plan.step else {} for plan in plans]
    for label in dict.fromkeys(label for rows in tasks for label in rows):
        yield [f"  {label}", *(_seconds(rows.get(label)) for rows in tasks)]
    for role in dict.fromkeys(placed.role for plan in plans for placed in plan.placed):
        homes = [next((placed for placed in plan.placed if placed.role == role), None) for plan in plans]
        heads = ["" if home is None else f"{home.pool} {home.engine}" for home in homes]
        layouts = ["" if home is None else str(home.layout) for home in homes]
        if len(plans) == 1:
            yield [role, f"{heads[0]} {layouts[0]}"]
        else:
            yield [role, *(head or ABSENT for head in heads)]
            yield ["", *layouts]
    yield ["fullest device", *(_fullest(plan) for plan in plans)]


def cost_per_step(plan: Plan) -> float | None:
    """Return the cost of one step of a plan, in the currency of the machines' prices; None if it is not known.

    The price of a machine is divided equally among its devices. The cost is unknown if a machine has no price or the
    seconds of the step are not known. Raises KeyError if the cluster lacks a machine of the plan.
    """
    if plan.step is None or plan.step.period_s is None:
        return None
    nodes = {node.name: node for node in plan.cluster.nodes}
    used = [nodes[name] for pool in plan.pools for name, _ in pool.devices]
    prices = [node.price_per_hour / len(node.devices) for node in used if node.price_per_hour is not None]
    return plan.step.period_s / 3600 * sum(prices) if len(prices) == len(used) else None


def _seconds(row: TaskRow | None) -> str:
    if row is None:
        return ABSENT
    where = "+".join(row.pools) if len(row.tasks) == 1 else f"in {len(row.tasks)}"
    return f"{show_s(row.seconds)} {where}".strip()


def _fullest(plan: Plan) -> str:
    rooms = {pool.name: min(sizes) for pool in plan.pools if (sizes := pool_sizes(plan, pool))}
    forecasts = [pool for pool in plan.forecast if pool.pool in rooms]  # the cluster may lack a pool's devices
    peaks = [(peak.memory_bytes, pool.pool, peak.role) for pool in forecasts for peak in pool.peaks]
    if not peaks:
        return ABSENT
    highest, fullest, role = max(peaks, key=lambda peak: peak[0] / rooms[peak[1]])
    places = next(pool.devices for pool in plan.pools if pool.name == fullest)
    kinds: list[DeviceKind] = [device.kind for place in places if (device := plan.cluster.device(*place))]
    fit = fits(highest, rooms[fullest], kinds[0] if kinds else "gpu")
    excess = "" if fit else f": does not fit, it has {show_bytes(rooms[fullest])}"
    return f"{show_bytes(highest)} on {fullest}, {role}{excess}"
