"""From a planning problem to its best plans: the search, the simulated steps of its best solutions, and their regrets.

A pure function of its arguments: files, printing and pictures are for the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile
from math import fsum, inf
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from placements.search.infeasibility import class_counts, nothing_fits, overflows
from placements.search.named_placements import VARIANTS, Parts, PlacementVariant
from placements.search.plan_builder import RankedPlan, has_room
from placements.search.plan_request import PlanRequest, pinned
from placements.search.pool_options import PoolOptions, pool_option_of
from placements.solver.exact import ROUNDING, WITHIN, Keys, assignments_below, is_below, keys_of
from placements.solver.problem import (
    Assignment,
    AssignmentProblem,
    BlockOption,
    Objective,
    Option,
    Solution,
    assignment_of,
)
from placements.solver.solve import Method, is_exact, solve
from placements.step.barriers import barriers_of
from placements.workload.planning_problem import PlanningProblem

SIMULATED = 25  # solutions of the lowest bounds that are simulated as steps in any case
SIMULATED_AT_MOST = 60  # more, of those that may be better than the best so far
PROMISING = 20  # of these, how many are simulated first: those of the fewest seconds if all stages were barriers
NAMED_SIMULATED = 5  # of the best solutions of each named placement
NAMED_AT_MOST = 10  # more, of those that may be better
TIED_SHARE = 0.05  # plans nearer than this are ties, as near as forecasts are. Source: HybridFlow's own, section 8
COST_ERROR = 0.2  # the forecast's own: half of the published steps are nearer than this
DRAWS = 256
SEED = 0


@dataclass(frozen=True)
class Regret:
    """The performance of a plan when seconds differ from the forecast.

    `best_share` is how often it is the best plan; `mean` and `worst` are how much more it takes than the best plan, as
    a share of that plan's seconds or cost.
    """

    ranked: RankedPlan
    best_share: float
    mean: float
    worst: float


@dataclass(frozen=True)
class SearchResult:
    """The result of a search: ranked plans, the best plan of each named placement, and bounds.

    No plan of the layouts considered takes less than `bound` of the objective: seconds of a step, money, or devices.
    `bound_s` is a lower bound of the seconds of a step; for the objective devices, it holds for plans with as few
    devices as the best, and for cost it is None. Both are None if no bound is known. `simulated` counts the simulated
    plans. `regrets` belong to the ranked plans if a robust plan was requested; the plan with the least regret then
    comes first. `cut` is True if roles that share a pool have more options than were combined; the fastest were
    combined, and the bound is for these. `stalenesses` are the searches at other staleness that `auto` tried,
    `what_ifs` each change and its search, None if nothing fits.
    """

    problem: PlanningProblem
    solution: Solution
    ranked: tuple[RankedPlan, ...]
    named: tuple[tuple[PlacementVariant, RankedPlan | None], ...]
    seconds: float
    objective: Objective
    bound: float | None
    bound_s: float | None
    simulated: int
    regrets: tuple[Regret, ...] = ()
    cut: bool = False
    stalenesses: tuple[SearchResult, ...] = ()
    what_ifs: tuple[tuple[str, SearchResult | None], ...] = ()

    @property
    def best(self) -> RankedPlan:
        """Return the best plan; if a robust plan was requested, this is the plan with the least regret."""
        return self.ranked[0]

    @property
    def gap(self) -> float | None:
        """Return by what share of the best plan's value another plan may be better; None if no bound is known.

        0 means that no plan of the layouts considered can be better; if `cut` is True, some layouts were not
        considered, so use `proven` to ask whether the best plan is optimal. For the objective devices, if no plan has
        fewer devices, the share is of the seconds of a step instead. Shares of at most 1e-9 count as 0.
        """
        if self.bound is None:
            return None
        gap = _share_below(self.bound, value_of(self.best, self.objective))
        if not gap and self.objective == "devices":
            return None if self.bound_s is None else _share_below(self.bound_s, self.best.step_s)
        return gap

    @property
    def proven(self) -> bool:
        """Return whether no plan of the layouts considered can be better than the best plan found; False if `cut`."""
        return self.gap == 0.0 and not self.cut

    def ties(self) -> tuple[RankedPlan, ...]:
        """Return the ranked plans whose step is at most 5% longer than the best plan's, including the best plan."""
        return tuple(plan for plan in self.ranked if plan.step_s <= self.best.step_s * (1 + TIED_SHARE))


