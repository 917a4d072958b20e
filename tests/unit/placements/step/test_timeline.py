"""Timelines of small schedules: when tasks run, what pools wait for, and how both are drawn."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from placements.report.simulation import Simulation
from placements.step.idle_time import causes, idle_spans
from placements.step.schedule import Schedule, ScheduledTask, TaskWait
from placements.step.timeline import TimelineEvent, timeline_of

GENERATE = ScheduledTask("policy.sample/generate", "generate", ("rollout",), 458)
LOGPROB = ScheduledTask("policy.train/logprobs", "logprob", ("train",), 108)
UPDATE = ScheduledTask("policy.train/update", "update", ("train",), 337)
SYNC = ScheduledTask("sync", "sync", ("rollout", "train"), 20)


def one_step_off(at_most: int) -> Schedule:
    """Generation on one pool, training on the other. Seconds: verl, docs/advance/one_step_off.md."""
    weights = TaskWait(UPDATE.name, GENERATE.name, at_most + 1)
    return Schedule((GENERATE, LOGPROB, UPDATE), (TaskWait(GENERATE.name, LOGPROB.name), weights))


def test_each_task_runs_as_soon_as_its_data_its_weights_and_its_pool_are_there() -> None:
    assert timeline_of(one_step_off(0), steps=2).events == (
        TimelineEvent(GENERATE.name, "rollout", 0, 0, 458),
        TimelineEvent(GENERATE.name, "rollout", 1, 903, 1361),
        TimelineEvent(LOGPROB.name, "train", 0, 458, 566),
        TimelineEvent(UPDATE.name, "train", 0, 566, 903),
        TimelineEvent(LOGPROB.name, "train", 1, 1361, 1469),
        TimelineEvent(UPDATE.name, "train", 1, 1469, 1806),
    )


def test_the_makespan_is_of_one_step_and_the_period_of_the_last_ones() -> None:
    late = timeline_of(one_step_off(1), steps=6)
    assert timeline_of(one_step_off(1)).end_s == late.finish_s[0] == 903
    assert (late.period_s, late.end_s) == (458, 903 + 5 * 458)
    assert timeline_of(one_step_off(0), steps=2).period_s == 903
    assert timeline_of(one_step_off(0)).period_s is None


@pytest.mark.parametrize("steps", [8, 9, 10, 24])
def test_the_period_counts_a_task_that_runs_in_one_step_of_several(steps: int) -> None:
    schedule = Schedule((replace(GENERATE, pools=("train",)), LOGPROB, replace(SYNC, pools=("train",), every=4)))
    assert timeline_of(schedule, steps=steps).period_s == pytest.approx(458 + 108 + 20 / 4)


def test_a_run_says_whose_end_it_waited_for_last() -> None:
    freed_by = {(run.task, run.step): run.freed_by for run in timeline_of(one_step_off(0), steps=2).runs}
    assert freed_by[GENERATE.name, 0] is None
    assert freed_by[GENERATE.name, 1] == (UPDATE.name, 0)
    assert freed_by[UPDATE.name, 0] == (LOGPROB.name, 0)


def test_a_period_over_two_steps_is_measured_over_both() -> None:
    tasks = (ScheduledTask("a", "host", ("x",), 4.0), ScheduledTask("b", "host", (), 8.0))
    timeline = timeline_of(Schedule(tasks, (TaskWait("a", "b"), TaskWait("b", "a", 2))), steps=9)
    assert timeline.finish_s[:4] == (12, 16, 24, 28)
    assert timeline.period_s == 6


def test_each_bubble_is_named_for_the_task_that_is_waited_for_then() -> None:
    found = [
        (each.pool, each.start_s, each.end_s, each.why) for each in idle_spans(timeline_of(one_step_off(0), steps=2))
    ]
    assert found == [
        ("rollout", 458, 566, "waits for policy.train/logprobs"),
        ("rollout", 566, 903, "waits for policy.train/update"),
        ("rollout", 1361, 1806, "nothing left to do"),
        ("train", 0, 458, "waits for policy.sample/generate"),
        ("train", 903, 1361, "waits for policy.sample/generate"),
    ]


def test_a_pool_that_stands_still_waits_first_for_the_sync_and_then_for_what_follows_it() -> None:
    update = replace(UPDATE, pools=("train",), seconds=400)
    sync = replace(SYNC, pools=("rollout",))
    waits = (TaskWait("sync", GENERATE.name), TaskWait(GENERATE.name, update.name), TaskWait(update.name, "sync", 1))
    found = idle_spans(timeline_of(Schedule((sync, GENERATE, update), waits), steps=2))
    assert [(each.start_s, each.end_s, each.why) for each in found if each.pool == "train"] == [
        (0, 20, "waits for sync"),
        (20, 478, "waits for policy.sample/generate"),
        (878, 898, "waits for sync"),
        (898, 1356, "waits for policy.sample/generate"),
    ]


def test_causes_are_added_up_pool_by_pool_the_longest_first() -> None:
    assert list(causes(idle_spans(timeline_of(one_step_off(0), steps=2))).items()) == [
        (("rollout", "nothing left to do"), (445, pytest.approx(445 / 1806), 1)),
        (("rollout", "waits for policy.train/update"), (337, pytest.approx(337 / 1806), 1)),
        (("rollout", "waits for policy.train/logprobs"), (108, pytest.approx(108 / 1806), 1)),
        (("train", "waits for policy.sample/generate"), (916, pytest.approx(916 / 1806), 2)),
    ]


TEXT = """\
2 steps in 1,806.0 s, 903.0 s from step to step
rollout generate 0──│·············generate 1───│·············
train   ·············log│update 0│··············lo│update 1─│
        0                       903.0               1,806.0 s
