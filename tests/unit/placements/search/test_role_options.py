"""Ways to run one role on so many devices: what is offered, what is left out, and what each takes and holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.analysis.roles import Role
from flowgraph.checks.placed import VERBS
from flowgraph.cluster.plan import Layout, RoleSettings
from flowgraph.engines.table import ENGINES
from flowgraph.errors import UnknownNameError
from placements.hardware.topology import sizes
from placements.memory.footprint import total_bytes
from placements.search.role_options import ALL_OFFLOADED, CACHE_SHARES, RoleOption, RoleOptions
from placements.step.role_costs import (
    DeviceGroup,
    footprint,
    offloaded_seconds,
    passing_seconds,
    sampling_seconds,
    woken_seconds,
)
from placements.time.seconds import added
from placements.workload.lengths import LengthDistribution
from placements.workload.planning_problem import PlanningProblem
from tests.looped import looped
from tests.unit.placements.small_problems import group_of, lagging, problem_of

SEATS = [("1x8xh100", 1), ("1x8xh100", 4), ("1x8xh100", 8), ("2x8xa100", 16), ("1x1xl4", 1)]
ROLES = ("policy.train", "policy.sample", "critic.train", "ref.infer")


def role_options(problem: PlanningProblem, role: Role, group: DeviceGroup) -> tuple[RoleOption, ...]:
    return RoleOptions(problem, role, group).undominated


def role_of(problem: PlanningProblem, name: str) -> Role:
    """Return a role by its name."""
    return next(role for role in problem.roles if role.name == name)


def offered(cluster: str, devices: int, name: str, **parts: str) -> tuple[RoleOption, ...]:
    """Return the ways to run a role of PPO on so many devices."""
    problem = problem_of("ppo", cluster, **parts)
    return role_options(problem, role_of(problem, name), group_of(cluster, devices))


def test_a_role_that_a_flow_does_not_have_is_refused_with_the_nearest() -> None:
    problem = problem_of("ppo")
    assert problem.role("critic.train").name == "critic.train"
    with pytest.raises(
        UnknownNameError, match=r"^no role of ppo `critic.trian`\n  hint: did you mean `critic.train`\?$"
    ):
        problem.role("critic.trian")


EVERY = [(*group, name) for group in SEATS for name in ROLES]


@looped("cluster, devices, name", EVERY)
def test_no_choice_is_beaten_by_another(cluster: str, devices: int, name: str) -> None:
    """What is as fast in each stage and holds no more at rest, on top at work, and on the host leaves no room."""
    found = offered(cluster, devices, name)
    assert found
    told = [(*each.stages_s, each.rest_bytes, each.over_bytes, each.host_bytes) for each in found]
    for place, one in enumerate(told):
        for other in told[place + 1 :]:
            assert any(a < b for a, b in zip(one, other, strict=True))
            assert any(b < a for a, b in zip(one, other, strict=True))


@looped("cluster, devices, name", EVERY)
def test_each_choice_takes_all_devices_in_a_layout_that_its_engine_runs(cluster: str, devices: int, name: str) -> None:
    problem = problem_of("ppo", cluster)
    role, group = role_of(problem, name), group_of(cluster, devices)
    for each in offered(cluster, devices, name):
        layout, engine, support = each.layout, ENGINES[each.engine], ENGINES[each.engine].supported
        assert support is not None
        assert layout.devices == devices
        assert problem.shape(role).heads % layout.tensor == 0
        assert layout.tensor <= min(group.of.reach, support.tensor)
        assert layout.sharding in support.sharding
        assert set(VERBS[role.use]) <= engine.verbs
        assert 0 <= each.rest_bytes <= each.peak_bytes
        assert each.host_bytes >= 0


@looped("cluster, devices, name", EVERY)
def test_a_choice_is_busy_in_the_stages_of_its_loads_only(cluster: str, devices: int, name: str) -> None:
    problem = problem_of("ppo", cluster)
    own = {load.stage for load in problem.loads_of(role_of(problem, name))}
    for each in offered(cluster, devices, name):
        assert len(each.stages_s) == problem.stages + 1
        assert {stage for stage, seconds in enumerate(each.stages_s) if seconds} == own


def test_heads_bound_the_tensor_degree() -> None:
    """A model of 12 heads is not cut into 8."""
    degrees = {each.layout.tensor for each in offered("1x8xh100", 8, "policy.sample", model="Qwen/Qwen2.5-1.5B")}
    assert degrees == {1, 2, 4}


def test_tensor_ranks_that_are_slower_and_save_no_memory_that_matters_are_not_looked_at() -> None:
    group = group_of("1x8xh100", 8)

    def degrees(model: str) -> set[int]:
        problem = replace(problem_of("ppo", model=model), modelled=True)
        return {each.layout.tensor for each in role_options(problem, role_of(problem, "policy.train"), group)}

    assert max(degrees("Qwen/Qwen2.5-1.5B")) < max(degrees("Qwen/Qwen3-32B"))


def test_a_layout_that_is_only_modelled_is_not_offered_unless_it_is_asked_for() -> None:
    """No executor splits a trained model by tensor ranks; Megatron has none at all, and is modelled with them."""
    group, plain = group_of("1x8xh100", 8), problem_of("ppo", model="Qwen/Qwen3-32B")
    role = role_of(plain, "policy.train")
    named = replace(plain, engines={"train": "megatron"})
    assert {each.layout.tensor for each in role_options(plain, role, group)} == {1}
    assert max(each.layout.tensor for each in role_options(named, role_of(named, "policy.train"), group)) > 1


def test_a_rank_without_a_row_is_not_offered() -> None:
    """Of two prompts two ranks have one each; what draws gives each prompt's samples to any replica."""
    problem = problem_of("grpo", prompts=2)
    group = group_of("1x8xh100", 8)
    assert {each.layout.data for each in role_options(problem, role_of(problem, "policy.train"), group)} <= {1, 2}


