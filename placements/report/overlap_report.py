"""How the steps of a plan overlap, what that holds in memory, and why they do not where they may."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import fsum

from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.model.quantities import listed, many, show_s
from placements.search.plan_builder import RankedPlan
from placements.step.overlap import ALWAYS_TRIED, overlaps_of
from placements.step.role_placements import RolePlacement, homes_of_plan
from placements.step.step_forecast import period_of, step_of
from placements.step.window import window_of
from placements.workload.planning_problem import PlanningProblem

MUCH_SHARE = 0.05  # of a step: a sync that takes more is a reason
COMPARED = 5  # of the plans that were simulated, those whose steps are made to overlap


def overlap_lines(problem: PlanningProblem, plan: Plan, ranked: Sequence[RankedPlan] = ()) -> Iterator[str]:
    """Yield lines about the overlap of a plan's steps: how far each role works ahead, its lag, and the bytes held.

    If steps of the plan do not overlap although the problem allows it, the only line says why; `ranked` are other plans
    of the search, best first, for this line. Yields nothing if steps do not overlap and the problem does not allow it,
    or has no weights to sync. Raises ResourceError if the problem's cluster has no devices for a pool of the plan.
    """
    homes = homes_of_plan(problem, plan)
    ahead = [home for home in homes if home.ahead]
    if ahead:
        window, lags = window_of(problem, homes), list[str]()
        for home in ahead:
            lag = f" with weights at most {many(home.lag, 'update')} old" if home.lag else ""
            lags.append(f"{home.role.name} {many(home.ahead, 'step')} ahead{lag}")
        yield f"steps overlap: {', '.join(lags)}"
        weights = f", and {many(window.copies, 'copy', 'copies')} of weights, {show_bytes(window.weights_bytes)}"
        rows = f"rows of {window.batches} steps, up to {show_bytes(window.rows_bytes)}"
        yield f"  held in host memory at once: {rows}{weights if window.copies else ''}"
        used = max((home.lag for home in ahead), default=0)
        if problem.staleness and used < problem.staleness and problem.contract != "ready":
            yield f"  {many(problem.staleness, 'update')} may be used: more than {used} makes no step shorter"
        yield from in_flight_lines(problem, homes)
    elif problem.overlaps and problem.synced:
        yield f"steps do not overlap: {why_alone(problem, homes, plan, ranked)}"


def in_flight_lines(problem: PlanningProblem, homes: Sequence[RolePlacement]) -> Iterator[str]:
    """Yield a line on what rows in flight gain: the same placements and overlap with syncs that wait for responses.

    A row is in flight if its response goes on with new weights after a sync. Yields nothing if no role has such rows,
    or if seconds are not known.
    """
    flying = [home for home in homes if home.running.in_flight]
    waiting = [
        replace(
            home,
            running=home.running.model_copy(update={"contract": "scheduled"}),
            lag=home.lag - home.behind * problem.running.updates(home.role.param),
            behind=0,
        )
        for home in homes
    ]
    step, scheduled_s = step_of(problem, homes), period_of(problem, waiting)
    if not flying or not step.period_s or not scheduled_s:
        return
    again_s = fsum(task.parts.get("resume") or 0.0 for task in step.tasks if task.role in {h.role.name for h in flying})
    saved = 1 - step.period_s / scheduled_s
    gain = f"rows in flight save {saved:.0%}" if saved > 0 else f"rows in flight do not pay ({-saved:+.0%})"
    gain = gain if f"{abs(saved):.0%}" != "0%" else "rows in flight gain nothing"
    caches = f"; caches take {show_s(again_s)}" if again_s else ""
    yield f"  {gain}: {show_s(scheduled_s)} a step if syncs wait for responses{caches}"


def why_alone(
    problem: PlanningProblem, homes: Sequence[RolePlacement], plan: Plan, ranked: Sequence[RankedPlan]
) -> str:
    """Return as text why the steps of a plan do not overlap although the problem allows it.

    The fastest step with overlap, of the plan's placements `homes` and the first five `ranked` plans, is compared with
    that of the plan. If none is possible, or the seconds of the plan are unknown, the text has the possible reasons.
    """
    depths = range(1, ALWAYS_TRIED + 1)
    overlaps = list(overlaps_of(problem, homes, depths))
    for candidate in ranked[:COMPARED]:
        overlaps += overlaps_of(problem, candidate.homes, depths)
    steps = [step for overlap in overlaps if (step := step_of(problem, overlap)).period_s is not None]
    if not steps or plan.step is None or not plan.step.period_s:
        why = "sampling has no devices of its own, rows of several steps do not fit, or a step makes more updates"
        return f"{why} than {many(problem.lag, 'update')}"
    fastest = min(steps, key=lambda step: step.period_s or 0.0)
    period_s = fastest.period_s or 0.0
    takes = f"it does not pay, since the fastest such step takes {show_s(period_s)}"
    takes += f" ({period_s / plan.step.period_s - 1:+.0%})"
    syncs = [(task.name, task.seconds / task.every) for task in fastest.tasks if task.kind == "sync" and task.seconds]
    sync_s = fsum(seconds for _, seconds in syncs)
    if sync_s > MUCH_SHARE * period_s:
        return f"{takes}: both pools wait {show_s(sync_s)} for {listed([name for name, _ in syncs])}"
    return f"{takes}, by {' → '.join(fastest.cycle)}"
