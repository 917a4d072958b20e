"""How late weights should be for what draws: the least staleness that buys what can be bought, and what it takes.

A flow says the most that it corrects for (`stale(policy, at_most=…)`); within that the planner chooses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from flowgraph.errors import ResourceError
from placements.search.block_placements import homes_of
from placements.search.search import PlanRequest, SearchResult, find
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
