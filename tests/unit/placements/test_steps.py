"""Steps as tasks: their order, what they wait for within a step and across steps, and what a lag comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Loss, flow, node, stale
from flowgraph.graph import Graph
from flowgraph.plan import Step, Waits
from flowgraph.roles import roles
from nodes import (
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    clipped,
    generate,
    group_normalize,
    logprobs,
    score,
    update,
)
from placements.cycles import period
from placements.lengths import Lengths
from placements.loads import loads
from placements.placing import schedule_of
from placements.seconds import Seconds
from placements.steps import (
    HOST,
    HostConstants,
    Refresh,
    Work,
    host_constants,
    shifts,
    synced_every,
    tasks_of,
    waits_of,
)
from tests.examples.flows.two_agents import show_first, two_agents
from tests.flows.ppo_shaped import ppo_shaped
from tests.unit.placements.small_settings import SHIPPED, Of, graph_of, lagging, prompt

NO_HOST = HostConstants(other_share=0.0, slowed_share=1.0)
TRAINED_ALONE = {"policy.sample": "draws"}


def placed(
    graph: Graph, pools: Mapping[str, str], seconds: Mapping[str, float | None], lag: int = 0, sync_s: float = 0.0
) -> tuple[list[Work], list[Refresh]]:
    """Give the works of a graph: each role on the pool that `pools` names, else "all"; nodes take 1 s, or as told."""
    works = [
        Work(load, pools.get(load.role.name, "all"), Seconds({"matmul": seconds.get(load.node, 1.0)}))
        for load in loads(graph, 16, Lengths.fixed(10), Lengths.fixed(10))
    ]
    found = roles(graph)
    trained = {role.param: role.name for role in found if role.use == "train"}
    return works, [
        Refresh(
            trained[role.param],
            role.name,
            tuple(dict.fromkeys(pools.get(name, "all") for name in (trained[role.param], role.name))),
            Seconds({"transfer": sync_s}),
            lag,
        )
        for role in found
        if role.use == "sample" and role.param in trained
    ]


def step_of(graph: Graph, works: Sequence[Work], refreshes: Sequence[Refresh], host: HostConstants = NO_HOST) -> Step:
    """Give the step of works."""
    tasks, waits = tasks_of(works, refreshes, host), waits_of(graph, works, refreshes)
    found = period(schedule_of(tasks, waits))
    return Step(tasks=tasks, waits=waits, period_s=found.seconds, cycle=found.cycle)


TIMES: dict[str, float | None] = {"policy.generate": 10.0, "ref.logprobs": 1.0, "policy.update": 6.0}


def seconds_a_step(of: Of, pools: Mapping[str, str], lag: int, sync_s: float = 0.0) -> float:
    """Give the period of a flow that generates for 10 s, reads for 1 s and updates for 6 s."""
    graph = graph_of(of)
    found = step_of(graph, *placed(graph, pools, TIMES, lag, sync_s)).period_s
    assert found is not None
    return found


def test_a_step_has_its_models_by_stage_host_work_before_updates_and_syncs_last() -> None:
    graph = graph_of("ppo")
    tasks = tasks_of(*placed(graph, {}, {}), host_constants())
    assert [(each.name, each.kind) for each in tasks] == [
        ("policy.generate", "generate"),
        ("ref.logprobs", "logprob"),
        ("critic.critic_values", "logprob"),
        (HOST, "host"),
        ("policy.update", "update"),
        ("critic.update", "update"),
        ("policy.train to policy.sample", "sync"),
    ]
    assert [each.role for each in tasks[-2:]] == ["critic.train", "policy.sample"]


def test_host_work_takes_its_share_of_the_models_seconds_and_no_pool_of_theirs() -> None:
    graph = graph_of(prompt)
    works, refreshes = placed(graph, {}, TIMES, sync_s=5.0)
    host = next(each for each in tasks_of(works, refreshes, HostConstants(0.1, 1.0)) if each.kind == "host")
    assert host.seconds == pytest.approx(0.1 * (10 + 1 + 6))
    assert host.pools == (HOST,)


def test_what_is_not_known_of_one_task_is_not_known_of_host_work_and_the_period() -> None:
    graph = graph_of(prompt)
    step = step_of(graph, *placed(graph, {}, TIMES | {"ref.logprobs": None}))
    unknown = {each.name for each in step.tasks if each.seconds is None}
    assert (unknown, step.period_s, step.cycle) == ({"ref.logprobs", HOST}, None, ())


def test_on_policy_all_wait_for_what_they_read_and_drawing_for_the_sync_of_the_step_before() -> None:
    """Draw: generate → ref.logprobs → host → update → sync → the next generate; update → none of its own step."""
    graph = graph_of(prompt)
    told = waits_of(graph, *placed(graph, TRAINED_ALONE, TIMES))
    assert sorted((each.before, each.after, each.delay) for each in told) == [
        (HOST, "policy.update", 0),
        ("policy.generate", HOST, 0),
        ("policy.generate", "policy.update", 0),
        ("policy.generate", "ref.logprobs", 0),
        ("policy.train to policy.sample", "policy.generate", 1),
        ("policy.update", "policy.train to policy.sample", 0),
        ("ref.logprobs", HOST, 0),
        ("ref.logprobs", "policy.update", 0),
    ]


def test_a_trained_model_that_is_read_outside_its_loss_is_read_after_the_update_before() -> None:
    """Draw: policy.update → policy.logprobs of the next step, in the same pool."""
    graph = graph_of("decoupled_ppo")
    told = waits_of(graph, *placed(graph, {}, {}))
    assert Waits(before="policy.update", after="policy.logprobs", delay=1) in told


def test_on_one_pool_a_step_is_the_sum_whatever_the_lag() -> None:
    """Draw: all three take turns on one pool: 10 + 1 + 6 s, and the sync of 2 s in every step, or every second.

    With a lag of 2 the sync may wait for a second update, since rows are drawn one step ahead.
    """
    assert seconds_a_step(lagging, {}, 0, 2.0) == 19.0
    assert seconds_a_step(lagging, {}, 1, 2.0) == 19.0
    assert seconds_a_step(lagging, {}, 2, 2.0) == 18.0


def test_on_two_pools_a_lag_of_one_brings_the_sum_down_to_the_longer_pool() -> None:
    """Draw: `draws` (10 s) | `all` (1 + 6 s); the sync of 2 s stops both.

    On policy all wait for each other: 19 s. One update late, the next batch is drawn during the update: 10 + 2 s.
    """
    assert seconds_a_step(lagging, TRAINED_ALONE, 0, 2.0) == 19.0
    assert seconds_a_step(lagging, TRAINED_ALONE, 1, 2.0) == 12.0


def test_a_reader_with_a_pool_of_its_own_works_beside_both_once_the_lag_is_two() -> None:
    """Draw: `draws` 10 s | `reads` 6 s | `all` 6 s.

    With a lag of one two batches are under way, each for all 22 s. With two each pool has a batch of its own, and the
    longest sets the pace.
    """
    graph, pools = graph_of(lagging), TRAINED_ALONE | {"ref.infer": "reads"}
    times: dict[str, float | None] = TIMES | {"ref.logprobs": 6.0}
    periods = [step_of(graph, *placed(graph, pools, times, lag)).period_s for lag in range(4)]
    assert periods == [22.0, 11.0, 10.0, 10.0]


@pytest.mark.parametrize("lag", range(6))
def test_no_weights_that_draw_are_older_than_the_lag(lag: int) -> None:
    """Rows are trained on `late` steps after they are drawn, by weights synced every so many updates."""
    graph = graph_of(lagging)
    for pools in ({}, TRAINED_ALONE, TRAINED_ALONE | {"ref.infer": "reads"}):
        works, refreshes = placed(graph, pools, TIMES, lag)
        late = shifts(works, refreshes)
        assert late["policy.generate"] == 0
        assert late["policy.update"] + synced_every(works, refreshes) - 1 == lag


def test_a_sync_that_is_not_made_in_every_step_counts_with_its_part() -> None:
    graph = graph_of(lagging)
    works, refreshes = placed(graph, TRAINED_ALONE, TIMES, lag=4, sync_s=8.0)
    sync = tasks_of(works, refreshes, NO_HOST)[-1]
    assert (synced_every(works, refreshes), sync.seconds) == (4, 2.0)


@flow
def coached(prompts: Prompts, policy: Policy, coach: Reference) -> Policy:
    """Let a frozen model write first, and the policy answer what it wrote."""
    shown = show_first(generate(coach, prompts))
    rollout = generate(stale(policy, at_most=3), shown, n=4)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return update(policy, loss)


@flow
def read_again(prompts: Prompts, policy: Policy, ref: Reference) -> tuple[Policy, Rollout]:
    """Let a frozen model answer what the newest policy has read."""
    rollout = generate(stale(policy, at_most=3), prompts, n=4)
    advantages, proximal = group_normalize(score(rollout), rollout.group), logprobs(policy, rollout)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return update(policy, loss), generate(ref, asked_again(rollout, proximal))


@node(rows="new")
def asked_again(rollout: Rollout, read: LogProbs) -> Prompts:
    """Ask again, by what was read."""
    raise NotImplementedError


def test_what_comes_before_drawing_is_as_far_ahead_as_that() -> None:
    """Draw: coach.generate → policy.generate → policy.update, which trains on rows of three rounds ago."""
    graph = graph_of(coached)
    works, refreshes = placed(graph, {"coach.sample": "coaches"}, {}, lag=3)
    assert shifts(works, refreshes) == {"coach.generate": 0, "policy.generate": 0, "policy.update": 1, HOST: 1}


def test_what_answers_a_trained_models_reading_goes_with_it() -> None:
    """Draw: policy.generate → policy.logprobs, in the pool that trains → ref.generate, in one of its own."""
    graph = graph_of(read_again)
    works, refreshes = placed(graph, {"policy.sample": "draws", "ref.sample": "answers"}, {}, lag=3)
    told = shifts(works, refreshes)
    assert told["policy.generate"] == 0
    assert told["policy.logprobs"] == told["ref.generate"] == told["policy.update"] == 1


FLOWS: list[Of] = [*SHIPPED, lagging, two_agents, ppo_shaped, coached, read_again]


@given(st.data())
def test_any_flow_on_any_pools_has_a_period_between_its_longest_pool_and_its_sum(data: st.DataObject) -> None:
    """No wait is for a later step, no tasks wait in a circle, and a lag never makes a step longer."""
    graph = graph_of(data.draw(st.sampled_from(FLOWS)))
    names = [role.name for role in roles(graph)]
    pools = {name: data.draw(st.sampled_from("abc")) for name in names}
    nodes = [load.node for load in loads(graph, 16, Lengths.fixed(10))]
    seconds: dict[str, float | None] = {node: float(data.draw(st.integers(0, 9))) for node in nodes}
    before = float("inf")
    for lag in range(4):
        step = step_of(graph, *placed(graph, pools, seconds, lag, 1.0))
        on = {pool: sum(each.seconds or 0.0 for each in step.tasks if pool in each.pools) for pool in "abc"}
        assert step.period_s is not None
        assert max(on.values()) <= step.period_s + 1e-9
        assert step.period_s <= sum(each.seconds or 0.0 for each in step.tasks) + 1e-9
        assert step.period_s <= before + 1e-9
        before = step.period_s
