"""Plans of placed roles: devices, bytes and seconds, held against the checks, the player and the search."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import fsum

import pytest

from flowgraph.analysis.placed_graph import check_plan
from flowgraph.checks.placed import unsupported_parts
from flowgraph.cluster.plan import Plan
from placements.hardware.device_profiles import domains
from placements.memory.footprint import FITS_SHARE
from placements.search.named_placements import VARIANTS, Parts
from placements.search.plan_builder import RankedPlan, forecast_again
from placements.search.pool_options import PoolOptions, pool_option_of
from placements.search.search import solved
from placements.step.step_forecast import schedule_of
from placements.step.timeline import timeline_of
from placements.time.host_work import host_work_of
from tests.examples.flows.two_agents import two_agents
from tests.flows.ppo_shaped import ppo_shaped
from tests.looped import looped
from tests.unit.placements.small_problems import SHIPPED, Of, called, found_of, graph_of, lagging, problem_of, prompt

CLUSTER = "2x8xh100"
LARGE = {"model": "Qwen/Qwen3-8B", "prompts": 512, "response": "mean=2k,max=8k"}
Case = tuple[Of, str]


@cache
def placed(of: Of, parts: Parts, cluster: str = CLUSTER) -> RankedPlan:
    """Return the best plan of these parts."""
    problem = problem_of(of, cluster)
    found = solved(problem, PoolOptions(problem), parts)
    assert found is not None
    return found


def ranked_of(case: Case) -> RankedPlan:
    """Return a flow's best plan, or the one of a named placement."""
    of, name = case
    if name == "best":
        return found_of(of, CLUSTER).best
    graph = graph_of(of)
    return placed(of, next(each.parts_of(graph) for each in VARIANTS if each.name == name))


CASES: list[Case] = [
    *((of, "best") for of in SHIPPED),
    *((of, "best") for of in (lagging, two_agents, ppo_shaped)),
    *((ppo_shaped, each.name) for each in VARIANTS),
    *(("grpo", each.name) for each in VARIANTS),
    *((lagging, each.name) for each in VARIANTS),
    *(("decoupled_ppo", each.name) for each in VARIANTS),
]


def named(case: Case) -> str:
    """Name a case."""
    of, name = case
    return f"{called(of)}-{name}"


EVERY = looped("case", CASES)


@pytest.mark.slow(group="planner")
@EVERY
def test_a_plan_is_for_its_graph_and_survives_json(case: Case) -> None:
    plan = ranked_of(case).plan()
    check_plan(plan, graph_of(case[0]))
    assert Plan.from_json(plan.to_json()) == plan
    assert unsupported_parts(plan) == []


@EVERY
def test_pools_share_no_device_and_each_layout_fills_its_pool(case: Case) -> None:
    plan = ranked_of(case).plan()
    devices = [place for pool in plan.pools for place in pool.devices]
    assert len(set(devices)) == len(devices)
    pools = {pool.name: pool for pool in plan.pools}
    assert {each.pool for each in plan.placed} == set(pools)
    assert all(each.layout.devices == len(pools[each.pool].devices) for each in plan.placed)


@EVERY
def test_each_tensor_group_lies_in_one_domain(case: Case) -> None:
    """Devices of a pool in order, `tensor` after each other at a time."""
    plan = ranked_of(case).plan()
    numbers, pools = domains(plan.cluster.nodes), {pool.name: pool.devices for pool in plan.pools}
    for each in plan.placed:
        places, tensor = pools[each.pool], each.layout.tensor
        for start in range(0, len(places), tensor):
            assert len({numbers[place] for place in places[start : start + tensor]}) == 1


@pytest.mark.slow(group="planner")
@EVERY
def test_the_period_is_what_the_player_comes_to(case: Case) -> None:
    step = ranked_of(case).step
    simulated = timeline_of(schedule_of(step.tasks, step.waits), steps=24)
    assert step.period_s == pytest.approx(simulated.period_s)


@pytest.mark.slow(group="planner")
@EVERY
def test_no_pool_holds_more_than_may_be_filled_nor_than_the_search_counted(case: Case) -> None:
    ranked = ranked_of(case)
    plan = ranked.plan()
    counted = [pool_option_of(option).peak_bytes for _, option in ranked.blocks]
    for pool, forecast, most in zip(plan.pools, plan.forecast, counted, strict=True):
        assert forecast.worst is not None
        device = plan.cluster.device(*pool.devices[0])
        assert device is not None
        assert forecast.worst.memory_bytes <= FITS_SHARE * device.memory_bytes
        assert forecast.worst.memory_bytes <= most


