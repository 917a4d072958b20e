"""How much a choice of plan hangs on the forecast: costs drawn anew within its error, and the regret of each plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placements.search.pool_options import OptionSource
from placements.search.ranked_plan import RankedPlan
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

    Each role in each pool size draws its own factor between 1 - error and 1 + error, the same for all plans; a plan is
    valued as the search does: by its seconds, or by what these cost. A number of devices is not forecast, so that plans
    have the regret of their seconds. The same plans give the same regrets.
    """
    import numpy

    values = numpy.stack([_values(each, error, draws) * _rate(each, objective) for each in plans])
    best = values.min(axis=0)
    lost = values / best - 1
    wins = numpy.isclose(lost, 0.0).mean(axis=1)
    rows = zip(plans, wins, lost.mean(axis=1), lost.max(axis=1), strict=True)
    return tuple(Regret(plan, float(win), float(mean), float(worst)) for plan, win, mean, worst in rows)


def _rate(ranked: RankedPlan, objective: Objective) -> float:
    """Return what a second of a plan costs, where it is looked for by its cost."""
    return sum(option.cost for _, option in ranked.blocks) if objective == "cost" else 1.0


def _values(ranked: RankedPlan, error: float, draws: int) -> NDArray[float64]:
    """Return what a step takes in each draw, as the search values it."""
    import numpy

    barriers = barriers_of(ranked.setting)
    slowest, busiest = numpy.zeros((draws, barriers.spans)), numpy.zeros(draws)
    for block, option in ranked.blocks:
        offered = option.key
        assert isinstance(offered, OptionSource), "options are those that blocks offer"
        spans_s, busy_s = numpy.tile(option.stages_s, (draws, 1)), numpy.full(draws, option.busy_s)
        for place, choice in zip(sorted(block), offered.sitting.chosen, strict=True):
            more = _factors(place, sum(option.devices), error, draws) - 1
            own_s = barriers.spans_s(place, choice.stages_s)
            spans_s += numpy.outer(more, own_s) * barriers.share
            busy_s += more * sum(choice.stages_s)
        spans_s = numpy.maximum(spans_s, numpy.multiply(barriers.share, barriers.host_s))
        slowest, busiest = numpy.maximum(slowest, spans_s), numpy.maximum(busiest, busy_s)
    summed: NDArray[float64] = slowest.sum(axis=1) / barriers.tokens
    return summed if barriers.tokens == 1 else numpy.maximum(summed, busiest)


def _factors(place: int, devices: int, error: float, draws: int) -> NDArray[float64]:
    import numpy

    return numpy.random.default_rng((SEED, place, devices)).uniform(1 - error, 1 + error, draws)
