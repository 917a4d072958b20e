"""How a choice of plan depends on the forecast: costs sampled within its error, and the regret of each plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placements.search.plan_builder import RankedPlan
from placements.search.pool_options import pool_option_of
from placements.solver.problem import Objective
from placements.step.barriers import barriers_of

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

COST_ERROR = 0.2  # the forecast's own: half of the published steps are nearer than this
DRAWS = 256
SEED = 0


@dataclass(frozen=True)
class Regret:
    """How a plan does when seconds are other than forecast: how often it is the best, else how much more it takes.

    `mean` and `worst` are shares of what the best plan takes: of its seconds, or of its cost.
    """

    ranked: RankedPlan
    best_share: float
    mean: float
    worst: float


def regrets(
    plans: Sequence[RankedPlan], objective: Objective = "step", *, error: float = COST_ERROR, draws: int = DRAWS
) -> tuple[Regret, ...]:
    """Return the regret of each plan among these, in their order, where each role's seconds are off by up to `error`.

    Each role in each pool size has its own random factor between 1 - error and 1 + error, the same for all plans. A
    plan is valued as the search does: by its seconds, or by what these cost. A number of devices is not forecast, so
    then plans have the regret of their seconds. The same plans give the same regrets.
    """
    import numpy

    def price(plan: RankedPlan) -> float:
        return sum(option.cost for _, option in plan.blocks) if objective == "cost" else 1.0

    values = numpy.stack([_sampled_seconds(plan, error, draws) * price(plan) for plan in plans])
    lost = values / values.min(axis=0) - 1
    wins = numpy.isclose(lost, 0.0).mean(axis=1)
    rows = zip(plans, wins, lost.mean(axis=1), lost.max(axis=1), strict=True)
    return tuple(Regret(plan, float(win), float(mean), float(worst)) for plan, win, mean, worst in rows)


def _sampled_seconds(plan: RankedPlan, error: float, draws: int) -> NDArray[float64]:
    """Return the seconds of a step [draws], as the search values them."""
    import numpy

    barriers = barriers_of(plan.setting)
    slowest, busiest = numpy.zeros((draws, barriers.spans)), numpy.zeros(draws)
    for block, option in plan.blocks:
        spans_s, busy_s = numpy.tile(option.stages_s, (draws, 1)), numpy.full(draws, option.busy_s)
        for place, role in zip(sorted(block), pool_option_of(option).roles, strict=True):
            random = numpy.random.default_rng((SEED, place, sum(option.devices)))
            change = random.uniform(1 - error, 1 + error, draws) - 1
            spans_s += numpy.outer(change, barriers.spans_s(place, role.stages_s)) * barriers.share
            busy_s += change * sum(role.stages_s)
        spans_s = numpy.maximum(spans_s, numpy.multiply(barriers.share, barriers.host_s))
        slowest, busiest = numpy.maximum(slowest, spans_s), numpy.maximum(busiest, busy_s)
    summed: NDArray[float64] = slowest.sum(axis=1) / barriers.tokens
    return summed if barriers.tokens == 1 else numpy.maximum(summed, busiest)