def find(problem: PlanningProblem, request: PlanRequest | None = None) -> SearchResult:
    """Search for the best plan, and return ranked plans, the best plan of each named placement, and bounds.

    The best plan found comes first; `proven` of the result is True if no plan of the layouts considered can be better.
    If a robust plan is requested, the plan with the least mean regret comes first. The request's `staleness` and
    `what_if` are ignored: they are for `answer`. Raises ResourceError if nothing fits, with the missing memory and the
    smallest changes that would help, and UnknownNameError for an unknown named placement.
    """
    request, began = request or PlanRequest(), perf_counter()

    def fits(changed: PlanningProblem) -> bool:
        return solve(assignment_problem(changed, PoolOptions(changed), request), method="greedy") is not None

    pools = PoolOptions(problem)
    assignments = assignment_problem(problem, pools, request).remembering()
    solution = solve(assignments, method=request.method)
    if solution is None:
        raise nothing_fits(problem, fits)
    cut, simulated = pools.cut, _SimulatedPlans(problem, request.objective)
    simulated.add([solution.best, *solution.runners_up][:SIMULATED])
    simulated.add(waiting_at_stages(assignments, pools, request.method)[:PROMISING])
    named = tuple((form, solved(problem, pools, form.parts_of(problem.graph), request.objective)) for form in VARIANTS)
    if not (request.placement or request.pins):
        simulated.add_ranked(plan for _, plan in named if plan is not None)
    minimum = simulated.simulate_below(assignments, solution, exactly=is_exact(assignments, request.method))
    ranked, regretted = simulated.ranked(), list[Regret]()
    if request.robust:
        ranked = [plan for plan in ranked if has_room(problem, plan.blocks)] or ranked[:1]
        # Where devices count, only of the plans with the fewest, which come first.
        alike = [plan for plan in ranked if request.objective != "devices" or plan.devices == ranked[0].devices]
        regretted = sorted(regrets(alike, request.objective), key=lambda regret: regret.mean)
        ranked = [*(regret.ranked for regret in regretted), *ranked[len(regretted) :]]
    else:
        ranked = list(dropwhile(lambda plan: plan is not ranked[-1] and simulated.lacks_room(plan), ranked))
        if problem.kind == "cpu" and simulated.lacks_room(ranked[0]):
            for fault in overflows(ranked[0].plan(), problem, class_counts(problem)):
                raise fault
    bound, second = minimum or (None, None)
    of_fewest = second if bound is not None and bound >= ranked[0].devices else None
    bound_s = {"step": bound, "cost": None, "devices": of_fewest}[request.objective]
    return SearchResult(
        problem=problem,
        solution=solution,
        ranked=tuple(ranked),
        named=named,
        seconds=perf_counter() - began,
        objective=request.objective,
        bound=bound,
        bound_s=bound_s,
        simulated=len(simulated),
        regrets=tuple(regretted),
        cut=cut,
    )


