"""The idle shares of pools whose steps overlap: by hand, from tasks whose seconds are made up."""

from __future__ import annotations

import pytest

from flowgraph.lowering.program import Sync
from flowgraph.lowering.task_names import task_name
from flowgraph.runtime.measure.measured_task import MeasuredTask
from flowgraph.runtime.measure.pool_times import PoolTimes
from tests.unit.flowgraph.lowering.test_pipeline_steps import late, overlapping

PROGRAM = overlapping(late, 1)
SYNC = next(task_name(task) for task in PROGRAM.tasks if isinstance(task, Sync))


def task(name: str, pool: str, begin_s: float, seconds: float, rank: int = 0) -> MeasuredTask:
    return MeasuredTask(task=name, kind="generate", pool=pool, rank=rank, begin_s=begin_s, seconds=seconds)


def test_a_pool_is_idle_between_its_tasks_and_waits_for_weights_before_a_sync() -> None:
    """Sampling takes 4 s and training 6 s, so sampling waits 2 s for each version; nothing waits for rows.

    train   ....uuuuuuuuuuuu
    sample  ggggs.ggggs.gggg
    """
    times = PoolTimes()
    first = [task("policy.generate", "sample", 0.0, 4.0), task("policy.update", "train", 4.0, 6.0)]
    assert times.of_step(PROGRAM, first) == {"idle": {}, "waited_s": {}}, "a step before the first has no end"
    second = [
        task("policy.generate", "sample", 4.0, 4.0),
        task("policy.update", "train", 10.0, 6.0),
    ]
    assert times.of_step(PROGRAM, second)["idle"] == {"sample": 0.0, "train": 0.0}
    third = [
        task(SYNC, "sample", 10.0, 1.0),
        task("policy.generate", "sample", 11.0, 4.0),
        task("policy.update", "train", 16.0, 6.0),
    ]
    measured = times.of_step(PROGRAM, third)
    assert measured["idle"] == {"sample": pytest.approx(2 / 7), "train": 0.0}
    assert measured["waited_s"] == {"sample": pytest.approx(2.0)}, "from 8 s, when it had sampled, to 10 s"


def test_time_between_steps_that_is_left_out_is_neither_idle_nor_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of held-out data takes the 3 seconds from 4 s to 7 s."""
    times, clock = PoolTimes(), iter([4.0, 7.0])
    times.of_step(PROGRAM, [task("policy.generate", "sample", 0.0, 4.0)])
    monkeypatch.setattr("flowgraph.runtime.measure.pool_times.time.time", lambda: next(clock))
    with times.left_out():
        pass
    measured = times.of_step(PROGRAM, [task(SYNC, "sample", 7.0, 1.0), task("policy.generate", "sample", 8.0, 4.0)])
    assert measured == {"idle": {"sample": 0.0}, "waited_s": {"sample": 0.0}}


def test_a_pool_is_as_busy_as_its_busiest_rank_and_the_host_is_no_pool() -> None:
    times = PoolTimes()
    times.of_step(PROGRAM, [task("policy.update", "train", 0.0, 1.0)])
    ranks = [task("policy.update", "train", 2.0, 2.0), task("policy.update", "train", 2.0, 1.0, rank=1)]
    measured = times.of_step(PROGRAM, [*ranks, task("score", "host", 1.0, 9.0)])
    assert measured == {"idle": {"train": pytest.approx(1 / 3)}, "waited_s": {}}
