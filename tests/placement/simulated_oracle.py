"""Plans simulated one by one: every way to place and run the roles of a problem, or many of them drawn at random.

The search keeps a few ways of each block of roles, bounds choices and simulates the promising ones. Here each block has
every combination of its roles' ways that fits, and each plan is simulated. `random_problem` makes some of each kind.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf

from flowgraph.app import make_request
from flowgraph.app.planning.problem import prepare
from flowgraph.errors import ResourceError
from placements.search.plan_builder import RankedPlan, has_room
from placements.search.pool_options import PoolOptions, pool_option_of
from placements.search.search import SearchResult, find
from placements.solver.problem import Block, Option
from placements.workload.planning_problem import PlanningProblem
from tests.placement.search_oracles import partitions

FLOWS = ("grpo", "gpg", "ppo", "dapo", "reinforce_pp", "rloo", "gspo")
LAGGED = ("decoupled_ppo",)  # flows whose rollouts may lag
MODELS = ("Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-8B", "Qwen/Qwen3-14B", "Qwen/Qwen3-30B-A3B")
CLUSTERS = ("1x2xh100", "1x4xh100", "1x8xh100", "2x4xh100", "1x8xa100-40g", "1x8xh20", "1x4xl40s", "2x2xh200")
TIGHT = ("1x4xh100-40GiB", "1x8xh100-32GiB", "1x8xh100-56GiB", "2x4xa100-60GiB")
MIXED = ("1x4xh100,1x4xa100", "1x2xh100,1x2xa100,1x2xl40s", "1x4xh200,1x2xh20,1x2xh100")
TIED = 0.001  # share of a step below which the search does not look for a better plan, nor promises that there is none


def random_problem(seed: int) -> PlanningProblem:
    """Return a problem: a flow, models, lengths and a batch on devices that are roomy, tight, or of two or three kinds.

    Some models are trained by LoRA, some have experts, some rollouts may lag.
    """
    rng = random.Random(seed)
    lags = rng.random() < 0.2
    model = rng.choice(MODELS) + rng.choice(("", "", "", "+lora=16"))
    mean = rng.choice((128, 512, 2048))
    flow, batch = rng.choice(LAGGED if lags else FLOWS), rng.choice((16, 64, 256))
    cluster = rng.choice(rng.choice((CLUSTERS, TIGHT, MIXED)))
    prompt_tokens, response_tokens = rng.choice((128, 512, 1024)), f"mean={mean},max={mean * rng.choice((1, 2, 4))}"
    posed = prepare(
        make_request(
            flow=flow,
            model=model,
            batch=batch,
            cluster=cluster,
            prompt_tokens=prompt_tokens,
            response_tokens=response_tokens,
        )
    )
    return posed.having(staleness=rng.choice((1, 2))).problem if lags and rng.random() < 0.7 else posed.problem


@dataclass(frozen=True)
class Judged:
    """What was seen of one problem: plans simulated, the best of them, and what the search said of it.

    `faults` are sentences: a plan below the printed bound, a false refusal, a named placement that is not at its best.
    """

    seed: int
    simulated: int
    whole: bool
    best_s: float
    answer: SearchResult | None
    faults: tuple[str, ...]


class EveryOption(PoolOptions):
    """The options of pools, not only those that a search is offered."""

    def all_options(self, block: frozenset[int]) -> list[Option]:
        """Return every way to run a block on any pool that fits: each option of a role with each of the others."""
        places, options, shared = tuple(sorted(block)), list[Option](), self._generates(block)
        for devices, group in self.groups:
            role_options = [self.role_options(place, group).undominated for place in places]
            if all(role_options):
                combined = self._empty(group)
                for place in places:
                    combined = combined.with_one_more(self._combined_role(place, group, shared, fastest=False))
                pool_options = self._pool_options(block, group, self._fitting(combined, group), role_options)
                options += [self._option(devices, places, option) for option in pool_options]
        return options


class Plans:
    """Every plan of a problem, in all parts or in given ones."""

    def __init__(self, problem: PlanningProblem) -> None:
        self.problem, self.blocks = problem, EveryOption(problem)
        self.capacity = tuple(of.count for of in problem.classes)
        self._options = dict[Block, list[Option]]()

    def options(self, block: Block) -> list[Option]:
        """Return every way to run a block of roles, on any device group."""
        if block not in self._options:
            self._options[block] = self.blocks.all_options(block)
        return self._options[block]

    def parts(self) -> Iterator[tuple[Block, ...]]:
        """List the ways to cut the roles into pools that the problem allows."""
        for blocks in partitions(range(len(self.problem.roles))):
            if all(any(pair <= block for block in blocks) for pair in self.problem.together):
                yield tuple(blocks)

    def count(self, parts: Sequence[Block]) -> int:
        """Count the combinations of ways of these pools, those that are too large for the cluster with them."""
        number = 1
        for block in parts:
            number *= len(self.options(block))
        return number

    def every(self, parts: Sequence[Block]) -> Iterator[tuple[Option, ...]]:
        """List every plan of these pools that the cluster is large enough for."""
        for options in product(*map(self.options, parts)):
            if self.fits(options):
                yield options

    def fits(self, options: Sequence[Option]) -> bool:
        """Return whether the cluster has as many devices of each class."""
        taken = (sum(column) for column in zip(*(each.devices for each in options), strict=True))
        return all(devices <= there for devices, there in zip(taken, self.capacity, strict=True))

    def any(self, parts: Sequence[Block], rng: random.Random) -> tuple[Option, ...] | None:
        """Return a plan of these pools at random, None if it is too large or there is none."""
        if not all(map(self.options, parts)):
            return None
        options = tuple(rng.choice(self.options(block)) for block in parts)
        return options if self.fits(options) else None

    def simulated(self, parts: Sequence[Block], options: Sequence[Option]) -> RankedPlan:
        """Return a plan as it is simulated."""
        return RankedPlan(self.problem, tuple(zip(parts, options, strict=True)), 0.0, 0.0)


def judge(seed: int, most: int = 2_000) -> Judged:
    """Simulate every plan of a random problem, or about `most` of them, and compare the best with what the search says.

    Where there are more plans, some are drawn at random, and from the best of them others that differ in one pool.
    """
    problem, rng = random_problem(seed), random.Random(seed)
    plans = Plans(problem)
    try:
        answer = find(problem)
    except ResourceError:
        answer = None
    whole, number, best = True, 0, dict[frozenset[Block], RankedPlan]()
    parts = list(plans.parts())
    for each in parts:
        if plans.count(each) <= most // 4:
            simulated = [plans.simulated(each, options) for options in plans.every(each)]
        else:
            whole, simulated = False, list(_walked(plans, each, rng, max(50, most // len(parts))))
        number += len(simulated)
        placed = next((one for one in sorted(simulated, key=_step_s) if has_room(problem, one.blocks)), None)
        best |= {frozenset(each): placed} if placed else {}
    first = min(best.values(), key=_step_s, default=None)
    faults = (*_faults(answer, first), *_named_faults(plans, answer, best))
    return Judged(seed, number, whole, first.step_s if first else inf, answer, faults)


def _step_s(plan: RankedPlan) -> float:
    return plan.step_s


def _walked(plans: Plans, parts: Sequence[Block], rng: random.Random, most: int) -> Iterator[RankedPlan]:
    """Simulate plans drawn at random, then, from the best of them, those that differ in one pool's way."""
    drawn = [plans.any(parts, rng) for _ in range(most)]
    simulated = [plans.simulated(parts, options) for options in drawn if options]
    yield from simulated
    at = min(simulated, key=lambda one: one.step_s, default=None)
    while at is not None:
        now = [option for _, option in at.blocks]
        place = rng.randrange(len(parts))
        others = rng.sample(own := plans.options(parts[place]), min(40, len(own)))
        near = [(*now[:place], other, *now[place + 1 :]) for other in others]
        tried = [plans.simulated(parts, options) for options in near if plans.fits(options)]
        yield from tried
        better = min(tried, key=lambda one: one.step_s, default=None)
        at = better if better is not None and better.step_s < at.step_s * (1 - TIED) else None


