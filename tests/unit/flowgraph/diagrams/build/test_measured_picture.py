"""Lanes of measured steps, and how they stand beneath those of a forecast."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from flowgraph.cluster.plan import StepForecast
from flowgraph.diagrams.build.measured_lanes import lanes_beside
from flowgraph.diagrams.build.measured_picture import measured_lanes
from flowgraph.diagrams.model.charts import Lane, Lanes
from flowgraph.runtime.measure.measured_step import MeasuredStep
from flowgraph.runtime.measure.measured_task import MeasuredTask

START_S = 1_800_000_000.0


def step_of(number: int, *tasks: MeasuredTask) -> MeasuredStep:
    return MeasuredStep(step=number, timed=StepForecast(tasks=(), waits=(), period_s=1.0), forecast=(), tasks=tasks)


def task(name: str, pool: str, begin_s: float, seconds: float, rank: int = 0) -> MeasuredTask:
    return MeasuredTask(name, "update", "m.train", pool, rank, START_S + begin_s, seconds)


def test_the_busiest_rank_of_each_pool_is_shown_and_the_host_last() -> None:
    steps = [
        step_of(7, task("a", "host", 0, 1), task("b", "pool", 1, 2, 0), task("b", "pool", 1, 3, 1)),
        step_of(8, task("b", "pool", 5, 2, 0), task("b", "pool", 5, 2, 1)),
    ]
    pool, host = measured_lanes(steps)
    assert (pool.label, pool.pool, pool.measured, host.pool) == ("pool", "pool", True, "host")
    told = [(bar.label, bar.start_s, bar.end_s, bar.step) for bar in pool.bars]
    assert told == [("idle", 0, 1, 7), ("b", 1, 4, 7), ("idle", 4, 5, 8), ("b", 5, 7, 8)]
    assert pool.bars[1].about == "b of step 7 took 3 s on rank 1 of pool as m.train."
    assert [(bar.label, bar.end_s) for bar in host.bars] == [("a", 1), ("idle", 7)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=6))
def test_bars_never_overlap_and_leave_nothing_out(spans: list[tuple[int, int]]) -> None:
    (lane,) = measured_lanes([step_of(0, *(task("t", "p", begin, seconds) for begin, seconds in spans))])
    last = max(begin + seconds for begin, seconds in spans) - min(begin for begin, _ in spans)
    assert all(one.end_s == other.start_s for one, other in pairwise(lane.bars))
    assert not lane.bars or (lane.bars[0].start_s, lane.bars[-1].end_s) == (0, last)


def test_nothing_measured_has_no_lanes() -> None:
    assert measured_lanes([]) == measured_lanes([step_of(0)]) == ()


def test_a_measured_lane_stands_beneath_the_forecast_of_its_pool() -> None:
    predicted = Lanes("t", (Lane("pool", "pool", ()), Lane("host", "host", ())), 3.0, "One step.")
    measured = measured_lanes([step_of(0, task("a", "host", 0, 1), task("b", "pool", 1, 4), task("c", "more", 1, 1))])
    both = lanes_beside(predicted, measured)
    assert [(lane.label, lane.measured) for lane in both.lanes] == [
        ("pool", False),
        ("pool", True),
        ("more", True),
        ("host", False),
        ("host", True),
    ]
    assert (both.end_s, both.about) == (5.0, "One step. Measured, the same steps took 5 s.")
    assert lanes_beside(predicted, ()).end_s == 3.0
    assert lanes_beside(Lanes("t", (), 0.0), measured).about == "Measured, the steps took 5 s."
