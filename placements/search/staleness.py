"""How stale rollouts should be: the smallest staleness that buys what can be bought, and what a step then takes.

A flow states the maximum that it corrects for (`stale(policy, at_most=…)`); within that the planner chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flowgraph.errors import ResourceError
from placements.search.plan_builder import homes_of
from placements.search.search import PlanRequest, SearchResult, find
from placements.step.step_forecast import synced_every
from placements.workload.planning_problem import PlanningProblem

WORTH_SHARE = 0.01  # of a step, that one more update of staleness has to save
MAX_STALENESS = 8  # updates that are considered where a flow states no bound
CANDIDATES = (0, 1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class StalenessOption:
    """One staleness, with the search for it: rollout and training devices, and how often weights are synced."""

    staleness: int
    found: SearchResult

    @property
    def step_s(self) -> float:
        """Return the seconds of a step."""
        return self.found.best.step_s

    @property
    def ratio(self) -> tuple[int, int]:
        """Count the rollout devices and the training devices; where one pool does both, its devices count twice."""
        roles = self.found.setting.roles
        generate = train = 0
        for block, option in self.found.best.blocks:
            uses = {roles[place].use for place in block}
            generate += sum(option.devices) * ("sample" in uses)
            train += sum(option.devices) * ("train" in uses)
        return generate, train

    @property
    def sync_every(self) -> int:
        """Return after how many updates weights are brought to the rollout engine."""
        best = self.found.best
        return synced_every(best.setting, homes_of(best.setting, best.blocks))


def stalenesses(
    setting: PlanningProblem, at_most: int, request: PlanRequest | None = None
) -> tuple[StalenessOption, ...]:
    """Return the best plan of each staleness up to a bound; those for which nothing fits are left out."""
    options = list[StalenessOption]()
    for staleness in sorted({*(candidate for candidate in CANDIDATES if candidate < at_most), at_most}):
        try:
            options.append(StalenessOption(staleness, find(replace(setting, staleness=staleness), request)))
        except ResourceError:
            continue
    return tuple(options)


def best_staleness(options: Sequence[StalenessOption]) -> StalenessOption:
    """Return the smallest staleness whose step is within a hundredth of the shortest."""
    shortest_s = min(option.step_s for option in options)
    return next(option for option in options if option.step_s <= shortest_s * (1 + WORTH_SHARE))
