"""One answer of a search, played as a step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from flowgraph.cluster.plan import Plan, PlanAssumptions, StepForecast
from placements.homes import Block, homes_of
from placements.placing import plan_of
from placements.setting import Setting
from placements.step_forecast import period_of, step_of


@dataclass(frozen=True)
class Ranked:
    """One answer of the search, played: as it is, it takes no less of the objective than `bound`."""

    setting: Setting
    blocks: tuple[Block, ...]
    bound: float

    @cached_property
    def step(self) -> StepForecast:
        """Return the step as the simulator plays it."""
        return step_of(self.setting, homes_of(self.setting, self.blocks))

    @cached_property
    def step_s(self) -> float:
        """Return the seconds from one step to the next, as the simulator plays them."""
        played_s = period_of(self.setting, homes_of(self.setting, self.blocks))
        return self.bound if played_s is None else played_s

    @property
    def devices(self) -> int:
        """Return the devices that it takes."""
        return sum(sum(option.devices) for _, option in self.blocks)

    @property
    def cost_per_step(self) -> float:
        """Return what a step costs, in the currency of the cluster's prices."""
        return self.step_s * sum(option.cost for _, option in self.blocks)

    def parts(self) -> tuple[tuple[str, ...], ...]:
        """Return the roles by the pool that they share."""
        return tuple(tuple(self.setting.roles[place].name for place in sorted(block)) for block, _ in self.blocks)

    def plan(self, assumed: PlanAssumptions | None = None) -> Plan:
        """Return the plan itself."""
        return plan_of(self.setting, self.blocks, assumed)
