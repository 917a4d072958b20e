"""What is asked of plans that are there: `simulate`, `compare`, `explain`, `fit`. No torch is loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.checks.placed import unsupported
from flowgraph.cli.check import count_faults
from flowgraph.cli.listings import columns_there
from flowgraph.cli.plan_result import SearchChoices, read_plan
from flowgraph.cli.planning_request import PlanningProblem, PlanRequest, cluster_of, posed_by
from flowgraph.cli.replan import faults_of, forecast_of, known_step, refuse_broken
from flowgraph.cli.search_command import print_costed
from flowgraph.cli.written_files import write_text
from flowgraph.errors import FlowError, UsageError, nearest
from placements.blocks import Blocks
from placements.bubbles import bubbles
from placements.chrome_trace import chrome_trace
from placements.finding import solved
from placements.found_text import show_s
from placements.moves import Here, layouts, moves, parts_of
from placements.moves_text import fastest_text, layouts_text, moves_text, plans_text
from placements.published_errors import error_lines
from placements.short import overflows
from placements.step_forecast import schedule_of
from placements.timeline import play
from placements.timeline_text import timeline_text

if TYPE_CHECKING:
    from flowgraph.cluster.cluster import Cluster
    from flowgraph.cluster.plan import Plan

SETTLED_SHARE = 1e-3  # of a step, within which the steps that are played take what they do in the long run


def simulate(path: Path, steps: int, out: Path | None, as_json: bool) -> None:
    """Play the steps of a plan, and write what was played as a Chrome trace to `out`."""
    plan = read_plan(path)
    refuse_broken(plan, str(path))
    step, period_s = known_step(plan.step, str(path))
    played = play(schedule_of(step.tasks, step.waits), steps=steps)
    if out is not None:
        write_text(out, json.dumps(chrome_trace(played, f"{plan.flow}, predicted"), indent=1) + "\n")
    if as_json:
        idle = [
            {"pool": each.pool, "start_s": each.start_s, "end_s": each.end_s, "why": each.why}
            for each in bubbles(played)
        ]
        runs = [
            {"task": each.task, "pool": each.pool, "step": each.step, "start_s": each.start_s, "end_s": each.end_s}
            for each in played.events
        ]
        told = {"period_s": period_s, "played_s": played.period_s, "events": runs, "bubbles": idle}
        print(json.dumps(told, indent=1))
    else:
        print(timeline_text(played, columns_there()))
        if played.period_s is None or not isclose(played.period_s, period_s, rel_tol=SETTLED_SHARE):
            print(f"a step takes {period_s:,.1f} s once steps follow each other")
        print("\n".join(error_lines(plan)))
    if out is not None:
        print(out, file=sys.stderr)


def compare(paths: Sequence[Path], as_json: bool) -> None:
    """Print plans beside each other."""
    if len(paths) < 2:
        raise UsageError("one plan is nothing to compare", where="compare", hint="compare A.json B.json")
    plans = [(str(path), read_plan(path)) for path in paths]
    for name, plan in plans:
        refuse_broken(plan, name)
    if as_json:
        print(json.dumps({name: json.loads(plan.to_json()) for name, plan in plans}, indent=1))
    else:
        print(plans_text(plans, columns_there()))


def explain(path: Path, role: str | None, as_json: bool) -> None:
    """Say why each role of a plan, or one, is where it is, and what a step would take with it elsewhere."""
    read = read_plan(path)
    posed = posed_by(read, str(path))
    setting = posed.setting
    known = [each.name for each in setting.roles]
    if role is not None and role not in known:
        raise UsageError(f"no role `{role}`", where=f"explain {path}", hint=nearest(role, known))
    plan, step, step_s = forecast_of(read, posed, str(path))
    parts, here = parts_of(plan), Here(step, step_s, len(plan.used()))
    for fault in overflows(plan, setting, str(path)):
        print(fault, file=sys.stderr)
    faster = "" if as_json else fastest_text(here, solved(setting, Blocks(setting), parts))
    if faster:
        print(faster)
    told = list[dict[str, object]]()
    for each in (one for one in setting.roles if role in (None, one.name)):
        part = next(part for part in parts if each.name in part)
        found = list(moves(setting, parts, each.name))
        if as_json:
            others = [{"beside": list(m.beside), "step_s": m.ranked.step_s if m.ranked else None} for m in found]
            told.append({"role": each.name, "beside": list(part), "step_s": here.step_s, "elsewhere": others})
            continue
        print(moves_text(each.name, part, here, found))
        if role is not None:
            pool = next(pool for one in plan.placed for pool in plan.pools if (one.role, one.pool) == (role, pool.name))
            print(layouts_text(each.name, layouts(setting, plan, each.name), len(pool.devices)))
    if as_json:
        print(json.dumps(told, indent=1))


def fit(question: PlanRequest, sought: SearchChoices, out: Path | None, as_json: bool) -> None:
    """Print the plan with the fewest devices of a cluster that fits."""
    print_costed(question, replace(sought, objective="devices"), out, as_json)


def check_file(path: Path, cluster: str | None, as_json: bool) -> int:
    """Say whether a plan is for its flow and fits its cluster, or another; give the exit code, 0 if it does."""
    plan = read_plan(path)
    there = None if cluster is None else cluster_of(cluster)
    try:
        posed = posed_by(plan, str(path), there)
        faults = [str(each) for each in faults_of(plan, posed, cluster or str(path), there)]
    except FlowError as error:
        posed, faults = None, [str(error)]
    if as_json:
        print(json.dumps({"plan": str(path), "faults": faults}, indent=1))
    else:
        for text in faults:
            print(text)
        if posed is not None and not faults:
            print("".join(_forecast_now(plan, posed, str(path), there)), end="", file=sys.stderr)
            for name in unsupported(plan):
                print(f"it names {name}, which cannot be run here", file=sys.stderr)
        print(count_faults(len(faults), str(path)), file=sys.stderr)
    return 1 if faults else 0


def _forecast_now(plan: Plan, posed: PlanningProblem, where: str, cluster: Cluster | None) -> Iterator[str]:
    """Say what a step of a plan without a fault takes elsewhere, or now where its file says something else."""
    _, _, step_s = forecast_of(plan, posed, where, cluster)
    told_s = plan.step.period_s if plan.step is not None else None
    if cluster is not None:
        yield f"a step takes {show_s(step_s)} there\n"
    elif told_s is not None and not isclose(told_s, step_s, rel_tol=SETTLED_SHARE):
        yield f"its file says {show_s(told_s)} a step; it is forecast to take {show_s(step_s)}\n"
