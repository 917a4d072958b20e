"""Seconds that runs have measured, as they are read from their metrics: medians, and what is no number refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flowgraph.errors import DataError
from placements.calibration.measured_runs import ForecastErrors, MeasuredRun, repair
from placements.calibration.timings import Timing, recorded_timings
from placements.search.plan_builder import homes_of_blocks
from placements.search.search import find
from placements.step.step_forecast import node_seconds, step_of
from tests.looped import looped
from tests.unit.placements.small_problems import found_of, problem_of


def step(**seconds: Any) -> dict[str, Any]:
    """Return a line of a run's metrics."""
    return {"step": 0, "time": {"step_s": 1.0, "nodes_s": seconds}}


def seconds_by_node(lines: Any, where: str) -> dict[str, float]:
    return {timing.label: timing.seconds for timing in recorded_timings(lines, where)}


def test_the_first_step_warms_up_and_does_not_count_unless_it_is_the_only_one() -> None:
    assert seconds_by_node([step(update=9.0), step(update=2.0), step(update=3.0)], "m") == {"update": 2.5}
    assert seconds_by_node([step(update=9.0)], "m") == {"update": 9.0}
    assert seconds_by_node([], "m") == {}


def test_lines_that_tell_of_something_else_are_no_steps() -> None:
    lines = [{"step": 0, "accuracy": 0.5}, step(update=9.0), {"step": 1, "time": {"step_s": 2.0}}, step(update=2.0)]
    assert seconds_by_node(lines, "m") == {"update": 2.0}


def test_a_node_that_some_steps_lack_has_the_median_of_the_others() -> None:
    steps = [step(update=1.0), step(update=2.0), step(update=3.0, evaluate=4.0), step(evaluate=6.0)]
    assert seconds_by_node(steps, "m") == {"update": 2.5, "evaluate": 5.0}


@looped("value", [-1.0, 0, float("nan"), float("inf"), "3", None, True, [1, 2], 10**400])
def test_one_value_that_is_no_seconds_is_refused_with_its_line(value: Any) -> None:
    steps = [step(update=1.0), step(update=1.0), step(update=value), step(update=1.0)]
    with pytest.raises(DataError) as raised:
        seconds_by_node(steps, "runs/a/metrics.jsonl")
    text = str(raised.value)
    assert text.startswith("runs/a/metrics.jsonl:3 update: seconds=")
    assert text.endswith(", but it may be any number above 0")
    assert len(text) < 130


@looped("line", [[1, 2], 3, None, {"time": 3}, {"time": None}, {"time": {"nodes_s": [1]}}])
def test_a_line_that_is_no_table_is_refused(line: Any) -> None:
    with pytest.raises(DataError) as raised:
        seconds_by_node([step(update=1.0), line], "m")
    assert str(raised.value) == "m:2: has no table of seconds by node, as `time.nodes_s`"


def test_misses_carry_their_sign() -> None:
    found = ForecastErrors.of([1.0 / 2.0, 1.0 / 1.0, 0.8 / 1.0])
    assert (found.bias, found.median, found.worst, found.count) == pytest.approx((-0.2, 0.2, 0.5, 3))
    assert str(found) == "median |error| 20.0%, bias -20.0%, worst 50% of 3"


def test_what_the_host_took_scales_host_work_and_nothing_else() -> None:
    """Scoring that takes a quarter of what is forecast moves the host's factor near a quarter."""
    problem = problem_of("grpo")
    seconds = 0.25 * problem.loads[0].rows * problem.host.score_row_s
    homes = tuple(homes_of_blocks(problem, found_of("grpo").best.blocks))
    found = repair([MeasuredRun("run", problem, homes, (Timing("score", seconds, ("score",)),))], "run")
    device = problem.classes[0].model
    assert found.calibration.factor_of("host", "", device) == pytest.approx(0.25, rel=0.1)
    assert found.calibration.factor_of("update", "policy.train", device) == 1.0


def test_a_node_is_forecast_as_its_task_in_the_plan_where_rollouts_continue_across_steps() -> None:
    """A rule scores only the last prompt's rows after sampling; an engine has several batches in flight."""
    problem = replace(problem_of("grpo"), staleness=2, contract="ready")
    homes = homes_of_blocks(problem, find(problem).best.blocks)
    tasks, nodes = {task.name: task for task in step_of(problem, homes).tasks}, node_seconds(problem, homes)
    for load in problem.loads:
        assert nodes[load.node].total_s == pytest.approx(tasks[load.node].seconds)
    assert (nodes["score"].total_s or 0.0) < 2 * problem.loads[0].rows * problem.host.score_row_s / problem.prompts


def test_what_is_not_forecast_is_named() -> None:
    problem = problem_of("grpo")
    homes = tuple(homes_of_blocks(problem, found_of("grpo").best.blocks))
    timings = (Timing("policy.update", 9.0, ("policy.update",)), Timing("prompts", 1.0, ("prompts",)))
    found = repair([MeasuredRun("run", problem, homes, timings)], "run")
    assert found.unused == {"run prompts": "no seconds are forecast for prompts"}


def test_runs_that_measured_nothing_are_refused() -> None:
    with pytest.raises(DataError, match="has no measured seconds of a node with a forecast"):
        repair([], "nothing")
