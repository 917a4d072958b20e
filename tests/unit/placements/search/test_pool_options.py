"""Roles that share a pool: their seconds and bytes together, what fits, and what the search is offered of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, combinations
from math import fsum

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.flows.seven_rewards import seven_rewards
from flowgraph.cluster.plan import Layout, RoleSettings
from placements.hardware.engine_constants import host_constants
from placements.memory.footprint import fits, room_bytes
from placements.search.dominance import (
    CARRIED_AT_MOST,
    FIRST,
    HOST,
    MINIMISED,
    OVER,
    REST,
    SECOND,
    SYNC_BYTES,
    CombinedOptions,
    undominated,
)
from placements.search.pool_options import PoolOptions, pool_option_of, sync_s
from placements.search.role_options import RoleOption, RoleOptions
from placements.search.search import find
from placements.solver.problem import Option
from placements.step.role_costs import DeviceGroup
from placements.step.role_placements import RolePlacement
from placements.step.step_forecast import work_of
from placements.time.transitions import tensors
from placements.workload.lengths import LengthDistribution
from placements.workload.planning_problem import PlanningProblem
from tests.looped import looped
from tests.unit.placements.small_problems import cluster_of, graph_of, group_of, problem_of, shapes_of


def place_of(problem: PlanningProblem, name: str) -> int:
    """Return the place of a role among the problem's roles."""
    return next(place for place, role in enumerate(problem.roles) if role.name == name)


def block_of(problem: PlanningProblem, *names: str) -> frozenset[int]:
    """Return roles as a block."""
    return frozenset(place_of(problem, name) for name in names)


CHOICES = st.lists(
    st.builds(
        lambda engine, seconds, moved, rest, over, host, wakes: RoleOption(
            engine, Layout(), RoleSettings(), seconds, rest, rest + over, host, wakes, rest // 2, moved
        ),
        st.sampled_from(["fsdp", "sglang"]),
        st.tuples(st.floats(0, 100), st.floats(0, 100)),
        st.floats(0, 100),
        *[st.integers(0, 10**10)] * 4,
    ),
    max_size=5,
)


LEVELS = st.integers(0, 1)


def tied(
    seconds: tuple[float, ...] = (1.0, 1.0),
    rest: int = 0,
    over: int = 0,
    host: int = 0,
    wakes: int = 0,
    ready: float = 0.0,
) -> RoleOption:
    """Return an option of few different numbers, so that many are equal."""
    return RoleOption("fsdp", Layout(), RoleSettings(), seconds, rest, rest + over, host, wakes, ready_s=ready)


TIED = st.lists(
    st.builds(tied, st.tuples(LEVELS.map(float), LEVELS.map(float)), *[LEVELS] * 4, LEVELS.map(float)),
    min_size=1,
    max_size=12,
)


@given(TIED)
@example([tied(over=1, wakes=1), tied(wakes=1)])
@example([tied(ready=1.0), tied()])
def test_of_ways_with_ties_those_stay_that_no_other_dominates(options: list[RoleOption]) -> None:
    front = undominated(options)
    assert not any(one.dominates(two) for one in front for two in front if one is not two)
    assert all(any(one.dominates(option) for one in front) for option in options)
    ways = CombinedOptions.of(options, 1, 1.0)
    kept = ways.undominated()
    numbers = np.concatenate([kept.stages_s, kept.memory[:MINIMISED]]).T
    assert not any((a <= b).all() for i, a in enumerate(numbers) for j, b in enumerate(numbers) if i != j)


BITS = {"fsdp": 1, "sglang": 2}


def sat(found: Iterable[RoleOption], slowed: float = 1.0) -> CombinedOptions:
    """Let roles join one after another, each in the one way that it has."""
    sitting = CombinedOptions.nothing(2)
    for each in found:
        sitting = sitting.with_one_more(CombinedOptions.of((each,), BITS[each.engine], slowed))
    return sitting


@given(CHOICES, st.floats(1, 2))
def test_roles_take_turns_and_hold_what_they_hold_at_rest_side_by_side(found: list[RoleOption], slowed: float) -> None:
    """Seconds add up, and so does what lies there, but for the context of a process, which roles of an engine share.

    What is slowed is work, not copies.

    One works at a time, so of what work adds the most counts; but one wakes before another is put away, so that two
    that sleep may both be there, with the buckets that weights are synced through.
    """
    sitting = sat(found, slowed)
    assert sitting.picks.tolist() == [[0]] * len(found)
    for stage in range(2):
        copied_s = fsum(each.moved_s for each in found if each.last_stage == stage)
        told_s = slowed * fsum(each.stages_s[stage] for each in found) - (slowed - 1) * copied_s
        assert sitting.stages_s[stage, 0] == pytest.approx(told_s, abs=1e-9)
    contexts = [
        each.context_bytes for place, each in enumerate(found) if each.engine in [o.engine for o in found[:place]]
    ]
    rest = sum(each.rest_bytes for each in found) - sum(contexts)
    both = sum(sorted(each.wakes_bytes for each in found)[-2:]) + SYNC_BYTES * (len(found) > 1)
    assert sitting.memory[REST].tolist() == [rest]
    assert sitting.peak.tolist() == [rest + max([both, *(each.over_bytes for each in found)])]
    assert sitting.memory[HOST].tolist() == [sum(each.host_bytes for each in found)]


