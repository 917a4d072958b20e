"""The bound of the search: where all pools wait for each other, and that no plan is simulated in less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from placements.search.plan_builder import RankedPlan, has_room
from placements.search.plan_request import PlanRequest
from placements.search.pool_options import PoolOptions
from placements.search.search import SearchResult, assignment_problem, find, value_of
from placements.solver.problem import Assignment, Objective, Option, assignment_of
from placements.step.barriers import StepBarriers, barriers_of
from placements.time.host_work import host_work_of
from placements.workload.planning_problem import PlanningProblem
from tests.examples.flows.two_agents import two_agents
from tests.flows.ppo_shaped import ppo_shaped
from tests.looped import looped
from tests.placement.search_oracles import partitions
from tests.unit.placements.small_problems import SHIPPED, Of, called, lagging, problem_of

CLUSTERS = ("1x2xh100", "1x8xh100", "2x8xh100", "1x2xh100,1x4xa100", "1x1xcpu-400GiB", "1x4xcpu-400GiB")
FLOWS: tuple[Of, ...] = (*SHIPPED, lagging, two_agents, ppo_shaped)
STALENESS = (None, 1, 2)
ROUNDING = 1 + 1e-9


def barriers(of: Of, staleness: int | None = None) -> StepBarriers:
    """Return the barriers of a flow's step on eight devices."""
    return barriers_of(replace(problem_of(of), staleness=staleness))


# ------------------------------------------------------------------------------------------- spans


def test_a_chain_of_stages_has_a_barrier_after_the_sync_and_after_each() -> None:
    """Draw: sync → generate → ref.logprobs, beside scores on the host → update."""
    found = barriers("grpo")
    assert (found.spans, found.of_stage, found.syncs) == (4, (1, 2, 3), ("policy.sample",))
    problem = problem_of("grpo")
    scored_s = [
        host_work_of(problem).node_seconds(name, problem.host).total_s or 0.0 for name in ("score", "group_normalize")
    ]
    assert found.host_s == pytest.approx((0.0, 0.0, sum(scored_s), 0.0))
    assert (found.tokens, found.synced, found.share) == (1, 1.0, 1 + problem.host.driver_share)


def test_work_of_the_host_between_two_stages_is_a_span_of_its_own() -> None:
    """Draw: sync → generate → scores on the host → update: no model works while the host does."""
    found = barriers("gpg")
    assert (found.spans, found.of_stage) == (4, (1, 3))
    assert found.host_s[2] > 0


def test_a_step_without_sampling_is_one_span() -> None:
    assert barriers("sft") == StepBarriers((0.0,), (0,), {}, (), 1.0, 1, 1 + problem_of("sft").host.driver_share)


def test_what_some_role_need_not_wait_for_is_no_barrier() -> None:
    """Draw: solver.generate → editor.generate → editor.update; solver.update waits for its own drafts alone."""
    assert barriers(two_agents).of_stage == (0, 0, 0)


@pytest.mark.parametrize(("staleness", "synced"), [(1, 1.0), (2, 0.5), (4, 0.25)])
def test_where_steps_overlap_as_many_share_the_circle_and_only_its_loads_are_in_spans(
    staleness: int, synced: float
) -> None:
    """Draw: sync → generate → ref.logprobs, critic_values → policy.update; critic.update is beside the circle."""
    found = barriers("ppo", staleness)
    roles = [role.name for role in problem_of("ppo").roles]
    assert found.outside == {roles.index("critic.train"): (2,)}
    assert (found.of_stage, found.host_s) == ((1, 2, 3), (0.0,) * 4)
    assert (found.tokens, found.synced, found.share) == (staleness + 1, synced, 1.0)
    assert found.spans_s(roles.index("critic.train"), (5.0, 7.0, 9.0)) == [0.0, 5.0, 7.0, 0.0]
    assert found.spans_s(roles.index("policy.train"), (5.0, 7.0, 9.0)) == [0.0, 5.0, 7.0, 9.0]


# ---------------------------------------------------------------------------------------- never above what is simulated


@cache
def found_of(of: Of, cluster: str, staleness: int | None, objective: Objective = "step") -> SearchResult:
    """Return what is found for a problem."""
    return find(replace(problem_of(of, cluster), staleness=staleness), PlanRequest(objective=objective))


WAYS = list(product(CLUSTERS[1:], STALENESS))
# Each flow in one of the ways for each change, in the others in `make slow`.
FOR_EACH_CHANGE = [(flow, *WAYS[i % len(WAYS)]) for i, flow in enumerate(SHIPPED)]
OTHERS = [(flow, *way) for flow, way in product(SHIPPED, WAYS) if (flow, *way) not in FOR_EACH_CHANGE]


