"""The errors that plans are printed with: of published rows, and none where no row is of such devices."""

from __future__ import annotations

from flowgraph.cluster.calibration import Calibration, Scale
from flowgraph.cluster.cluster import Device
from flowgraph.cluster.plan import Plan, PlanAssumptions
from placements.report.published_errors import PHASES, UNKNOWN, error_lines, published_errors, step_error
from tests.unit.placements.small_problems import found_of


def plan_on(cluster: str) -> Plan:
    return found_of("grpo", cluster).best.plan()


def plan_of_laptop() -> Plan:
    plan = plan_on("2x8xh100")
    core = Device(kind="cpu", memory_bytes=2**31)
    nodes = tuple(each.model_copy(update={"devices": (core,) * len(each.devices)}) for each in plan.cluster.nodes)
    return plan.model_copy(update={"cluster": plan.cluster.model_copy(update={"nodes": nodes})})


def test_each_kind_that_is_printed_has_rows_and_an_error() -> None:
    known = published_errors()
    assert set(known) == {"step", "memory", *PHASES}
    for each in known.values():
        assert each.rows >= 10
        assert each.models >= 2 or each.devices >= 2
        assert 0 < each.median < 1
        assert each.low < each.high


def test_a_plan_for_gpus_says_the_error_of_its_seconds_and_bytes_in_80_columns() -> None:
    lines = list(error_lines(plan_on("2x8xh100")))
    step = published_errors()["step"]
    assert lines[0] == f"error of a step's seconds and tokens/s: {step}"
    assert f"± {step.median:.0%}, from {step.rows} published steps" in lines[0]
    assert "generate ± " in lines[1]
    assert "memory -" in lines[2]
    assert max(map(len, lines)) <= 80


def test_a_calibrated_plan_says_the_error_that_its_forecast_would_have_without() -> None:
    plan = plan_on("1x8xh100")
    scale = Scale(phase="update", device="h100-sxm-80g", factor=1.2, low=1.1, high=1.3, measurements=1)
    assumed = PlanAssumptions(
        flow="grpo",
        models={"policy": "Qwen/Qwen3-0.6B"},
        batch=64,
        prompt_tokens="512",
        calibration=Calibration(source="a run", scales=(scale,)),
    )
    scaled = plan.model_copy(update={"assumed": assumed})
    assert next(iter(error_lines(scaled))).startswith("error of seconds without the calibration: ")
    assert step_error(plan) and not step_error(scaled)
    assert all(len(line) <= 80 for line in error_lines(scaled))


def test_a_plan_without_seconds_says_the_error_of_its_bytes_alone() -> None:
    plan = plan_on("2x8xh100").model_copy(update={"step": None})
    (line,) = error_lines(plan)
    assert line.startswith("error of memory -")
    assert len(line) <= 80


def test_a_laptop_has_no_published_rows_and_that_is_said() -> None:
    plan = plan_of_laptop()
    assert list(error_lines(plan)) == [UNKNOWN]
    assert step_error(plan) == ""
    assert len(UNKNOWN) <= 80
