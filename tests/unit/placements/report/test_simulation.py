"""A timeline's picture: every second of every pool is in one bar."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.diagrams.model.charts import Lane, Lanes
from placements.report.simulation import Simulation, simulate
from placements.step.idle_time import OVER
from placements.step.schedule import Schedule, ScheduledTask, TaskWait
from placements.step.timeline import timeline_of
from tests.unit.placements.small_problems import found_of


def is_whole(lane: Lane, end_s: float) -> bool:
    """Return whether bars come one after another from 0 to the end."""
    ends = [0.0, *(bar.end_s for bar in lane.bars)]
    starts = [*(bar.start_s for bar in lane.bars), end_s]
    return starts == pytest.approx(ends) and all(bar.end_s > bar.start_s for bar in lane.bars)


def of_flow(flow: str, steps: int = 3) -> Lanes:
    plan = found_of(flow, "2x8xh100").best.plan()
    assert plan.step is not None
    return simulate(plan.step, steps).chart(flow)


@pytest.mark.parametrize("flow", ["grpo", "ppo", "gpg"])
def test_each_lane_of_a_found_plan_is_busy_or_idle_at_all_times(flow: str) -> None:
    picture = of_flow(flow)
    assert [is_whole(lane, picture.end_s) for lane in picture.lanes] == [True] * len(picture.lanes)
    assert picture.lanes[-1].pool == "host"
    assert {bar.step for lane in picture.lanes for bar in lane.bars if bar.kind != "idle"} == {0, 1, 2}


@given(
    seconds=st.lists(st.integers(0, 5), min_size=4, max_size=4),
    pools=st.lists(st.sampled_from([("a",), ("b",), ("a", "b")]), min_size=4, max_size=4),
    steps=st.integers(1, 3),
)
def test_each_lane_of_any_schedule_is_busy_or_idle_at_all_times(
    seconds: list[int], pools: list[tuple[str, ...]], steps: int
) -> None:
    tasks = tuple(
        ScheduledTask(f"t{i}", "update", at, float(s)) for i, (s, at) in enumerate(zip(seconds, pools, strict=True))
    )
    waits = tuple(TaskWait(one.name, other.name) for one, other in pairwise(tasks))
    picture = Simulation(timeline_of(Schedule(tasks, waits), steps=steps)).chart("")
    assert all(is_whole(lane, picture.end_s) for lane in picture.lanes if picture.end_s)


def test_bars_and_bubbles_say_what_they_are() -> None:
    tasks = ScheduledTask("draw", "generate", ("a",), 2.0), ScheduledTask("learn", "update", ("b",), 1.0)
    picture = Simulation(timeline_of(Schedule(tasks, (TaskWait("draw", "learn"),)))).chart("two pools")
    a, b = picture.lanes
    assert [(bar.label, bar.kind) for bar in a.bars] == [("draw", "generate"), (OVER, "idle")]
    assert [(bar.label, bar.kind) for bar in b.bars] == [("waits for draw", "idle"), ("learn", "update")]
    assert b.bars[1].about == "learn of step 0 takes 1 s, from 2 s on; it starts once draw of step 0 has ended."
    assert b.bars[0].about == "b is idle for 2 s, 66.7% of the time: waits for draw."
    assert picture.about == (
        "1 step in 3 s. a is busy 67% of the time and b is busy 33% of the time. "
        "The longest idle time is that of b: 2 s, waits for draw."
    )