def _named_faults(
    plans: Plans, answer: SearchResult | None, best: Mapping[frozenset[Block], RankedPlan]
) -> Iterator[str]:
    """Yield which named placements are not given at their best: what is as good but for what is negligible is."""
    place = {role.name: number for number, role in enumerate(plans.problem.roles)}
    for variant, given in answer.named if answer else ():
        parts = frozenset(frozenset(place[name] for name in part) for part in variant.parts_of(plans.problem.graph))
        other = best.get(parts)
        if other is not None and given is None:
            yield f"{variant.name} is said not to fit, and {_text(other)} does"
        elif other is not None and given is not None and other.step_s < given.step_s * (1 - TIED):
            yield f"{variant.name}: {_text(other)} is better than {_text(given)}"


def _faults(answer: SearchResult | None, best: RankedPlan | None) -> Iterator[str]:
    if answer is None:
        if best is not None:
            yield f"refused, and {_text(best)} fits"
        return
    if best is not None and answer.bound is not None and best.step_s < answer.bound * (1 - TIED):
        yield f"{_text(best)} takes less than the bound {answer.bound:.4g} s; answer {_text(answer.best)}"
    if best is not None and answer.bound is None and best.step_s < answer.best.step_s * (1 - TIED):
        yield f"{_text(best)} is better, and no bound is known; answer {_text(answer.best)}"


def _text(plan: RankedPlan) -> str:
    pools = list[str]()
    for names, (_, option) in zip(plan.parts(), plan.blocks, strict=True):
        layouts = [str(role.layout) for role in pool_option_of(option).roles]
        pools.append(f"{'+'.join(names)} on {option.devices} {layouts}")
    return f"{plan.step_s:.5g} s: {' | '.join(pools)}"
