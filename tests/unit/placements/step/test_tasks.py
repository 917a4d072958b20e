"""Steps as the tasks of programs: their order, what they wait for, barriers, switches, and steps that overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Loss, flow, node, stale
from flowgraph.analysis.roles import roles
from flowgraph.cluster.plan import StepForecast, TimedTask
from flowgraph.language.graph import Graph
from flowgraph.lowering.program import Switch, Sync
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
from placements.hardware.engine_constants import HOST
from placements.step.overlap import StagedNode, is_lawful, roles_ahead
from placements.step.period import makespan, period
from placements.step.step_forecast import DRIVER, schedule_of
from placements.step.tasks import ProgramPlacement, StepOutline, outline
from placements.step.timeline import timeline_of
from placements.workload.lengths import LengthDistribution
from placements.workload.node_workload import node_workloads
from tests.examples.flows.two_agents import show_first, two_agents
from tests.flows.ppo_shaped import ppo_shaped
from tests.looped import looped
from tests.unit.placements.small_problems import SHIPPED, Of, graph_of, lagging, prompt

DEPTH = 2
TRAINED_ALONE = {"policy.sample": "draws"}
TIMES = {"policy.generate": 10.0, "ref.logprobs": 1.0, "policy.update": 6.0}


def spots_of(
    graph: Graph, pools: Mapping[str, str], *, sleeps: bool = False, lag: int = 0, depth: int = DEPTH
) -> tuple[ProgramPlacement, ...]:
    """Put each role on the pool that `pools` names, else "all"; what samples runs on an engine of its own.

    With a lag, steps overlap up to `depth`, and syncs are as rare as what is left of it.
    """
    placed = {role.name: pools.get(role.name, "all") for role in roles(graph)}
    ahead = roles_ahead(placed, staged_of(graph), min(lag, depth)) if lag else dict.fromkeys(placed, 0)
    trained = {role.param for role in roles(graph) if role.use == "train"}
    return tuple(
        ProgramPlacement(
            role.name,
            placed[role.name],
            "sglang" if role.use == "sample" else "fsdp",
            sleeps=sleeps,
            lag=lag if role.use == "sample" and role.param in trained else 0,
            ahead=ahead[role.name],
        )
        for role in roles(graph)
    )


def staged_of(graph: Graph) -> tuple[StagedNode, ...]:
    """Return the nodes of a graph that run models."""
    found = node_workloads(graph, 16, LengthDistribution.fixed(10), LengthDistribution.fixed(10))
    return tuple(StagedNode(each.node, each.role.name, each.stage, each.phase == "update") for each in found)


def step_of(
    found: StepOutline, seconds: Mapping[str, float], sync_s: float = 0.0, driver_s: float = 0.0
) -> StepForecast:
    """Return the step of an outline whose tasks take these seconds, syncs `sync_s`, and all others none."""
    tasks = tuple(
        TimedTask(
            name=name,
            kind=kind,
            pools=pools,
            parts={"all": sync_s if kind == "sync" else seconds.get(name, 0.0)},
            shift=found.shifts[place] if found.ahead else 0,
            every=copy.sync_every if (copy := found.copies[place]) is not None else 1,
        )
        for place, (name, kind, pools) in enumerate(zip(found.names, found.kinds, found.pools, strict=True))
    )
    waits = found.waits_with(driver_s)
    longest = period(schedule_of(tasks, waits))
    return StepForecast(tasks=tasks, waits=waits, period_s=longest.seconds, cycle=longest.cycle)


def alone_s(of: Of, pools: Mapping[str, str], sync_s: float = 0.0, driver_s: float = 0.0) -> float | None:
    """Return the period of steps that do not overlap."""
    return step_of(outline(graph_of(of), spots_of(graph_of(of), pools)), TIMES, sync_s, driver_s).period_s


def overlapped_s(
    of: Of, pools: Mapping[str, str], lag: int, sync_s: float = 0.0, *, depth: int = DEPTH
) -> float | None:
    """Return the period of steps that overlap as far as a lag lets them."""
    graph = graph_of(of)
    return step_of(outline(graph, spots_of(graph, pools, lag=lag, depth=depth)), TIMES, sync_s).period_s


# ---------------------------------------------------------------------------------------- steps by themselves


def test_a_step_has_the_tasks_of_its_program_in_their_order() -> None:
    graph = graph_of(prompt)
    found = outline(graph, spots_of(graph, TRAINED_ALONE))
    assert list(zip(found.names, found.kinds, found.pools, found.roles, strict=True)) == [
        ("sync policy to draws/sglang", "sync", ("all", "draws"), "policy.sample"),
        ("read prompts", "host", (HOST,), ""),
        ("transfer prompts to draws", "transfer", (), ""),
        ("policy.generate", "generate", ("draws",), "policy.sample"),
        ("transfer policy.generate to host", "transfer", (), ""),
        ("transfer policy.generate to all", "transfer", (), ""),
        ("score, group_normalize", "host", (HOST,), ""),
        ("ref.logprobs", "logprob", ("all",), "ref.infer"),
        ("transfer group_normalize to all", "transfer", (), ""),
        ("policy.update", "update", ("all",), "policy.train"),
    ]


def test_on_policy_each_task_waits_for_what_it_reads_and_the_first_for_the_end_of_the_step_before() -> None:
    """Draw: sync → generate → both transfers → ref.logprobs, score → transfer → update → the next sync and read."""
    graph = graph_of(prompt)
    told = {(each.before, each.after, each.delay) for each in outline(graph, spots_of(graph, TRAINED_ALONE)).waits}
    assert told == {
        ("read prompts", "transfer prompts to draws", 0),
        ("sync policy to draws/sglang", "policy.generate", 0),
        ("transfer prompts to draws", "policy.generate", 0),
        ("policy.generate", "transfer policy.generate to all", 0),
        ("policy.generate", "transfer policy.generate to host", 0),
        ("transfer policy.generate to all", "ref.logprobs", 0),
        ("transfer policy.generate to host", "score, group_normalize", 0),
        ("score, group_normalize", "transfer group_normalize to all", 0),
        ("sync policy to draws/sglang", "policy.update", 0),
        ("transfer policy.generate to all", "policy.update", 0),
        ("ref.logprobs", "policy.update", 0),
        ("transfer group_normalize to all", "policy.update", 0),
        ("policy.update", "sync policy to draws/sglang", 1),
        ("policy.update", "read prompts", 1),
    }


@pytest.mark.parametrize("pools", [{}, TRAINED_ALONE])
def test_a_step_is_its_critical_path_and_what_the_driver_takes(pools: Mapping[str, str]) -> None:
    """Draw: sync 2 s → generate 10 s → ref.logprobs 1 s → update 6 s; then the driver 3 s."""
    assert alone_s(prompt, pools, 2.0) == 19.0
    assert alone_s(prompt, pools, 2.0, 3.0) == 22.0


def test_a_lag_of_the_flow_alone_lets_no_step_begin_before_the_last_has_ended() -> None:
    assert alone_s(lagging, TRAINED_ALONE, 2.0) == alone_s(prompt, TRAINED_ALONE, 2.0)


def test_work_on_pools_of_their_own_runs_side_by_side_within_a_step() -> None:
    """Draw: generate 10 s → ref.logprobs 1 s on `reads` beside score 5 s on the host → update 6 s."""
    graph = graph_of(prompt)
    found = outline(graph, spots_of(graph, {"ref.infer": "reads"}))
    assert step_of(found, {**TIMES, "score, group_normalize": 5.0}).period_s == 21.0


def test_the_driver_is_waited_for_and_is_no_task() -> None:
    graph = graph_of(prompt)
    step = step_of(outline(graph, spots_of(graph, {})), TIMES, driver_s=3.0)
    assert DRIVER not in {each.name for each in step.tasks}
    runs = {(run.task, run.step): run for run in timeline_of(schedule_of(step.tasks, step.waits), steps=2).runs}
    assert runs["policy.generate", 1].start_s == runs["policy.update", 0].end_s + 3.0


def test_a_switch_to_what_is_so_already_moves_nothing() -> None:
    """Draw: wake sampler, sync, sleep trainer, generate, sleep sampler, wake ref, …, wake trainer, update.

    The trainer is awake when the step begins, since the one before ended with its update.
    """
    graph = graph_of(prompt)
    found = outline(graph, spots_of(graph, {}, sleeps=True))
    told = [
        (name, moves)
        for name, moves, task in zip(found.names, found.moving, found.tasks, strict=True)
        if isinstance(task, Switch)
    ]
    assert told == [
        ("sleep ref on all/fsdp", False),
        ("wake policy on all/fsdp", False),
        ("wake policy on all/sglang", True),
        ("sleep policy on all/fsdp", True),
        ("sleep policy on all/sglang", True),
        ("wake ref on all/fsdp", True),
        ("sleep ref on all/fsdp (2)", True),
        ("wake policy on all/fsdp (2)", True),
    ]


def test_a_role_that_a_run_does_without_has_no_task_and_its_readers_wait_through_it() -> None:
    graph = graph_of("ppo")
    spots = tuple(each for each in spots_of(graph, {}) if each.role != "ref.infer")
    found = outline(graph, spots)
    assert [name for name in found.names if "ref" in name] == []
    assert "policy.update" in found.names
    ends = {each.after for each in found.waits if not each.delay}
    assert "policy.generate" in ends and "kl_estimate" in {part for name in found.names for part in name.split(", ")}


# ---------------------------------------------------------------------------------------- steps that overlap


def test_on_one_pool_a_step_is_the_sum_with_a_sync_in_each_step_or_in_some() -> None:
    """Draw: all three take turns on one pool: 10 + 1 + 6 s, and the sync of 2 s in every step, or in every second."""
    assert [overlapped_s(lagging, {}, lag, 2.0, depth=1) for lag in (1, 2)] == [19.0, 18.0]


def test_on_two_pools_a_lag_of_one_brings_the_sum_down_to_the_longer_pool() -> None:
    """Draw: `draws` (10 s) | `all` (1 + 6 s); the sync of 2 s stops both.

    On policy all wait for each other: 19 s. One update late, the next batch is drawn during the update: 10 + 2 s.
    """
    assert alone_s(lagging, TRAINED_ALONE, 2.0) == 19.0
    assert overlapped_s(lagging, TRAINED_ALONE, 1, 2.0) == 12.0


def test_a_reader_with_a_pool_of_its_own_works_beside_both_once_the_lag_is_two() -> None:
    """Draw: `draws` 10 s | `reads` 6 s | `all` 6 s.

    With a lag of one two batches are under way, each for all 22 s. With two, three are, and the
    longest pool sets the pace.
    """
    graph, pools = graph_of(lagging), TRAINED_ALONE | {"ref.infer": "reads"}
    times = TIMES | {"ref.logprobs": 6.0}
    found = [outline(graph, spots_of(graph, pools, lag=lag)) for lag in (1, 2, 3)]
    assert [step_of(each, times).period_s for each in found] == [11.0, 10.0, 10.0]


def test_no_task_runs_in_a_step_that_has_no_rows_for_it_yet() -> None:
    graph = graph_of(lagging)
    step = step_of(outline(graph, spots_of(graph, TRAINED_ALONE, lag=1)), TIMES)
    assert {each.name: each.shift for each in step.tasks if each.name in TIMES} == {
        "policy.generate": 0,
        "ref.logprobs": 1,
        "policy.update": 1,
    }
    simulated = timeline_of(schedule_of(step.tasks, step.waits), steps=3)
    first = {run.task: run for run in simulated.runs if run.step == 0}
    assert "policy.update" not in first and "policy.generate" in first
    assert simulated.by_job["policy.update", 1].start_s >= first["policy.generate"].end_s


@looped("lag", range(1, 6))
def test_what_only_reads_rows_is_as_far_ahead_as_sampling_unless_its_pool_also_trains(lag: int) -> None:
    graph = graph_of(lagging)
    for pools in ({}, TRAINED_ALONE, TRAINED_ALONE | {"ref.infer": "reads"}):
        ahead = {each.role: each.ahead for each in spots_of(graph, pools, lag=lag)}
        assert ahead["policy.train"] == 0
        assert ahead["policy.sample"] == min(lag, DEPTH)
        assert ahead["ref.infer"] == (ahead["policy.sample"] if "ref.infer" in pools else 0)


def test_syncs_that_are_rarer_are_counted_once_for_all_their_steps() -> None:
    """Draw: `draws` 10 s | `all` 7 s, and a sync of 3 s on both: 13 s, then 11.5, 11 and 10.75 s on average."""
    periods = [overlapped_s(lagging, TRAINED_ALONE, lag, 3.0, depth=1) for lag in (1, 2, 3, 4)]
    assert periods == pytest.approx([13.0, 11.5, 11.0, 10.75])


def test_a_sync_runs_after_the_update_that_it_copies_and_then_once_in_its_steps() -> None:
    graph = graph_of(lagging)
    step = step_of(outline(graph, spots_of(graph, TRAINED_ALONE, lag=3, depth=1)), TIMES, 2.0)
    simulated = timeline_of(schedule_of(step.tasks, step.waits), steps=9)
    (sync,) = (each for each in step.tasks if each.kind == "sync")
    assert (sync.shift, sync.every) == (4, 3)
    assert [run.step for run in simulated.runs if run.task == sync.name] == [4, 7]
    copied = simulated.by_job[sync.name, 4]
    assert copied.start_s >= simulated.by_job["policy.update", 3].end_s
    assert simulated.by_job["policy.update", 4].start_s >= copied.end_s
    assert simulated.by_job["policy.generate", 4].start_s >= copied.end_s
    assert step.period_s == pytest.approx(
        (timeline_of(schedule_of(step.tasks, step.waits), steps=60).finish_s[-1] - simulated.finish_s[-1]) / 51
    )


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
    told = {each.role: each.ahead for each in spots_of(graph, {"coach.sample": "coaches"}, lag=3)}
    assert told == {"coach.sample": 2, "policy.sample": 2, "policy.train": 0}


def test_what_answers_a_trained_models_reading_goes_with_it() -> None:
    """Draw: policy.generate → policy.logprobs, in the pool that trains → ref.generate, in one of its own."""
    graph = graph_of(read_again)
    told = {each.role: each.ahead for each in spots_of(graph, {"policy.sample": "a", "ref.sample": "b"}, lag=3)}
    assert told == {"policy.sample": 2, "policy.train": 0, "ref.sample": 0}


FLOWS: list[Of] = [*SHIPPED, lagging, two_agents, ppo_shaped, coached, read_again]


def _on(step: StepForecast, names: Sequence[str]) -> list[float]:
    return [sum((each.seconds or 0.0) / each.every for each in step.tasks if pool in each.pools) for pool in names]


@given(st.data())
def test_any_flow_on_any_pools_has_a_period_between_its_longest_pool_and_its_sum(data: st.DataObject) -> None:
    """No wait is for a later step, and no tasks wait in a circle; by itself a step is its critical path."""
    graph = graph_of(data.draw(st.sampled_from(FLOWS)))
    names = [role.name for role in roles(graph)]
    pools = {name: data.draw(st.sampled_from("abc")) for name in names}
    spots = spots_of(graph, pools, sleeps=data.draw(st.booleans()))
    alone = outline(graph, spots)
    seconds = {name: float(data.draw(st.integers(0, 9))) for name in alone.names}
    told = step_of(alone, seconds, 1.0)
    path = makespan(alone.names, alone.before, [each.seconds for each in told.tasks])
    assert told.period_s == pytest.approx(path.seconds)
    by_name = {each.name: each.seconds or 0.0 for each in told.tasks}
    assert sum(by_name[name] for name in path.cycle) == pytest.approx(told.period_s)
    syncs = any(isinstance(each, Sync) for each in alone.tasks)
    for lag in range(1, 4) if syncs else ():
        found = outline(graph, spots_of(graph, pools, lag=lag))
        if not is_lawful(found.program):
            continue
        step = step_of(found, seconds, 1.0)
        assert step.period_s is not None and told.period_s is not None
        assert max(_on(step, "abc")) <= step.period_s + 1e-9
        assert step.period_s <= sum(each.seconds or 0.0 for each in step.tasks) + 1e-9