rollout  busy  50.7%
         idle  24.6%       445.0 s  nothing left to do
         idle  18.7%       337.0 s  waits for policy.train/update
         idle   6.0%       108.0 s  waits for policy.train/logprobs
train    busy  49.3%
         idle  50.7%       916.0 s  waits for policy.sample/generate, 2 times"""


def test_a_timeline_is_drawn_to_scale_with_the_names_of_its_bubbles_beneath() -> None:
    assert Simulation(timeline_of(one_step_off(0), steps=2)).text(61) == TEXT


@pytest.mark.parametrize(("columns", "steps"), [(30, 5), (61, 13), (100, 20), (173, 20)])
def test_no_lane_is_longer_than_the_terminal(columns: int, steps: int) -> None:
    lanes = Simulation(timeline_of(one_step_off(1), steps=steps)).text(columns).splitlines()[1:4]
    assert max(map(len, lanes)) <= columns
    assert {len(lane) for lane in lanes[:2]} == {columns}


def test_more_steps_than_there_is_room_for_are_told_but_not_drawn() -> None:
    told = Simulation(timeline_of(one_step_off(0), steps=1000)).text(100).splitlines()
    assert told[0].startswith("1,000 steps in ")
    assert told[1] == "too many to draw in 100 columns, which have room for 23"
    assert told[2].startswith("rollout  busy ")
    assert "─" not in "".join(told)


def test_a_timeline_of_no_seconds_is_drawn_empty() -> None:
    empty = Schedule((ScheduledTask("score", "score", ("host",), 0.0),))
    assert "·····" in Simulation(timeline_of(empty)).text(40)


def test_a_trace_has_a_lane_for_each_pool_and_times_in_microseconds() -> None:
    free = ScheduledTask("score", "score", (), 0.0015)
    schedule = replace(one_step_off(0), tasks=(*one_step_off(0).tasks, free))
    trace = Simulation(timeline_of(schedule)).trace("predicted")
    events = trace["traceEvents"]
    assert [(e["name"], e["args"]["name"], e["tid"]) for e in events if e["ph"] == "M"] == [
        ("process_name", "predicted", 0),
        ("thread_name", "rollout", 1),
        ("thread_name", "train", 2),
        ("thread_name", "no pool", 3),
    ]
    runs = [(e["name"], e["cat"], e["ts"], e["dur"], e["tid"]) for e in events if e["ph"] == "X"]
    assert runs == [
        (GENERATE.name, "generate", 0, 458e6, 1),
        ("score", "score", 0, 1500, 3),
        (LOGPROB.name, "logprob", 458e6, 108e6, 2),
        (UPDATE.name, "update", 566e6, 337e6, 2),
        ("nothing left to do", "bubble", 458e6, 445e6, 1),
        (f"waits for {GENERATE.name}", "bubble", 0, 458e6, 2),
    ]
    assert next(e for e in events if e["name"] == UPDATE.name)["args"] == {
        "step": 0,
        "seconds": 337,
        "pools": ["train"],
        "freed by": "policy.train/logprobs, step 0",
    }
    assert json.loads(json.dumps(trace)) == trace