class _SimulatedPlans:
    def __init__(self, problem: PlanningProblem, objective: Objective) -> None:
        self.problem = problem
        self.objective: Objective = objective
        self._without_room = set[tuple[BlockOption, ...]]()
        self._by_blocks: dict[tuple[BlockOption, ...], RankedPlan] = {}
        self._best: Keys | None = None

    def __len__(self) -> int:
        return len(self._by_blocks)

    def add(self, choices: Iterable[Assignment]) -> None:
        self.add_ranked(RankedPlan(self.problem, choice.blocks, choice.value, choice.step_s) for choice in choices)

    def add_ranked(self, plans: Iterable[RankedPlan]) -> None:
        for plan in plans:
            self._by_blocks.setdefault(plan.blocks, plan)
        self._best = None

    def lacks_room(self, ranked: RankedPlan) -> bool:
        return ranked.blocks in self._without_room

    def ranked(self) -> list[RankedPlan]:
        def order(plan: RankedPlan) -> tuple[float, ...]:
            return value_of(plan, self.objective), plan.step_s, plan.bound, plan.devices

        return sorted(self._by_blocks.values(), key=order)

    def simulate_below(
        self, assignments: AssignmentProblem, solution: Solution, *, exactly: bool, at_most: int = SIMULATED_AT_MOST
    ) -> Keys | None:
        """Simulate choices that may be better than the best plan, and return a lower bound of the keys of every plan.

        At most `at_most` choices are simulated, the most promising first. Returns None if no bound is known.
        """

        def as_if_barriers(choice: Assignment) -> tuple[float, float]:
            """Return roughly what a choice takes, as if all its pools waited for each other after each stage."""
            stages = (pool_option_of(option).stages_s for _, option in choice.blocks)
            seconds = fsum(map(max, zip(*stages, strict=True)))
            step_s = max(seconds / assignments.tokens, *(option.busy_s for _, option in choice.blocks))
            keys = {"step": (step_s, 0.0), "cost": (step_s * choice.cost, 0.0), "devices": (choice.value, step_s)}
            return keys[assignments.objective]

        if not exactly:
            while not self._best_has_room():
                pass
            return None if solution.bound is None else min((solution.bound, 0.0), self._best_keys())
        first = len(self)
        while True:
            listing = assignments_below(assignments, self._best_keys())
            minimum = min(listing.open_keys, (assignments.left_out, 0.0))
            promising = sorted(listing.choices, key=as_if_barriers)[:PROMISING]
            for choice in [*promising, *listing.choices]:
                keys = keys_of(assignments, choice)
                if choice.blocks in self._by_blocks or not is_below(keys, self._best_keys()):
                    continue
                if len(self) - first >= at_most:
                    minimum = min(minimum, keys)
                else:
                    self.add([choice])
            if self._best_has_room():
                return min(minimum, self._best_keys())

    def _best_keys(self) -> Keys:
        if self._best is None:
            plans = (plan for plan in self._by_blocks.values() if not self.lacks_room(plan))
            by_seconds = self.objective == "devices"
            keys = ((value_of(plan, self.objective), plan.step_s if by_seconds else 0.0) for plan in plans)
            self._best = min(keys, default=(inf, inf))
        return self._best

    def _best_has_room(self) -> bool:
        """Return whether the cluster has room for the best plan; if not, another is the best from then on."""
        best = next((plan for plan in self.ranked() if not self.lacks_room(plan)), None)
        if best is None or has_room(self.problem, best.blocks):
            return True
        self._without_room.add(best.blocks)
        self._best = None
        return False


def waiting_at_stages(assignments: AssignmentProblem, pools: PoolOptions, method: Method = "auto") -> list[Assignment]:
    """Search for the choices that would be best if all pools waited for each other after each stage, and return them.

    They are in that order, best first, but their values do not contain these waits. Returns [] if the flow's barriers
    separate all stages already, or if nothing fits.
    """
    of_stage = pools.barriers.of_stage
    if len(set(of_stage)) == len(of_stage):
        return []

    def waiting(block: frozenset[int]) -> list[Option]:
        return [replace(option, spans_s=pool_option_of(option).stages_s) for option in assignments.options(block)]

    def bounded(block: frozenset[int], waiting: Option) -> Option:
        return next(option for option in assignments.options(block) if option.key is waiting.key)

    solution = solve(replace(assignments, options=waiting), method=method)
    choices = [solution.best, *solution.runners_up] if solution else []
    return [
        assignment_of(assignments, ((block, bounded(block, option)) for block, option in choice.blocks))
        for choice in choices
    ]


def _share_below(bound: float, value: float) -> float:
    share = 1 - bound / value if value else 0.0
    return share if share > ROUNDING else 0.0


def value_of(ranked: RankedPlan, objective: Objective) -> float:
    """Return a plan's value for an objective: seconds of a step, cost of a step (cluster's currency), or devices."""
    if objective == "devices":
        return float(ranked.devices)
    return ranked.step_s if objective == "step" else ranked.cost_per_step


def assignment_problem(problem: PlanningProblem, pools: PoolOptions, request: PlanRequest) -> AssignmentProblem:
    """Return the solver's problem: the options of each block of roles, and which roles must or must not share a pool.

    With a fixed ratio, blocks that only generate or only train get the pool sizes nearest to the ratio. Otherwise, for
    the objective `step`, if all roles may share a pool, pools are left out on which a block takes over 10% longer than
    all roles on the largest pool; a greedy search keeps them. Raises UnknownNameError for an unknown named placement.
    """
    together, apart = pinned(problem, request)
    all_options = AssignmentProblem(
        roles=tuple(role.name for role in problem.roles),
        capacity=tuple(of.count for of in problem.classes),
        options=pools.options if problem.ratio is None else _in_ratio(problem, pools, problem.ratio),
        tokens=pools.barriers.tokens,
        objective=request.objective,
        together=(*together, *problem.together),
        apart=apart,
    )
    everyone = frozenset(range(len(problem.roles)))
    if request.objective != "step" or request.method == "greedy" or problem.ratio or not all_options.allows(everyone):
        return all_options
    # One pool for all is a choice, so nothing needs computing that is slower than what a search keeps besides it.
    max_s = (1 + WITHIN) * pools.together_s()
    return replace(all_options, options=lambda block: pools.options(block, max_s), left_out=max_s)


