"""Scales fitted to measured seconds: shrunk towards 1, shared between phases, with an interval, and used everywhere."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import pytest

from flowgraph.cluster.calibration import PHASES, Calibration, Phase, Scale
from placements.calibration.fit_scales import (
    ALONE_SD,
    DEVICE_SD,
    NOISE_SD,
    PHASE_SD,
    ROLE_SD,
    Key,
    Observation,
    fit_scales,
)
from placements.calibration.measured_runs import MeasuredRun, repair
from placements.calibration.timings import Timing
from placements.search.plan_builder import homes_of_blocks
from placements.search.search import find
from placements.step.step_forecast import step_of
from placements.workload.planning_problem import PlanningProblem
from tests.looped import looped
from tests.unit.placements.small_problems import found_of, problem_of

H100 = "h100-sxm-80g"


def observed(phase: Phase, role: str, ratio: float, forecast_s: float = 10.0) -> Observation:
    """Return seconds that are so many times their forecast."""
    key: Key = (phase, role, H100)

    def scaled(calibration: Calibration | None) -> float:
        return forecast_s * (1.0 if calibration is None else calibration.factor_of(*key))

    return Observation(f"{phase} {role}", ratio * forecast_s, (key,), scaled, phase)


def of_factors(**factors: float) -> Calibration:
    """Return a calibration of these phases on H100."""
    scales = (Scale(phase=phase, device=H100, factor=factors.get(phase, 1.0), low=1e-3, high=1e3) for phase in PHASES)
    return Calibration(source="test", scales=tuple(scales))


def scaled_step(problem: PlanningProblem, calibration: Calibration | None) -> dict[str, float]:
    """Return the seconds of the tasks of the best placement, and of its step, with a calibration."""
    homes = homes_of_blocks(problem, found_of("grpo").best.blocks)
    step = step_of(replace(problem, calibration=calibration), homes)
    return {task.name: task.seconds or 0.0 for task in step.tasks} | {"step": step.period_s or 0.0}


def test_one_measurement_is_shrunk_by_the_share_of_its_noise() -> None:
    """With one observation the posterior is known: the prior's variance over that and the noise's."""
    scales = fit_scales([observed("update", "policy.train", 2.0)], "test")
    variance = DEVICE_SD**2 + PHASE_SD**2 + ROLE_SD**2
    wanted = 2.0 ** (variance / (variance + NOISE_SD**2))
    found = scales.scale_of("update", "policy.train", H100)
    assert found is not None and found.factor == pytest.approx(wanted, rel=1e-4)
    sd = (variance * NOISE_SD**2 / (variance + NOISE_SD**2)) ** 0.5
    assert (found.low, found.high) == pytest.approx((wanted * exp(-1.645 * sd), wanted * exp(1.645 * sd)), rel=1e-4)


def test_a_phase_that_was_not_measured_moves_less_and_is_less_certain() -> None:
    scales = fit_scales([observed("update", "policy.train", 2.0)], "test")
    update, forward = scales.scale_of("update", "", H100), scales.scale_of("forward", "ref.infer", H100)
    assert update is not None and forward is not None
    assert 1 < forward.factor < update.factor < 2
    assert forward.high / forward.low > update.high / update.low
    assert (update.measurements, forward.measurements) == (1, 0)


def test_syncs_and_host_work_are_not_moved_by_what_a_device_took() -> None:
    scales = fit_scales([observed("update", "policy.train", 3.0)], "test")
    assert [scales.factor_of(phase, "", H100) for phase in PHASES if phase in ALONE_SD] == [1.0, 1.0]
    scales = fit_scales([observed("sync", "", 30.0)], "test")
    assert scales.factor_of("sync", "", H100) > 15
    assert scales.factor_of("update", "policy.train", H100) == 1.0


def test_more_measurements_narrow_the_interval() -> None:
    once = fit_scales([observed("generate", "policy.sample", 1.5)], "test").scale_of("generate", "", H100)
    often = fit_scales([observed("generate", "policy.sample", 1.5)] * 5, "test").scale_of("generate", "", H100)
    assert once is not None and often is not None
    assert often.high / often.low < once.high / once.low
    assert abs(often.factor - 1.5) < abs(once.factor - 1.5)


def test_another_device_has_no_scale() -> None:
    scales = fit_scales([observed("update", "policy.train", 2.0)], "test")
    assert scales.scale_of("update", "policy.train", "b200") is None
    assert scales.factor_of("update", "policy.train", "b200") == 1.0
    assert scales.devices == (H100,)


def test_extreme_seconds_stay_within_what_a_calibration_may_hold() -> None:
    for ratio in (1e-9, 1e9):
        scales = fit_scales([observed("update", "policy.train", ratio)] * 50, "test")
        assert Calibration.from_json(scales.to_json()) == scales


@looped("phase", PHASES)
def test_each_phase_scales_its_own_tasks_alone(phase: Phase) -> None:
    problem = problem_of("grpo")
    kinds = {"generate": "generate", "logprob": "forward", "update": "update", "sync": "sync", "host": "host"}
    homes = homes_of_blocks(problem, found_of("grpo").best.blocks)
    tasks = step_of(problem, homes).tasks
    plain, scaled = scaled_step(problem, None), scaled_step(problem, of_factors(**{phase: 2.0}))
    for task in tasks:
        own = kinds.get("host" if task.kind == "score" else task.kind) == phase and not task.name.startswith("read ")
        assert scaled[task.name] == pytest.approx((2.0 if own else 1.0) * plain[task.name]), task.name


def test_the_search_minimises_scaled_seconds_and_what_it_reports_is_their_step() -> None:
    """Generation that takes ten times as long moves the best plan, never to one that is slower by that measure."""
    plain = problem_of("grpo", "2x8xh100", model="Qwen/Qwen3-8B")
    scaled = replace(plain, calibration=of_factors(generate=10.0))
    before, after = find(plain), find(scaled)
    kept = step_of(scaled, homes_of_blocks(scaled, before.best.blocks)).period_s
    assert kept is not None and after.best.step_s is not None
    assert after.best.step_s <= kept * (1 + 1e-9)
    assert after.bound_s is None or after.bound_s <= after.best.step_s * (1 + 1e-9)
    own = step_of(scaled, homes_of_blocks(scaled, after.best.blocks)).period_s
    assert own == pytest.approx(after.best.step_s)


def test_one_measured_step_brings_the_step_of_its_plan_near_what_it_took() -> None:
    problem = problem_of("grpo")
    homes = tuple(homes_of_blocks(problem, found_of("grpo").best.blocks))
    plain_s = scaled_step(problem, None)["step"]
    found = repair([MeasuredRun("run", problem, homes, (Timing("step", 1.6 * plain_s, ("step",)),))], "test")
    repaired_s = scaled_step(problem, found.calibration)["step"]
    assert repaired_s == pytest.approx(1.6 * plain_s, rel=0.15)
    assert found.after.median < 0.15 < found.before.median


def test_a_calibration_that_a_plan_was_made_with_does_not_count_twice() -> None:
    problem = problem_of("grpo")
    homes = tuple(homes_of_blocks(problem, found_of("grpo").best.blocks))
    timings = (Timing("policy.update", 2 * scaled_step(problem, None)["policy.update"], ("policy.update",)),)
    again = replace(problem, calibration=of_factors(update=2.0))
    plain, other = (repair([MeasuredRun("run", each, homes, timings)], "test") for each in (problem, again))
    assert plain.calibration == other.calibration
