"""The answer of a planner as text and as data, with the sizes of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from placements.format import COLUMNS, broken, table
from placements.report.search_report import MEASURES, search_report, show_s, what_if_text
from placements.search.plan_builder import RankedPlan
from placements.search.plan_options import PlanAnswer, StalenessOption
from placements.search.search import value_of
from placements.solver.problem import Objective
from placements.workload.batch_partition import BatchSizes, batch_text


def answer_text(answer: PlanAnswer, top: int) -> str:
    """Return the planner's answer as text: the best plan, at most `top` ranked plans, other staleness and what-ifs."""
    parts = [search_report(answer.search, answer.plan, top=top)]
    parts += [staleness_text(answer.staleness, answer.problem.lag)] if answer.staleness else []
    parts += [what_if_text(answer.search, answer.what_if)] if answer.what_if else []
    return "\n\n".join(parts)


def staleness_text(options: Sequence[StalenessOption], chosen: int) -> str:
    """Return the seconds of a step, the ratio of devices and the syncs at each staleness, the chosen one marked."""
    rows = list[list[str]]()
    for option in options:
        best, counts = option.search.best, Counter[str]()
        for block, pool in best.blocks:
            uses = {option.search.problem.roles[place].use for place in block} & {"sample", "train"}
            if uses:
                counts["do both" if len(uses) == 2 else uses.pop()] += sum(pool.devices)
        ratio = ", ".join(f"{count} {use}" for use in ("do both", "sample", "train") if (count := counts[use]))
        if len(best.blocks) == 1 and counts["do both"]:
            ratio = f"all on {counts['do both']}"
        mark, slower = "→" if option.staleness == chosen else "", f"{option.step_s / options[0].step_s - 1:+.0%}"
        syncs = f"synced every {option.sync_every} updates" if option.sync_every > 1 else "synced after each update"
        rows.append([mark, str(option.staleness), show_s(option.step_s), slower, ratio, syncs])
    return "\n".join(["staleness, in updates; the least within 1% of the shortest step is taken", *table(rows)])


def batch_lines(sizes: BatchSizes) -> list[str]:
    """Return the batch sizes of a step as indented lines under the heading `batch`."""
    return ["batch", *indented(batch_text(sizes).splitlines())]


def indented(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines indented by two spaces; a line that is too long is broken after commas, its rest indented by four."""
    for line in lines:
        first, *rest = broken(line, ", ", COLUMNS - 4)
        yield f"  {first}"
        yield from (f"    {text}" for text in rest)


def answer_data(answer: PlanAnswer, top: int, notes: Sequence[str]) -> dict[str, Any]:
    """Return the answer as JSON-compatible data: the search, at most `top` plans, notes, what-ifs and other staleness.

    `value` and `bound` are in the `unit` of the objective. `value` is from the simulated step of the best plan.
    """
    search, objective = answer.search, answer.search.objective
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
            "played": search.played,
            "search_s": search.seconds,
        },
        "ranked": [_ranked_data(plan, objective) for plan in search.ranked[:top]],
        "named": {v.name: None if plan is None else _ranked_data(plan, objective) for v, plan in search.named},
        "notes": list(notes),
        "what_if": {
            what_if.change: None if what_if.search is None else _ranked_data(what_if.search.best, objective)
            for what_if in answer.what_if
        },
        "staleness": [
            {
                "staleness": option.staleness,
                "step_s": option.step_s,
                "devices_that_draw": option.ratio[0],
                "devices_that_train": option.ratio[1],
                "sync_every": option.sync_every,
            }
            for option in answer.staleness
        ],
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