def _in_ratio(
    problem: PlanningProblem, pools: PoolOptions, ratio: tuple[int, int]
) -> Callable[[frozenset[int]], Sequence[Option]]:
    total = sum(of.count for of in problem.classes)

    def options(block: frozenset[int]) -> Sequence[Option]:
        uses = {problem.roles[place].use for place in block}
        options = pools.options(block)
        if ("sample" in uses) == ("train" in uses):
            return options
        share = total * ratio["train" in uses] / sum(ratio)
        nearest = min((abs(sum(option.devices) - share) for option in options), default=0.0)
        return [option for option in options if abs(sum(option.devices) - share) <= nearest]

    return options


def solved(
    problem: PlanningProblem, pools: PoolOptions, parts: Parts, objective: Objective = "step"
) -> RankedPlan | None:
    """Search for plans in which roles share pools exactly as in `parts`, and return the best of those simulated.

    `parts` holds the names of the roles of each pool; roles in no part may be on any pool. Returns None if none is
    found.
    """
    pins = {role: str(number) for number, part in enumerate(parts) for role in part}
    assignments = assignment_problem(problem, pools, PlanRequest(objective=objective, pins=pins)).remembering()
    solution = solve(assignments)
    if solution is None:
        return None
    simulated = _SimulatedPlans(problem, objective)
    simulated.add([solution.best, *solution.runners_up][:NAMED_SIMULATED])
    simulated.add(waiting_at_stages(assignments, pools)[:NAMED_SIMULATED])
    simulated.simulate_below(assignments, solution, exactly=is_exact(assignments), at_most=NAMED_AT_MOST)
    return next((plan for plan in simulated.ranked() if not simulated.lacks_room(plan)), None)


def regrets(
    plans: Sequence[RankedPlan], objective: Objective = "step", *, error: float = COST_ERROR, draws: int = DRAWS
) -> tuple[Regret, ...]:
    """Return the regret of each of `plans`, in their order, if each role's seconds are off by up to the share `error`.

    Each role in each pool size has a random factor between 1 - error and 1 + error, the same for all plans, sampled
    `draws` times from fixed seeds. For the objective cost, plans are compared by their cost; for step and devices, by
    their seconds, since a number of devices is not a forecast. Raises ValueError if `plans` is empty.
    """
    values = list[NDArray[np.float64]]()
    for plan in plans:
        barriers = barriers_of(plan.problem)
        slowest, busiest = np.zeros((draws, barriers.spans)), np.zeros(draws)
        for block, option in plan.blocks:
            spans_s, busy_s = np.tile(option.spans_s, (draws, 1)), np.full(draws, option.busy_s)
            for place, role in zip(sorted(block), pool_option_of(option).roles, strict=True):
                random = np.random.default_rng((SEED, place, sum(option.devices)))
                change = random.uniform(1 - error, 1 + error, draws) - 1
                spans_s += np.outer(change, barriers.spans_s(place, role.stages_s)) * barriers.share
                busy_s += change * sum(role.stages_s)
            spans_s = np.maximum(spans_s, np.multiply(barriers.share, barriers.host_s))
            slowest, busiest = np.maximum(slowest, spans_s), np.maximum(busiest, busy_s)
        step_s = slowest.sum(axis=1) / barriers.tokens
        step_s = step_s if barriers.tokens == 1 else np.maximum(step_s, busiest)
        values.append(step_s * sum(option.cost for _, option in plan.blocks) if objective == "cost" else step_s)
    lost = np.stack(values) / np.min(values, axis=0) - 1
    wins = np.isclose(lost, 0.0).mean(axis=1)
    rows = zip(plans, wins, lost.mean(axis=1), lost.max(axis=1), strict=True)
    return tuple(Regret(plan, float(win), float(mean), float(worst)) for plan, win, mean, worst in rows)