def test_machines_without_a_domain_still_hold_a_tensor_group() -> None:
    assert {each.layout.tensor for each in offered("1x4xl40s", 4, "policy.sample")} >= {1, 2}


def test_to_sleep_or_to_offload_holds_less_beside_others_and_takes_longer() -> None:
    """One way of a role, in three places: on the device, there at work only, and in host memory.

    Offloaded weights come in each pass of each micro-batch, so that takes longest.
    """
    problem, group = problem_of("ppo"), group_of("1x8xh100", 8)
    role, layout = role_of(problem, "critic.train"), Layout(data=8, sharding="full")
    own = problem.loads_of(role)
    asleep = RoleSettings(precision="bfloat16", checkpointing="full", micro_batch_tokens=4 * (512 + 4000), sleeps=True)
    away = asleep.model_copy(update={"sleeps": False, "offload": ("parameters", "gradients", "optimizer")})
    there = asleep.model_copy(update={"sleeps": False})
    held = [footprint(problem, role, group, "fsdp", layout, each) for each in (there, asleep, away)]
    moved = [
        added([woken_seconds(one, group, each), offloaded_seconds(one, group, layout, each, own)]).total_s or 0.0
        for one, each in zip(held, (there, asleep, away), strict=True)
    ]
    assert 0.0 == moved[0] < moved[1] < moved[2]
    assert held[0].peak_bytes == held[1].peak_bytes > held[2].peak_bytes
    assert total_bytes(held[0].host) == 0 < total_bytes(held[2].host)


def test_what_is_offloaded_is_offered_where_memory_is_tight_only() -> None:
    roomy, tight = offered("1x8xh100", 8, "critic.train"), offered("1x1xl4", 1, "critic.train")
    assert not any(each.running.offload for each in roomy)
    assert any(each.running.offload for each in tight)


@looped("name", ["critic.train", "ref.infer"])
@looped("kept", [{}, {"sleeps": True}, {"offload": ALL_OFFLOADED}])
def test_a_choice_says_the_seconds_and_bytes_of_its_parts(name: str, kept: dict[str, object]) -> None:
    """The sum over loads, and what comes and goes, is the choice's own; so is what it holds."""
    problem, group, layout = problem_of("ppo"), group_of("1x8xh100", 8), Layout(data=8, sharding="full")
    role = role_of(problem, name)
    for each in role_options(problem, role, group):
        if each.layout != layout:
            continue
        held = footprint(problem, role, group, each.engine, layout, each.running)
        told = [
            passing_seconds(problem, group, each.engine, layout, each.running, load) for load in problem.loads_of(role)
        ]
        told.append(woken_seconds(held, group, each.running))
        told.append(offloaded_seconds(held, group, layout, each.running, problem.loads_of(role)))
        assert sum(each.stages_s) == pytest.approx(sum(one.total_s or 0.0 for one in told))
        assert each.peak_bytes == held.peak_bytes
        assert each.rest_bytes == total_bytes(held.asleep if each.running.sleeps else held.resident)