@looped("flow, cluster, staleness", FOR_EACH_CHANGE, slow=OTHERS)
def test_no_plan_of_a_shipped_flow_is_played_in_less_than_its_bound(
    flow: str, cluster: str, staleness: int | None
) -> None:
    found = found_of(flow, cluster, staleness)
    named = [each for _, each in found.named if each is not None]
    for each in (*found.ranked, *named):
        assert each.bound <= each.step_s * ROUNDING, (flow, each.parts())
    assert found.bound is not None and found.gap is not None
    assert found.bound <= min(each.step_s for each in found.ranked) * ROUNDING, flow
    assert found.proven == (found.gap == 0.0)


@cache
def blocks_of(of: Of, cluster: str, staleness: int | None, streamed: bool = False) -> PoolOptions:
    """Return the ways to run blocks of a problem."""
    return PoolOptions(replace(problem_of(of, cluster), staleness=staleness, streamed=streamed))


@given(st.data(), st.sampled_from(FLOWS), st.sampled_from(CLUSTERS), st.sampled_from(STALENESS), st.booleans())
def test_no_choice_at_all_is_played_in_less_than_its_bound(
    data: st.DataObject, of: Of, cluster: str, staleness: int | None, streamed: bool
) -> None:
    """Any cut of the roles into pools, with any option of each: not only those that a search comes to."""
    blocks = blocks_of(of, cluster, staleness, streamed)
    problem = blocks.problem
    pools = [data.draw(st.integers(0, 2)) for _ in problem.roles]
    cut = [frozenset(place for place, of_pool in enumerate(pools) if of_pool == pool) for pool in sorted({*pools})]
    options = [blocks.options(block) for block in cut]
    assume(all(options))
    picked = [(block, data.draw(st.sampled_from(own))) for block, own in zip(cut, options, strict=True)]
    assume(_within(problem, [option for _, option in picked]))
    assume(has_room(problem, picked))
    choice = assignment_of(assignment_problem(problem, blocks, PlanRequest()), picked)
    simulated = RankedPlan(problem, choice.blocks, choice.value, choice.step_s)
    assert simulated.step.period_s is not None
    assert choice.step_s <= simulated.step_s * ROUNDING


def _within(problem: PlanningProblem, taken: Sequence[Option]) -> bool:
    return all(sum(option.devices[place] for option in taken) <= of.count for place, of in enumerate(problem.classes))


# ------------------------------------------------------------------------------------------- against every choice


@cache
def all_played(of: Of, cluster: str, staleness: int | None) -> tuple[RankedPlan, ...]:
    """Play every cut into blocks with every option of each that the devices have room for."""
    blocks = blocks_of(of, cluster, staleness)
    problem, posed = blocks.problem, assignment_problem(blocks.problem, blocks, PlanRequest())
    found = list[Assignment]()
    for cut in partitions(range(len(problem.roles))):
        if all(posed.allows(block) for block in cut):
            for taken in product(*(blocks.options(block) for block in cut)):
                if _within(problem, taken):
                    found.append(assignment_of(posed, zip(cut, taken, strict=True)))
    return tuple(
        RankedPlan(problem, each.blocks, each.value, each.step_s) for each in found if has_room(problem, each.blocks)
    )


SMALL: list[tuple[Of, str, int | None]] = [
    ("grpo", "1x2xh100", None),
    ("grpo", "1x4xh100", None),
    ("grpo", "1x2xh100", 1),
    ("gpg", "1x4xh100", None),
    ("gpg", "1x2xh100,1x2xa100", 1),
    ("gpg", "1x4xcpu-400GiB", None),
    ("sft", "1x4xh100", None),
    (lagging, "1x4xh100", 2),
    (two_agents, "1x2xh100", None),
    (two_agents, "1x2xh100", 1),
]


def named(case: tuple[Of, str, int | None]) -> str:
    """Name a case."""
    return f"{called(case[0])}-{case[1]}-{case[2]}"


@pytest.mark.slow(group="planner")
@looped("objective", ["step", "devices"])
@looped("case", SMALL)
def test_a_plan_that_is_called_best_is_the_best_of_all(case: tuple[Of, str, int | None], objective: Objective) -> None:
    """The least of all, simulated one by one; of devices the fewest, and on as few the least seconds."""
    found, every = found_of(*case, objective), all_played(*case)
    least = min(every, key=lambda each: (value_of(each, objective), each.step_s))
    assert found.bound is not None
    assert found.bound <= value_of(least, objective) * ROUNDING
    assert value_of(found.best, objective) >= value_of(least, objective) / ROUNDING
    if found.proven:
        assert value_of(found.best, objective) == pytest.approx(value_of(least, objective), rel=1e-9)
        assert found.best.step_s == pytest.approx(least.step_s, rel=1e-9)


def test_most_of_the_small_problems_are_proven() -> None:
    """Else the test above would compare nothing."""
    proven: Mapping[str, bool] = {named(case): found_of(*case).proven for case in SMALL}
    assert sum(proven.values()) >= len(SMALL) // 2, proven
