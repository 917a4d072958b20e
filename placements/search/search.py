"""From a setting to its best plans: the search, its best answers played as steps, the named placements beside them.

A pure function of what it is given: files, printing and drawing are for the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from math import fsum, inf
from time import perf_counter

from placements.search.infeasibility import nothing_fits, overflows, shown
from placements.search.named_placements import VARIANTS, Parts, PlacementVariant, variant
from placements.search.plan_builder import has_room
from placements.search.pool_options import OptionSource, PoolOptions
from placements.search.ranked_plan import RankedPlan
from placements.search.sensitivity import Regret, regrets
from placements.solver.exact import ROUNDING, WITHIN, Keys, assignments_below, is_below, keys_of
from placements.solver.problem import Assignment, Objective, Option, Problem, Solution, assignment_of
from placements.solver.solve import Method, is_exact, solve
from placements.workload.planning_problem import PlanningProblem

Pairs = tuple[frozenset[int], ...]
REPLAYED = 25  # of the search's answers of the least bounds, how many are played as steps whatever they come to
PLAYED_AT_MOST = 60  # more, of those that may be better than the best so far
PROMISING = 20  # of these, how many are played first, those of the least seconds if all stages were barriers
NAMED_REPLAYED = 5  # of the best answers of each named placement
NAMED_AT_MOST = 10  # more, of those that may be better
TIED_SHARE = 0.05  # plans nearer than this are ties: the forecast is no better. Source: HybridFlow's own, section 8


@dataclass(frozen=True)
class PlanRequest:
    """What is wanted of a search: the objective, what is fixed, and how to look for it.

    `pins` names a pool for a role: roles of one name share a pool, those of two names do not.
    """

    objective: Objective = "step"
    method: Method = "auto"
    pins: Mapping[str, str] = field(default_factory=dict[str, str])
    placement: str = ""


@dataclass(frozen=True)
class SearchResult:
    """What a search found: plans in the order of what they take as they are played, and the named placements.

    No plan of the layouts considered takes less than `bound` of the objective: seconds of a step, money, or devices.
    `bound_s` are the seconds below which no such plan gets that takes as little of it otherwise: of those for the step,
    of plans on as few devices for devices; None for money. Both are None where nothing is known. `played` plans were
    played. `regrets` are of the ranked plans, if asked for: then the plan of the least comes first. `cut` says that
    roles that share a pool have more ways than were combined: the fastest were, and the bound is of these.
    """

    setting: PlanningProblem
    answer: Solution
    ranked: tuple[RankedPlan, ...]
    named: tuple[tuple[PlacementVariant, RankedPlan | None], ...]
    seconds: float
    objective: Objective
    bound: float | None
    bound_s: float | None
    played: int
    regrets: tuple[Regret, ...] = ()
    cut: bool = False

    @property
    def best(self) -> RankedPlan:
        """Return the best plan."""
        return self.ranked[0]

    @property
    def gap(self) -> float | None:
        """Return the share of what the best plan takes by which another may take less; 0 only if none can."""
        if self.bound is None:
            return None
        value = value_of(self.best, self.objective)
        gap = _share_below(self.bound, value)
        if not gap and self.objective == "devices":
            return None if self.bound_s is None else _share_below(self.bound_s, self.best.step_s)
        return gap

    @property
    def proven(self) -> bool:
        """Return whether no plan of the layouts considered takes less than the best one."""
        return self.gap == 0.0 and not self.cut

    def ties(self) -> tuple[RankedPlan, ...]:
        """Return the plans that the forecast cannot tell from the best."""
        return tuple(each for each in self.ranked if each.step_s <= self.best.step_s * (1 + TIED_SHARE))


def find(setting: PlanningProblem, asked: PlanRequest | None = None, *, robust: bool = False) -> SearchResult:
    """Search the best plan of a setting; if `robust`, the one of the least regret where costs are other than forecast.

    Raises ResourceError when nothing fits, with what is short and the smallest changes that would help.
    """
    asked, began = asked or PlanRequest(), perf_counter()
    blocks = PoolOptions(setting)
    posed = problem(setting, blocks, asked).remembering()
    answer = solve(posed, method=asked.method)
    if answer is None:
        raise nothing_fits(setting, lambda changed: _found(changed, asked))
    cut = blocks.cut
    played = _PlayedPlans(setting, asked.objective)
    played.add([answer.best, *answer.runners_up][:REPLAYED])
    played.add(waiting_at_stages(posed, blocks, asked.method)[:PROMISING])
    beside = tuple((each, solved(setting, blocks, each.parts_of(setting.graph), asked.objective)) for each in VARIANTS)
    if not (asked.placement or asked.pins):
        played.add_ranked([each for _, each in beside if each is not None])
    least = _play_below(posed, answer, played, exactly=is_exact(posed, asked.method))
    ranked, told = played.ranked(), list[Regret]()
    if robust:
        ranked = [each for each in ranked if has_room(setting, each.blocks)] or ranked[:1]
        told = _steadiest_first(ranked, asked.objective)
        ranked = [*(each.ranked for each in told), *ranked[len(told) :]]
    else:
        ranked = list(dropwhile(lambda each: each is not ranked[-1] and played.lacks_room(each), ranked))
        if setting.kind == "cpu" and played.lacks_room(ranked[0]):
            for fault in overflows(ranked[0].plan(), setting, shown(setting)):
                raise fault
    bound, bound_s = _told(least, ranked[0], asked.objective)
    return SearchResult(
        setting=setting,
        answer=answer,
        ranked=tuple(ranked),
        named=beside,
        seconds=perf_counter() - began,
        objective=asked.objective,
        bound=bound,
        bound_s=bound_s,
        played=len(played),
        regrets=tuple(told),
        cut=cut,
    )


class _PlayedPlans:
    """Plans that were played, each once. Whether the cluster has room for one is asked of the best ones alone."""

    def __init__(self, setting: PlanningProblem, objective: Objective) -> None:
        self.setting = setting
        self.objective: Objective = objective
        self._without_room = set[tuple[tuple[frozenset[int], Option], ...]]()
        self._by_blocks: dict[tuple[tuple[frozenset[int], Option], ...], RankedPlan] = {}
        self._best: Keys | None = None

    def __len__(self) -> int:
        return len(self._by_blocks)

    def __contains__(self, choice: Assignment) -> bool:
        return choice.blocks in self._by_blocks

    def add(self, choices: Sequence[Assignment]) -> None:
        """Play choices."""
        self.add_ranked([_ranked(self.setting, each) for each in choices])

    def add_ranked(self, plans: Sequence[RankedPlan]) -> None:
        """Add plans, which are played if they were not."""
        for each in plans:
            self._by_blocks.setdefault(each.blocks, each)
        self._best = None

    def best_keys(self) -> Keys:
        """Return the keys of the best plan, those left out that the cluster is known to have no room for."""
        if self._best is None:
            there = (plan for blocks, plan in self._by_blocks.items() if blocks not in self._without_room)
            self._best = min((_keys(each, self.objective) for each in there), default=(inf, inf))
        return self._best

    def lacks_room(self, ranked: RankedPlan) -> bool:
        """Return whether the cluster is known to have no room for a plan."""
        return ranked.blocks in self._without_room

    def best_has_room(self) -> bool:
        """Return whether the cluster has room for the best plan; if not, another is the best from then on."""
        best = next((each for each in self.ranked() if each.blocks not in self._without_room), None)
        if best is None or has_room(self.setting, best.blocks):
            return True
        self._without_room.add(best.blocks)
        self._best = None
        return False

    def ranked(self) -> list[RankedPlan]:
        """Return the plans, best first."""
        return sorted(self._by_blocks.values(), key=lambda each: _order(each, self.objective))


def _play_below(
    posed: Problem, answer: Solution, played: _PlayedPlans, *, exactly: bool, at_most: int = PLAYED_AT_MOST
) -> Keys | None:
    """Play the choices that may be better than the best one played, while there are such, `at_most` so many.

    Return the keys that no plan gets below, None if nothing is known of them. A plan that is played takes no less than
    its bound, so that what is not played takes no less than the least bound of these; or than the best plan, whose keys
    come back where that is less. The most promising come first, then all in order of their bounds.
    """
    if not exactly:
        while not played.best_has_room():
            pass
        return None if answer.bound is None else min((answer.bound, 0.0), played.best_keys())
    first = len(played)
    while True:
        listing = assignments_below(posed, played.best_keys())
        least = min(listing.open_keys, (posed.left_out, 0.0))
        promising = sorted(listing.choices, key=lambda choice: _as_if_barriers(posed, choice))[:PROMISING]
        for choice in [*promising, *listing.choices]:
            keys = keys_of(posed, choice)
            if choice in played or not is_below(keys, played.best_keys()):
                continue
            if len(played) - first >= at_most:
                least = min(least, keys)
            else:
                played.add([choice])
        if played.best_has_room():
            return min(least, played.best_keys())


def waiting_at_stages(posed: Problem, blocks: PoolOptions, method: Method = "auto") -> list[Assignment]:
    """Return the best choices as if all pools waited for each other after each stage, the best first.

    There are none where barriers part all stages already. Where they do not, bounds hardly tell choices apart: a pool
    that is done with a stage early counts as if it went on, though it may wait for what others do in that stage.
    """
    of_stage = blocks.barriers.of_stage
    if len(set(of_stage)) == len(of_stage):
        return []

    def apart(option: Option) -> Option:
        return replace(option, stages_s=option.key.sitting.stages_s) if isinstance(option.key, OptionSource) else option

    def bounded(block: frozenset[int], waiting: Option) -> Option:
        return next(option for option in posed.options(block) if option.key is waiting.key)

    waiting = replace(posed, options=lambda block: [apart(option) for option in posed.options(block)])
    answer = solve(waiting, method=method)
    found = [answer.best, *answer.runners_up] if answer else []
    return [assignment_of(posed, ((block, bounded(block, option)) for block, option in each.blocks)) for each in found]


def _as_if_barriers(posed: Problem, choice: Assignment) -> tuple[float, float]:
    """Return about what a choice takes, as if all its pools waited for each other after each stage."""
    sittings = [option.key.sitting for _, option in choice.blocks if isinstance(option.key, OptionSource)]
    seconds = fsum(map(max, zip(*(sitting.stages_s for sitting in sittings), strict=True)))
    step_s = max(seconds / posed.tokens, *(option.busy_s for _, option in choice.blocks))
    return {"step": (step_s, 0.0), "cost": (step_s * choice.cost, 0.0), "devices": (choice.value, step_s)}[
        posed.objective
    ]


def _told(least: Keys | None, best: RankedPlan, objective: Objective) -> tuple[float | None, float | None]:
    """Return bound and seconds of a search, by the keys that no plan gets below."""
    if least is None or objective == "cost":
        return (None if least is None else least[0]), None
    if objective == "step":
        return least[0], least[0]
    return least[0], least[1] if least[0] >= best.devices else None


def _share_below(bound: float, value: float) -> float:
    share = 1 - bound / value if value else 0.0
    return share if share > ROUNDING else 0.0


def _keys(ranked: RankedPlan, objective: Objective) -> Keys:
    """Return what plans are compared by, as they are played."""
    return value_of(ranked, objective), ranked.step_s if objective == "devices" else 0.0


def value_of(ranked: RankedPlan, objective: Objective) -> float:
    """Return what a plan takes, as it is played: seconds of a step, money for it, or devices."""
    if objective == "devices":
        return float(ranked.devices)
    return ranked.step_s if objective == "step" else ranked.cost_per_step


def _steadiest_first(ranked: Sequence[RankedPlan], objective: Objective) -> list[Regret]:
    """Return the regrets of plans, the least first; where devices count, only of the first plans, which have fewest."""
    first = [each for each in ranked if objective != "devices" or each.devices == ranked[0].devices]
    return sorted(regrets(first, objective), key=lambda each: each.mean)


def _order(ranked: RankedPlan, objective: Objective) -> tuple[float, ...]:
    """Return what plans are sorted by: the objective as they are played, then seconds, their bounds, devices."""
    return value_of(ranked, objective), ranked.step_s, ranked.bound, ranked.devices


def problem(setting: PlanningProblem, blocks: PoolOptions, asked: PlanRequest) -> Problem:
    """Return the abstract problem of a setting: what must share a pool, and what must not, besides its options."""
    return _problem(setting, blocks, asked, *pinned(setting, asked))


def _problem(
    setting: PlanningProblem, blocks: PoolOptions, asked: PlanRequest, together: Pairs, apart: Pairs
) -> Problem:
    whole = Problem(
        roles=tuple(role.name for role in setting.roles),
        capacity=tuple(of.count for of in setting.classes),
        options=blocks.options if setting.ratio is None else in_ratio(setting, blocks, setting.ratio),
        tokens=blocks.barriers.tokens,
        objective=asked.objective,
        together=(*together, *setting.together),
        apart=apart,
    )
    if asked.objective != "step" or asked.method == "greedy" or setting.ratio or not whole.allows(_everyone(setting)):
        return whole
    # Nothing slower than what a search keeps beside one pool for all needs to be looked at.
    most_s = (1 + WITHIN) * blocks.together_s()
    return replace(whole, options=lambda block: blocks.options(block, most_s), left_out=most_s)


def _everyone(setting: PlanningProblem) -> frozenset[int]:
    return frozenset(range(len(setting.roles)))


def in_ratio(
    setting: PlanningProblem, blocks: PoolOptions, ratio: tuple[int, int]
) -> Callable[[frozenset[int]], Sequence[Option]]:
    """Return the options of blocks that draw but do not train, and of those that train but do not draw, in a ratio.

    Both together have all devices, as near to that as sizes of pools come.
    """
    uses = [role.use for role in setting.roles]
    total, parts = sum(of.count for of in setting.classes), sum(ratio)

    def options(block: frozenset[int]) -> Sequence[Option]:
        drawn, trained = (any(uses[place] == use for place in block) for use in ("sample", "train"))
        found = blocks.options(block)
        if drawn == trained:
            return found
        share = total * (ratio[0] if drawn else ratio[1]) / parts
        nearest = min((abs(sum(each.devices) - share) for each in found), default=0.0)
        return [each for each in found if abs(sum(each.devices) - share) <= nearest]

    return options


def pinned(setting: PlanningProblem, asked: PlanRequest) -> tuple[Pairs, Pairs]:
    """Return the pairs of roles that pins, or a named placement, put on one pool, and those that they keep apart."""
    groups = variant(asked.placement).parts_of(setting.graph) if asked.placement else ()
    pools = dict.fromkeys(asked.pins.values())
    pins = tuple(tuple(role for role, name in asked.pins.items() if name == pool) for pool in pools)
    together, apart = _pairs(setting, groups)
    more_together, more_apart = _pairs(setting, pins)
    return (*together, *more_together), (*apart, *more_apart)


def _pairs(setting: PlanningProblem, parts: Parts) -> tuple[Pairs, Pairs]:
    place = {role.name: number for number, role in enumerate(setting.roles)}
    numbered = [here for part in parts if (here := [place[name] for name in part if name in place])]
    together = tuple(frozenset((part[0], other)) for part in numbered for other in part[1:])
    apart = tuple(frozenset((one[0], other[0])) for at, one in enumerate(numbered) for other in numbered[at + 1 :])
    return together, apart


def solved(
    setting: PlanningProblem, blocks: PoolOptions, parts: Parts, objective: Objective = "step"
) -> RankedPlan | None:
    """Return the best plan, as plans are played, in which roles share pools just so; None if none fits."""
    together, apart = _pairs(setting, parts)
    posed = _problem(setting, blocks, PlanRequest(objective), together, apart).remembering()
    answer = solve(posed, method="auto")
    if answer is None:
        return None
    played = _PlayedPlans(setting, objective)
    played.add([answer.best, *answer.runners_up][:NAMED_REPLAYED])
    played.add(waiting_at_stages(posed, blocks)[:NAMED_REPLAYED])
    _play_below(posed, answer, played, exactly=is_exact(posed, "auto"), at_most=NAMED_AT_MOST)
    return next((each for each in played.ranked() if not played.lacks_room(each)), None)


def _ranked(setting: PlanningProblem, choice: Assignment) -> RankedPlan:
    return RankedPlan(setting, choice.blocks, choice.value)


def _found(setting: PlanningProblem, asked: PlanRequest) -> bool:
    """Return whether a quick search finds something that fits."""
    return solve(problem(setting, PoolOptions(setting), asked), method="greedy") is not None