@given(CHOICES)
def test_the_order_in_which_roles_join_changes_no_second_and_no_byte_at_work(found: list[RoleOption]) -> None:
    one, other = sat(found), sat(reversed(found))
    for row in (OVER, FIRST, SECOND, HOST):
        assert one.memory[row].tolist() == other.memory[row].tolist()
    assert one.stages_s.T.tolist()[0] == pytest.approx(other.stages_s.T.tolist()[0])


@given(CHOICES, CHOICES)
def test_ways_that_are_folded_at_once_are_those_folded_one_by_one(
    first: list[RoleOption], second: list[RoleOption]
) -> None:
    if not first or not second:
        return
    every = CombinedOptions.of(first, 1, 1.0).with_one_more(CombinedOptions.of(second, 2, 1.0))
    alone = [
        CombinedOptions.of((a,), 1, 1.0).with_one_more(CombinedOptions.of((b,), 2, 1.0)).peak.tolist()[0]
        for a in first
        for b in second
    ]
    assert every.peak.tolist() == alone


@given(CHOICES)
def test_what_is_carried_on_is_beaten_by_nothing_and_beats_all_that_is_left(found: list[RoleOption]) -> None:
    if not found:
        return
    every = CombinedOptions.of(found, 1, 1.0)
    told = [(*each.stages_s, each.rest_bytes, each.over_bytes, each.wakes_bytes, each.host_bytes) for each in found]
    [kept] = every.undominated().picks.tolist()
    for place, one in enumerate(told):
        beaten = any(all(a <= b for a, b in zip(told[other], one, strict=True)) for other in kept if other != place)
        assert beaten or place in kept


BLOCKS = list(chain.from_iterable(combinations(range(4), size) for size in range(1, 5)))


@looped("roles", BLOCKS)
def test_a_sitting_is_the_sum_of_its_choices_and_fits(roles: tuple[int, ...]) -> None:
    """Training beside drawing is slowed, but for its copies; last come syncs, and what makes an engine ready for them.

    A sync is on the pool that trains, the one that draws, or both.
    """
    problem, group = problem_of("ppo"), group_of("1x8xh100", 8)
    draws = any(problem.roles[place].use == "sample" for place in roles)
    names = {problem.roles[place].name for place in roles}
    sync = sync_s(problem, group, "policy.train" in names, "policy.sample" in names, "policy.sample")
    found = PoolOptions(problem).pool_options(frozenset(roles), group)
    assert found
    for each in found:
        assert len(each.roles) == len(roles)
        slowed = [
            host_constants().slowed_share if draws and problem.roles[place].use == "train" else 1.0 for place in roles
        ]
        for stage in range(problem.stages + 1):
            told = fsum(
                share * one.stages_s[stage] - (share - 1) * one.moved_s * (stage == one.last_stage)
                for share, one in zip(slowed, each.roles, strict=True)
            )
            last_s = sync + fsum(one.ready_s for one in each.roles)
            assert each.stages_s[stage] == pytest.approx(told + (last_s if stage == problem.stages else 0.0))
        assert fits(each.peak_bytes, group.of.memory_bytes)
        assert each.host_bytes * group.of.node_devices <= group.of.host_memory_bytes


@looped("roles", [block for block in BLOCKS if len(block) > 1])
@looped("devices", [1, 8])
def test_a_role_more_never_makes_a_pool_faster(roles: tuple[int, ...], devices: int) -> None:
    """Syncs aside, which are shorter where one pool both trains and draws."""
    problem, group = problem_of("ppo"), group_of("1x8xh100", devices)
    blocks = PoolOptions(problem)

    def fastest(block: frozenset[int]) -> float:
        return min((sum(each.stages_s[:-1]) for each in blocks.pool_options(block, group)), default=float("inf"))

    for gone in roles:
        assert fastest(frozenset(roles)) >= fastest(frozenset(roles) - {gone})


