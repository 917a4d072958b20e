"""The answer of a planner as text and as data, with the sizes of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from flowgraph.cluster.plan import Plan
from placements.format import COLUMNS, broken, table
from placements.report.overlap_report import overlap_lines
from placements.report.search_report import MEASURES, search_report, show_s, what_if_text
from placements.search.plan_builder import RankedPlan
from placements.search.search import SearchResult, value_of
from placements.solver.problem import Objective
from placements.step.step_forecast import synced_every
from placements.workload.batch_partition import BatchSizes, batch_text


def answer_text(search: SearchResult, plan: Plan, top: int) -> str:
    """Return a search as text: its best plan, at most `top` ranked plans, and other staleness and what-ifs if any.

    `plan` is the best plan of the search.
    """
    parts = [search_report(search, plan, top=top)]
    parts += [staleness_text(search.stalenesses, search.problem.lag)] if search.stalenesses else []
    parts += [what_if_text(search)] if search.what_ifs else []
    return "\n\n".join(parts)


def staleness_text(searches: Sequence[SearchResult], chosen: int) -> str:
    """Return a table with a row for each staleness: seconds of a step, devices by use, and the updates between syncs.

    `searches` has one search for each staleness, in ascending order. `→` marks the staleness `chosen`, in updates.
    Percentages compare a step with that of the first search. If `chosen` is 0 although others were tried, lines below
    the table say how steps overlap in the best plan of the smallest other staleness, or why they do not.
    """
    rows = list[list[str]]()
    for search in searches:
        best, counts = search.best, Counter[str]()
        for block, pool in best.blocks:
            uses = {search.problem.roles[place].use for place in block} & {"sample", "train"}
            if uses:
                counts["do both" if len(uses) == 2 else uses.pop()] += sum(pool.devices)
        ratio = ", ".join(f"{count} {use}" for use in ("do both", "sample", "train") if (count := counts[use]))
        if len(best.blocks) == 1 and counts["do both"]:
            ratio = f"all on {counts['do both']}"
        staleness, every = (
            search.problem.staleness,
            synced_every(best.problem, best.homes),
        )
        mark, slower = "→" if staleness == chosen else "", f"{best.step_s / searches[0].best.step_s - 1:+.0%}"
        syncs = f"synced every {every} updates" if every > 1 else "synced after each update"
        rows.append([mark, str(staleness), show_s(best.step_s), slower, ratio, syncs])
    lines = ["staleness, in updates; the least within 1% of the shortest step is taken", *table(rows)]
    for later in [search for search in searches if search.problem.staleness][:1] if not chosen else ():
        why = overlap_lines(later.problem, later.best.plan(), later.ranked)
        lines += [text for line in why for text in broken(f"with {later.problem.staleness}, {line}", ", ")]
    return "\n".join(lines)


def batch_lines(sizes: BatchSizes) -> list[str]:
    """Return the batch sizes of a step as indented lines under the heading `batch`."""
    return ["batch", *indented(batch_text(sizes).splitlines())]


def indented(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines indented by two spaces; the rest of a line that is too long is on new lines, indented by four.

    Lines are broken after commas, or else between words, and have at most 100 columns unless a word is longer.
    """
    for line in lines:
        first, *rest = broken(line, ", ", COLUMNS - 4)
        yield f"  {first}"
        yield from (f"    {text}" for text in rest)


def answer_data(search: SearchResult, top: int, notes: Sequence[str]) -> dict[str, Any]:
    """Return a search as JSON-compatible data: the proof, at most `top` plans, notes, what-ifs and other staleness.

    The keys are `search`, `ranked`, `named`, `notes`, `what_if` and `staleness`. In `search`, `value` and `bound` are
    in the `unit` of the objective; `value` is from the simulated step of the best plan. `ranked` has at most `top`
    plans. A named placement or a what-if that does not fit is None. `staleness` has an entry for each staleness that
    was tried.
    """
    objective = search.objective
    return {
        "search": {
            "objective": objective,
            "unit": MEASURES[objective].unit,
            "value": value_of(search.best, objective),
            "bound": search.bound,
            "bound_s": search.bound_s,
            "gap": search.gap,
            "proven": search.proven,
            "cut": search.cut,
            "simulated": search.simulated,
            "search_s": search.seconds,
        },
        "ranked": [_ranked_data(plan, objective) for plan in search.ranked[:top]],
        "named": {v.name: None if plan is None else _ranked_data(plan, objective) for v, plan in search.named},
        "notes": list(notes),
        "what_if": {
            change: None if changed is None else _ranked_data(changed.best, objective)
            for change, changed in search.what_ifs
        },
        "staleness": [_staleness_data(tried) for tried in search.stalenesses],
    }


def _staleness_data(search: SearchResult) -> dict[str, Any]:
    best, devices = search.best, Counter[str]()
    for block, option in best.blocks:
        for use in {search.problem.roles[place].use for place in block}:
            devices[use] += sum(option.devices)
    return {
        "staleness": search.problem.staleness,
        "step_s": best.step_s,
        "devices_that_draw": devices["sample"],
        "devices_that_train": devices["train"],
        "sync_every": synced_every(best.problem, best.homes),
    }


def _ranked_data(ranked: RankedPlan, objective: Objective) -> dict[str, Any]:
    blocks = zip(ranked.parts(), ranked.blocks, strict=True)
    return {
        "step_s": ranked.step_s,
        "value": value_of(ranked, objective),
        "bound": ranked.bound,
        "devices": ranked.devices,
        "pools": [{"roles": list(part), "devices": sum(option.devices)} for part, (_, option) in blocks],
    }
