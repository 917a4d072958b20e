"""From a setting to its best plans: the search, its best answers played as steps, the named placements beside them.

A pure function of what it is given: files, printing and drawing are for the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from time import perf_counter

from placements.blocks import Blocks
from placements.exact import WITHIN
from placements.named import VARIANTS, Parts, Variant, variant
from placements.placing import has_room
from placements.problem import Answer, Choice, Objective, Option, Problem
from placements.ranked import Ranked
from placements.robust import Regret, regrets
from placements.setting import Setting
from placements.short import nothing_fits
from placements.solve import Method, solve

Pairs = tuple[frozenset[int], ...]
REPLAYED = 50  # of the search's best answers, how many are played as steps
NAMED_REPLAYED = 5  # of the best answers of each named placement
TIED_SHARE = 0.05  # plans nearer than this are ties: the forecast is no better. Source: HybridFlow's own, section 8


@dataclass(frozen=True)
class Asked:
    """What is wanted of a search: the objective, what is fixed, and how to look for it.

    `pins` names a pool for a role: roles of one name share a pool, those of two names do not.
    """

    objective: Objective = "step"
    method: Method = "auto"
    pins: Mapping[str, str] = field(default_factory=dict[str, str])
    placement: str = ""


@dataclass(frozen=True)
class Found:
    """What a search found: plans in the order of the simulator, the search's own figures, and the named placements.

    `answer` holds value, bound, gap and what was examined; the bound is on the search's objective, not on the step.
    `moved` says that the simulator's winner is not the search's. `regrets` are of the ranked plans, if asked for: then
    the plan of the least comes first.
    """

    setting: Setting
    answer: Answer
    ranked: tuple[Ranked, ...]
    named: tuple[tuple[Variant, Ranked | None], ...]
    seconds: float
    moved: bool
    regrets: tuple[Regret, ...] = ()

    @property
    def best(self) -> Ranked:
        """Give the best plan."""
        return self.ranked[0]

    def ties(self) -> tuple[Ranked, ...]:
        """Give the plans that the forecast cannot tell from the best."""
        return tuple(each for each in self.ranked if each.step_s <= self.best.step_s * (1 + TIED_SHARE))


def find(setting: Setting, asked: Asked | None = None, *, robust: bool = False) -> Found:
    """Search the best plan of a setting; if `robust`, the one of the least regret where costs are other than forecast.

    Raises ResourceError when nothing fits, with what is short and the smallest changes that would help.
    """
    asked, began = asked or Asked(), perf_counter()
    blocks = Blocks(setting)
    answer = solve(problem(setting, blocks, asked), method=asked.method)
    if answer is None:
        raise nothing_fits(setting, lambda changed: _found(changed, asked))
    kept = [_ranked(setting, each) for each in (answer.best, *answer.runners_up)[:REPLAYED]]
    first = kept[0]
    beside = tuple((each, solved(setting, blocks, each.parts_of(setting.graph), asked.objective)) for each in VARIANTS)
    if not (asked.placement or asked.pins):
        seen = {each.blocks for each in kept}
        others = {each.blocks: each for _, each in beside if each is not None}
        kept += [each for held, each in others.items() if held not in seen]
    ranked = sorted(kept, key=lambda each: _order(each, asked.objective))
    told = list[Regret]()
    if robust:
        ranked = [each for each in ranked if has_room(setting, each.blocks)] or ranked[:1]
        told = _steadiest_first(ranked, asked.objective)
        ranked = [*(each.ranked for each in told), *ranked[len(told) :]]
    else:
        ranked = list(dropwhile(lambda each: each is not ranked[-1] and not has_room(setting, each.blocks), ranked))
    return Found(setting, answer, tuple(ranked), beside, perf_counter() - began, ranked[0] is not first, tuple(told))


def _steadiest_first(ranked: Sequence[Ranked], objective: Objective) -> list[Regret]:
    """Give the regrets of plans, the least first; where devices count, only of the first plans, which have fewest."""
    first = [each for each in ranked if objective != "devices" or each.devices == ranked[0].devices]
    return sorted(regrets(first, objective), key=lambda each: each.mean)


def _order(ranked: Ranked, objective: Objective) -> tuple[float, ...]:
    """Give what plans are sorted by: the objective as they are played, then seconds, the search's figure, devices."""
    figure = {"cost": ranked.cost_per_step, "devices": float(ranked.devices), "step": ranked.step_s}[objective]
    return figure, ranked.step_s, ranked.value, ranked.devices