@looped("roles", BLOCKS)
def test_no_sitting_that_is_offered_is_slower_in_every_stage_than_another(roles: tuple[int, ...]) -> None:
    problem = problem_of("ppo")
    told = [each.stages_s for each in PoolOptions(problem).pool_options(frozenset(roles), group_of("1x8xh100", 8))]
    for place, one in enumerate(told):
        for other in told[place + 1 :]:
            assert any(a < b for a, b in zip(one, other, strict=True))
            assert any(b < a for a, b in zip(one, other, strict=True))


def test_options_name_the_devices_of_one_class_the_price_and_what_they_are_made_of() -> None:
    """Two classes: 8 H100 and 16 A100. Each option takes devices of one, in a size that pools have."""
    cluster = cluster_of("1x8xh100,2x8xa100")
    priced = cluster.model_copy(
        update={"nodes": tuple(each.model_copy(update={"price_per_hour": 36.0}) for each in cluster.nodes)}
    )
    problem = replace(problem_of("grpo"), cluster=priced)
    blocks = PoolOptions(problem)
    found = blocks.options(block_of(problem, "policy.train", "ref.infer"))
    assert {each.devices for each in found} == {
        (1, 0), (2, 0), (4, 0), (8, 0), (0, 1), (0, 2), (0, 4), (0, 8), (0, 16),
    }  # fmt: skip
    for each in found:
        pooled = pool_option_of(each)
        assert pooled.group.devices == sum(each.devices)
        assert pooled.group.of.model.startswith("h100" if each.devices[0] else "a100")
        assert len(each.spans_s) == blocks.barriers.spans
        most_s = sum(pooled.stages_s) + sum(blocks.barriers.host_s)
        assert 0 < sum(each.spans_s) <= blocks.barriers.share * most_s
        assert each.cost == pytest.approx(sum(each.devices) * 36 / 8 / 3600)


TIGHT = [
    ("ppo", "1x4xh100", "Qwen/Qwen2.5-14B"),
    ("ppo", "1x2xh100", "Qwen/Qwen3-4B"),
    ("grpo", "1x4xh100", "Qwen/Qwen2.5-14B"),
    ("grpo", "1x2xa100", "Qwen/Qwen3-8B"),
    ("ppo", "1x8xl40s", "Qwen/Qwen3-8B"),
]