def test_epochs_are_as_many_passes() -> None:
    problem, group, layout = problem_of("ppo"), group_of("1x8xh100", 8), Layout(data=8, sharding="full")
    (load,) = (each for each in problem.loads if each.node == "policy.update")
    running = RoleSettings(precision="bfloat16", checkpointing="full", micro_batch_tokens=load.longest_tokens)
    once = passing_seconds(problem, group, "fsdp", layout, running, load).total_s
    twice = passing_seconds(
        problem, group, "fsdp", layout, running, replace(load, epochs=2, steps=2 * load.steps)
    ).total_s
    assert once is not None
    assert twice == pytest.approx(2 * once)


def test_a_larger_cache_is_offered_only_where_it_saves_time() -> None:
    """Rows of 8,512 tokens of an 8B model, 512 prompts with 16 samples: more of them at once, fewer waves."""
    problem = problem_of("grpo", "1x8xh100", model="Qwen/Qwen3-8B", prompts=512, response="mean=2k,max=8k")
    found = role_options(problem, role_of(problem, "policy.sample"), group_of("1x8xh100", 8))
    of_one = [(each.running.cache_share, sum(each.stages_s)) for each in found if each.layout.tensor == 1]
    shares = [share for share, _ in sorted(of_one, key=lambda each: -each[1])]
    assert len(shares) > 1
    assert shares == sorted(shares, key=lambda share: share or 0.0)
    assert set(shares) <= set(CACHE_SHARES)


def test_a_cache_that_holds_no_row_is_no_choice() -> None:
    """A row of half a million tokens has a cache of 53 GiB; three tenths of 80 GiB do not hold it."""
    problem = replace(problem_of("grpo"), response=LengthDistribution.fixed(500_000))
    group, role = group_of("1x8xh100", 1), role_of(problem, "policy.sample")
    (load,) = problem.loads_of(role)
    told = [
        sampling_seconds(
            problem, group, "sglang", Layout(), RoleSettings(precision="bfloat16", cache_share=share), load
        )
        for share in (0.3, 0.9)
    ]
    assert told[0] is None
    assert told[1] is not None and told[1].total_s
    assert all((each.running.cache_share or 0) > 0.6 for each in role_options(problem, role, group))


def test_a_model_that_fits_no_device_still_says_what_it_would_hold() -> None:
    """Whether it fits is for the pool to say, and for the error that names what is short.

    32.8 billion parameters: 12 bytes each of weights and moments, on the device or offloaded to the host.
    """
    problem = problem_of("grpo", "1x1xl4", model="Qwen/Qwen3-32B")
    found = role_options(problem, role_of(problem, "policy.train"), group_of("1x1xl4", 1))
    assert all((each.host_bytes if each.running.offload else each.peak_bytes) > 12 * 32.7e9 for each in found)


@given(st.sampled_from(ROLES), st.sampled_from([1, 2, 4, 8]), st.integers(1, 512), st.integers(1, 20_000))
def test_any_batch_and_length_has_choices_that_none_beats(name: str, devices: int, prompts: int, tokens: int) -> None:
    problem = replace(problem_of("ppo"), prompts=prompts, response=LengthDistribution.fixed(tokens))
    found = role_options(problem, role_of(problem, name), group_of("1x8xh100", devices))
    assert found or name != "policy.sample"
    told = [(*each.stages_s, each.rest_bytes, each.over_bytes, each.host_bytes) for each in found]
    assert len(set(told)) == len(told)
    assert all(min(each.stages_s) >= 0 for each in found)


def test_every_size_of_pool_has_a_choice() -> None:
    problem = problem_of("grpo", "2x8xa100")
    group = group_of("2x8xa100", 16)
    for devices in sizes(group.of):
        assert role_options(problem, role_of(problem, "policy.train"), group_of("2x8xa100", devices))


def test_a_cache_has_place_for_the_rows_of_all_steps_that_are_streamed_side_by_side() -> None:
    """256 rows of an 8B model on eight replicas: 32 at a time, 64 or 160 where one or four more steps are drawn."""
    problem = problem_of(lagging, model="Qwen/Qwen3-8B", prompts=32, response="mean=2k,max=8k")
    streamed = replace(problem, staleness=1, contract="ready")

    def most_share(where: PlanningProblem) -> float:
        found = role_options(where, role_of(where, "policy.sample"), group_of("1x8xh100", 8))
        return max(each.running.cache_share or 0.0 for each in found if each.layout.tensor == 1)

    assert most_share(replace(streamed, contract="scheduled")) == CACHE_SHARES[0] < most_share(streamed)
    assert most_share(replace(streamed, staleness=4)) > 1.4 * most_share(streamed)
    assert most_share(replace(streamed, staleness=4, contract="scheduled")) == CACHE_SHARES[0]
