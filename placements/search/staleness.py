"""How late weights should be for what draws: the least staleness that buys what can be bought, and what it takes.

A flow says the most that it corrects for (`stale(policy, at_most=…)`); within that the planner chooses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from flowgraph.errors import ResourceError
from placements.format import table
from placements.report.search_report import show_s
from placements.search.search import PlanRequest, SearchResult, find
from placements.step.role_placements import homes_of
from placements.step.step_forecast import synced_every
from placements.workload.planning_problem import PlanningProblem

WORTH_SHARE = 0.01  # of a step, that one more update of staleness has to save
MOST_STALE = 8  # updates that are looked at where a flow says no bound
LOOKED_AT = (0, 1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class StalenessOption:
    """One staleness, with its best plan: devices that draw and that train, and after how many updates weights go."""

    staleness: int
    found: SearchResult

    @property
    def step_s(self) -> float:
        """Return the seconds of a step."""
        return self.found.best.step_s

    @property
    def ratio(self) -> tuple[int, int]:
        """Return the devices that draw and those that train; all of them both, where one pool does both."""
        best = self.found.best
        uses = [{self.found.setting.roles[place].use for place in block} for block, _ in best.blocks]
        counts = [sum(option.devices) for _, option in best.blocks]
        draws, trains = (
            sum(count for use, count in zip(uses, counts, strict=True) if wanted in use)
            for wanted in ("sample", "train")
        )
        return draws, trains

    @property
    def sync_every(self) -> int:
        """Return after how many updates weights are brought to what draws."""
        best = self.found.best
        return synced_every(best.setting, homes_of(best.setting, best.blocks))


def stalenesses(
    setting: PlanningProblem, at_most: int, asked: PlanRequest | None = None
) -> tuple[StalenessOption, ...]:
    """Return the best plan of each staleness up to a bound; those that nothing fits are left out."""
    return tuple(_tried(setting, at_most, asked))


def _tried(setting: PlanningProblem, at_most: int, asked: PlanRequest | None) -> Iterator[StalenessOption]:
    for staleness in sorted({each for each in LOOKED_AT if each < at_most} | {at_most}):
        try:
            yield StalenessOption(staleness, find(replace(setting, staleness=staleness), asked))
        except ResourceError:
            continue


def best_staleness(tried: tuple[StalenessOption, ...]) -> StalenessOption:
    """Return the least staleness whose step is within a hundredth of the shortest."""
    shortest = min(each.step_s for each in tried)
    return next(each for each in tried if each.step_s <= shortest * (1 + WORTH_SHARE))


def staleness_text(tried: tuple[StalenessOption, ...], chosen: int) -> str:
    """Print what each staleness buys, the chosen one marked."""
    rows = [
        [
            "→" if each.staleness == chosen else "",
            str(each.staleness),
            show_s(each.step_s),
            f"{each.step_s / tried[0].step_s - 1:+.0%}",
            _ratio(each),
            f"synced every {each.sync_every} updates" if each.sync_every > 1 else "synced after each update",
        ]
        for each in tried
    ]
    return "\n".join(["staleness, in updates; the least within 1% of the shortest step is taken", *table(rows)])


def _ratio(late: StalenessOption) -> str:
    """Say how many devices draw and how many train, those that do both apart."""
    counts = Counter[str]()
    for block, option in late.found.best.blocks:
        uses = {late.found.setting.roles[place].use for place in block}
        does = "do both" if {"sample", "train"} <= uses else "draw" if "sample" in uses else "train"
        counts[does] += sum(option.devices) if {"sample", "train"} & uses else 0
    if len(late.found.best.blocks) == 1 and counts["do both"]:
        return f"all on {counts['do both']}"
    return ", ".join(f"{count} {does}" for does in ("do both", "draw", "train") if (count := counts[does]))