@looped("of, cluster, model", TIGHT)
@looped("carried", [1, 8, CARRIED_AT_MOST])
def test_a_pool_is_refused_only_where_no_way_of_each_role_fits_with_those_of_the_others(
    of: str, cluster: str, model: str, carried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside all combinations of ways, with as few carried on as may be: then none is missed, but a faster one may."""
    problem = problem_of(of, cluster, model=model)
    problem = replace(problem, prompts=512, response=LengthDistribution.fixed(4096))
    monkeypatch.setattr(CombinedOptions.undominated, "__defaults__", (carried,))
    blocks, group = PoolOptions(problem), PoolOptions(problem).groups[-1][1]
    everyone = frozenset(range(len(problem.roles)))
    found = blocks.pool_options(everyone, group)
    every = all_sittings(blocks, group)
    assert bool(found) == bool(len(every))
    assert all(each.peak_bytes <= room_bytes(group.of.memory_bytes) for each in found)
    if found and not blocks.cut:
        fastest_s = min(sum(each.stages_s[:-1]) for each in found)
        assert fastest_s == pytest.approx(every.stages_s[:-1].sum(axis=0).min(), rel=1e-9)


def all_sittings(blocks: PoolOptions, group: DeviceGroup) -> CombinedOptions:
    """Return every way of each role with every way of the others that fits, none of them left out as beaten."""
    problem = blocks.problem
    found, bits = CombinedOptions.nothing(problem.stages + 1), {"fsdp": 1, "sglang": 2}
    for place, role in enumerate(problem.roles):
        slowed = problem.host.slowed_share if role.use == "train" else 1.0
        ways = RoleOptions(problem, problem.roles[place], group).all
        found = found.with_one_more(CombinedOptions.of(ways, bits[ways[0].engine], slowed))
        found = found.fitting(room_bytes(group.of.memory_bytes), group.of.host_memory_bytes // group.of.node_devices)
    return found


def test_ppo_of_a_14b_model_on_four_h100_has_a_plan_that_fits() -> None:
    """The fastest ways to run the first two roles leave no room for the others; slower ones do."""
    problem = replace(problem_of("ppo", "1x4xh100", model="Qwen/Qwen2.5-14B"), prompts=512)
    problem = replace(problem, response=LengthDistribution.parse("mean=2k,max=8192"))
    assert find(problem).best.devices == 4


def test_a_block_is_offered_nothing_where_it_does_not_fit() -> None:
    """A model of 32 billion parameters trains on no single L4, and on no four: 12 bytes a parameter are 393 GB."""
    problem = problem_of("grpo", "1x4xl4", model="Qwen/Qwen3-32B")
    assert PoolOptions(problem).options(block_of(problem, "policy.train")) == ()


def test_a_pool_that_both_trains_and_draws_has_no_transfer_to_another() -> None:
    problem, group = problem_of("grpo", "2x8xh100", model="Qwen/Qwen3-8B"), group_of("2x8xh100", 8)
    trains, draws, both, neither = (
        sync_s(problem, group, *ends, "policy.sample")
        for ends in ((True, False), (False, True), (True, True), (False, False))
    )
    assert neither == 0
    assert trains == draws > 0
    assert both > 0


def test_a_model_has_nine_tensors_a_layer_and_three_of_each_expert() -> None:
    """Qwen3-30B-A3B: 48 layers of 128 experts. Its checkpoint has 18,867: routers and more norms too."""
    dense, experts = (shapes_of(graph_of("grpo"), model)["policy"] for model in ("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B"))
    assert tensors(dense) == 9 * 36 + 3
    assert tensors(experts) == 9 * 48 + 3 * 48 * 128 + 3
    assert tensors(experts) == pytest.approx(18_867, rel=0.01)


def test_adapters_are_two_tensors_on_each_linear_layer_and_none_of_experts() -> None:
    """LoRA is not put on routed experts, so a sync sends no tensors of theirs."""
    dense, experts = (
        shapes_of(graph_of("grpo"), f"{model}+lora=16")["policy"] for model in ("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B")
    )
    assert tensors(dense) == 2 * 7 * 36
    assert tensors(experts) == 2 * 7 * 48


def test_roles_that_can_be_exchanged_are_offered_what_each_would_be_by_itself() -> None:
    """Three reward models of one size: blocks that differ only in which of them they hold are worked out once."""
    graph = graph_of(seven_rewards)
    problem = replace(problem_of("grpo"), graph=graph, shapes=shapes_of(graph, "Qwen/Qwen3-0.6B"))
    whole, each_by_itself = PoolOptions(problem), PoolOptions(problem)
    each_by_itself.__dict__["_alike"] = [[place] for place in range(len(problem.roles))]
    style, chat, ref = (place_of(problem, f"{name}.infer") for name in ("style", "chat", "ref"))
    trained, sampled = place_of(problem, "policy.train"), place_of(problem, "policy.sample")
    for block in ({chat}, {style, chat}, {ref, chat}, {trained, sampled, chat}, {sampled, ref, style, chat}):
        found, wanted = (blocks.options(frozenset(block)) for blocks in (whole, each_by_itself))
        assert found and list(map(shown, found)) == list(map(shown, wanted))


def shown(option: Option) -> object:
    """Return all that an option says, but which objects say it."""
    pooled = pool_option_of(option)
    numbers = option.spans_s, option.pool_s, pooled.stages_s, pooled.peak_bytes, pooled.host_bytes
    return option.devices, numbers, pooled.roles, pooled.group.devices


def test_an_optimizer_on_the_host_costs_its_seconds_where_its_role_sleeps_too() -> None:
    """Both the bound and the simulated task count what comes and goes in each step; waking is a task of its own."""
    problem, group = problem_of("ppo"), group_of("1x8xh100", 8)
    blocks, place = PoolOptions(problem), place_of(problem, "critic.train")
    role = problem.roles[place]
    layout = Layout(data=8, sharding="optimizer")
    there = RoleSettings(precision="bfloat16", checkpointing="full", micro_batch_tokens=4512)
    load = problem.loads_of(role)[-1]

    def update_s(**changes: object) -> float:
        running = there.model_copy(update=changes)
        home = RolePlacement(role, "pool", group, "megatron", layout, running, shared=False)
        return work_of(problem, home, load).total_s or 0.0

    away, asleep = update_s(offload=("optimizer",)), update_s(offload=("optimizer",), sleeps=True)
    assert update_s() == update_s(sleeps=True) < away == asleep
    ways = blocks.role_options(place, group).all
    assert all(each.woken_s == each.moved_s for each in ways if not each.running.offload)
    assert all(bool(each.woken_s) == each.running.sleeps for each in ways)


def test_devices_of_no_profile_are_weighed_by_nominal_rates() -> None:
    problem = problem_of("grpo", "1x8xgpu-80GiB")
    found = PoolOptions(problem).options(block_of(problem, "policy.train"))
    assert found and all(each.busy_s > 0 for each in found)
