"""One solution of a search, played as a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from flowgraph.cluster.plan import Plan, PlanAssumptions, StepForecast
from placements.search.block_placements import Block, homes_of
from placements.search.plan_builder import plan_of
from placements.step.step_forecast import period_of, step_of
from placements.workload.planning_problem import PlanningProblem


@dataclass(frozen=True)
class RankedPlan:
    """One solution of the search, which takes no less of the objective than `bound` when it is played."""

    setting: PlanningProblem
    blocks: tuple[Block, ...]
    bound: float

    @cached_property
    def step(self) -> StepForecast:
        """Return the step, as the simulator plays it."""
        return step_of(self.setting, homes_of(self.setting, self.blocks))

    @cached_property
    def step_s(self) -> float:
        """Return the seconds from one step to the next, as the simulator plays them."""
        played_s = period_of(self.setting, homes_of(self.setting, self.blocks))
        return self.bound if played_s is None else played_s

    @property
    def devices(self) -> int:
        """Count its devices."""
        return sum(sum(option.devices) for _, option in self.blocks)

    @property
    def cost_per_step(self) -> float:
        """Return what a step costs, in the currency of the cluster's prices."""
        return self.step_s * sum(option.cost for _, option in self.blocks)

    @property
    def disaggregated(self) -> bool:
        """Return whether no pool both trains and samples."""
        uses = [{self.setting.roles[place].use for place in block} for block, _ in self.blocks]
        return not any({"train", "sample"} <= pool for pool in uses)

    def parts(self) -> tuple[tuple[str, ...], ...]:
        """Return the roles by the pool that they share."""
        return tuple(tuple(self.setting.roles[place].name for place in sorted(block)) for block, _ in self.blocks)

    def plan(self, assumed: PlanAssumptions | None = None, pins: Mapping[str, str] | None = None) -> Plan:
        """Return the plan, its pools named as roles are pinned."""
        return plan_of(self.setting, self.blocks, assumed, pins)