@EVERY
def test_each_role_has_a_peak_in_each_phase_that_it_works_in(case: Case) -> None:
    ranked = ranked_of(case)
    told = {(peak.phase, peak.role) for each in ranked.plan().forecast for peak in each.peaks}
    assert told >= {(load.phase, load.role.name) for load in ranked.problem.loads}


@EVERY
def test_tasks_take_what_the_search_counted_on_each_pool_in_each_stage(case: Case) -> None:
    """What sleeps and wakes is a task by itself, and sharing a pool does not slow what is moved."""
    ranked = ranked_of(case)
    problem, stage_of = ranked.problem, {load.node: load.stage for load in ranked.problem.loads}
    tasks = [each for each in ranked.step.tasks if each.name in stage_of and each.kind != "host"]
    for number, (block, option) in enumerate(ranked.blocks):
        pool, pooled = "all" if len(ranked.blocks) == 1 else f"pool{number}", pool_option_of(option)
        shared = any(problem.roles[place].use == "sample" for place in block)
        counted = list(pooled.stages_s[:-1])
        for place, chosen in zip(sorted(block), pooled.roles, strict=True):
            role = problem.roles[place]
            slowed = problem.host.slowed_share if shared and role.use == "train" else 1.0
            last = problem.loads_of(role)[-1].stage
            counted[last] -= chosen.moved_s * (slowed if chosen.running.sleeps else slowed - 1)
        for stage in range(problem.stages):
            own = [t.seconds or 0.0 for t in tasks if t.pools == (pool,) and stage_of[t.name] == stage]
            assert fsum(own) == pytest.approx(counted[stage])


@looped("name", SHIPPED)
def test_on_one_pool_a_step_is_no_less_than_the_sum_of_its_tasks_on_the_pool(name: str) -> None:
    """Only what the host does may go on beside the models; between steps the driver takes a share of a step more."""
    problem = problem_of(name, CLUSTER)
    step = placed(name, (tuple(role.name for role in problem.roles),)).step
    assert step.period_s is not None
    own_s, all_s = (
        (1 + problem.host.driver_share) * fsum(each.seconds or 0.0 for each in step.tasks if of_pool <= {*each.pools})
        for of_pool in ({"all"}, set[str]())
    )
    assert own_s * (1 - 1e-9) <= step.period_s <= all_s * (1 + 1e-9)
    assert {*step.cycle} <= {each.name for each in step.tasks}


def test_host_work_is_beside_the_models_and_in_the_way_of_a_step() -> None:
    """Draw: read prompts → generate → score and advantages on the host, ref.logprobs on the pool → update."""
    ranked = placed("grpo", ALL)
    seconds = {each.name: each.seconds or 0.0 for each in ranked.step.tasks}
    host, work = ranked.problem.host, host_work_of(ranked.problem)
    nodes = [work.node_seconds(name, host).total_s or 0.0 for name in ("score", "group_normalize")]
    assert seconds["score, group_normalize"] == pytest.approx(host.call_s + fsum(nodes))
    assert seconds["read prompts"] == host.call_s
    assert "score, group_normalize" in ranked.step.cycle


ALL = (("policy.train", "policy.sample", "ref.infer"),)
SPLIT = (("policy.train", "ref.infer"), ("policy.sample",))


def period_s(of: Of, parts: Parts, staleness: int | None = None) -> float:
    """Return the seconds from one step of an 8B model to the next."""
    problem = replace(problem_of(of, CLUSTER, **LARGE), staleness=staleness)
    found = solved(problem, PoolOptions(problem), parts)
    assert found is not None
    return found.step_s


def test_a_staleness_of_one_shortens_the_step_of_split_pools_and_not_that_of_one() -> None:
    """Draw: policy.train, ref | policy.sample, each on a machine: the next batch is drawn while this one trains.

    On one pool models take turns however old weights may be: steps overlap only where sampling has a pool of its own.
    There the split is better than one pool; without overlap it is worse, even if the flow would let weights lag.
    """
    assert period_s(prompt, ALL, 1) == period_s(prompt, ALL)
    assert period_s(prompt, SPLIT, 1) < 0.9 * period_s(prompt, SPLIT)
    assert period_s(prompt, SPLIT, 1) < period_s(prompt, ALL, 1)
    assert period_s(prompt, ALL) < period_s(prompt, SPLIT)
    assert period_s(lagging, SPLIT) == period_s(prompt, SPLIT)