def problem(setting: Setting, blocks: Blocks, asked: Asked) -> Problem:
    """Give the abstract problem of a setting: what must share a pool, and what must not, besides its options."""
    return _problem(setting, blocks, asked, *pinned(setting, asked))


def _problem(setting: Setting, blocks: Blocks, asked: Asked, together: Pairs, apart: Pairs) -> Problem:
    whole = Problem(
        roles=tuple(role.name for role in setting.roles),
        capacity=tuple(of.count for of in setting.classes),
        options=blocks.options if setting.ratio is None else in_ratio(setting, blocks, setting.ratio),
        tokens=setting.overlapped,
        objective=asked.objective,
        together=(*together, *setting.together),
        apart=apart,
    )
    if asked.objective != "step" or asked.method == "greedy" or setting.ratio or not whole.allows(_everyone(setting)):
        return whole
    # Nothing slower than what a search keeps beside one pool for all needs to be looked at.
    most_s = (1 + WITHIN) * blocks.together_s()
    return replace(whole, options=lambda block: blocks.options(block, most_s))


def _everyone(setting: Setting) -> frozenset[int]:
    return frozenset(range(len(setting.roles)))


def in_ratio(setting: Setting, blocks: Blocks, ratio: tuple[int, int]) -> Callable[[frozenset[int]], Sequence[Option]]:
    """Give the options of blocks that draw but do not train, and of those that train but do not draw, in a ratio.

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


def pinned(setting: Setting, asked: Asked) -> tuple[Pairs, Pairs]:
    """Give the pairs of roles that pins, or a named placement, put on one pool, and those that they keep apart."""
    groups = variant(asked.placement).parts_of(setting.graph) if asked.placement else ()
    pools = dict.fromkeys(asked.pins.values())
    pins = tuple(tuple(role for role, name in asked.pins.items() if name == pool) for pool in pools)
    together, apart = _pairs(setting, groups)
    more_together, more_apart = _pairs(setting, pins)
    return (*together, *more_together), (*apart, *more_apart)


def _pairs(setting: Setting, parts: Parts) -> tuple[Pairs, Pairs]:
    place = {role.name: number for number, role in enumerate(setting.roles)}
    numbered = [here for part in parts if (here := [place[name] for name in part if name in place])]
    together = tuple(frozenset((part[0], other)) for part in numbered for other in part[1:])
    apart = tuple(frozenset((one[0], other[0])) for at, one in enumerate(numbered) for other in numbered[at + 1 :])
    return together, apart


def solved(setting: Setting, blocks: Blocks, parts: Parts, objective: Objective = "step") -> Ranked | None:
    """Give the best plan in which roles share pools just so, of the search's first few played; None if none fits."""
    together, apart = _pairs(setting, parts)
    answer = solve(_problem(setting, blocks, Asked(objective), together, apart), method="auto")
    if answer is None:
        return None
    played = [_ranked(setting, each) for each in (answer.best, *answer.runners_up)[:NAMED_REPLAYED]]
    return min(played, key=lambda each: _order(each, objective))


def _ranked(setting: Setting, choice: Choice) -> Ranked:
    return Ranked(setting, choice.blocks, choice.value)


def _found(setting: Setting, asked: Asked) -> bool:
    """Return whether a quick search finds something that fits."""
    return solve(problem(setting, Blocks(setting), asked), method="greedy") is not None