@pytest.mark.parametrize(("changed", "lag"), [({}, 0), ({"staleness": 1}, 1), ({"sync_lag": 1}, 1)], ids=str)
def test_what_lags_says_so_in_the_plan(changed: dict[str, int], lag: int) -> None:
    problem = replace(problem_of(lagging, CLUSTER), **changed)
    found = solved(problem, PoolOptions(problem), SPLIT)
    assert found is not None
    lags = {each.role: each.lag for each in found.plan().placed}
    assert lags == {"policy.train": 0, "policy.sample": lag, "ref.infer": 0}


def test_a_sync_between_pools_occupies_both_and_one_within_a_pool_only_that() -> None:
    (apart,) = (each for each in placed("grpo", SPLIT).step.tasks if each.kind == "sync")
    (within,) = (each for each in placed("grpo", ALL).step.tasks if each.kind == "sync")
    assert (apart.pools, within.pools) == (("pool0", "pool1"), ("all",))
    assert (apart.name, within.name) == ("sync policy to pool1/sglang", "sync policy to all/sglang")


def test_training_beside_drawing_is_slowed_and_says_by_how_much() -> None:
    tasks = {each.name: each.parts for each in placed("grpo", ALL).step.tasks}
    assert "sharing" in tasks["policy.update"]
    assert "sharing" not in tasks["ref.logprobs"]
    alone = {each.name: each.parts for each in placed("grpo", SPLIT).step.tasks}
    assert "sharing" not in alone["policy.update"]


def test_pools_are_named_as_their_roles_are_pinned() -> None:
    """Draw: train, ref | sample. One is named by a pin, the other gets the first name that is free."""
    found = placed("grpo", SPLIT)
    for pins, names in (
        ({}, ["pool0", "pool1"]),
        ({"ref.infer": "learns"}, ["learns", "pool0"]),
        ({"policy.sample": "pool0"}, ["pool1", "pool0"]),
        ({"policy.sample": "draws", "policy.train": "learns"}, ["learns", "draws"]),
    ):
        plan = found.plan(pins=pins)
        assert [pool.name for pool in plan.pools] == names
        assert [each.pool for each in plan.placed] == [names[0], names[1], names[0]]
        assert plan.step is not None and plan.step.period_s == found.step_s


@pytest.mark.parametrize("name", ["best", "standalone:each-role"])
def test_a_plan_is_forecast_again_as_it_was_and_keeps_what_is_no_forecast(name: str) -> None:
    ranked = ranked_of(("grpo", name))
    plan = ranked.plan()
    assert forecast_again(ranked.problem, plan) == plan
    (node, *_), swapped = plan.cluster.nodes, tuple(reversed(plan.pools))
    moved = plan.model_copy(update={"pools": swapped, "step": None, "forecast": ()})
    again = forecast_again(ranked.problem, moved)
    assert again.pools == swapped and again.step == plan.step
    assert set(again.forecast) == set(plan.forecast) and node == again.cluster.nodes[0]


def test_pools_are_named_in_the_order_of_their_first_role() -> None:
    plan = placed(
        ppo_shaped,
        next(each for each in VARIANTS if each.name == "standalone:each-role").parts_of(graph_of(ppo_shaped)),
    ).plan()
    assert [pool.name for pool in plan.pools] == [f"pool{place}" for place in range(5)]
    assert [each.pool for each in plan.placed] == [f"pool{place}" for place in range(5)]


def test_a_step_of_unknown_seconds_has_the_bound_of_its_seconds_and_not_that_of_its_value() -> None:
    ranked = replace(found_of("gpg", "1x8xh100").best, bound=1e9)
    links = ranked.homes[0].group.links
    unknown = replace(ranked.homes[0].group, links=replace(links, device=replace(links.device, peak_flops={})))
    homes = [replace(home, group=unknown) if home.role.use == "sample" else home for home in ranked.homes]
    vars(ranked)["homes"] = homes
    assert ranked.step.period_s is None
    assert ranked.step_s == ranked.bound_s < 1e9
