"""Accuracy with whole groups left out: a group informs nothing of its own forecast, and the same rows give the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.forecast.groups import Axis, Kind, Sample, accuracy, forecasts_left_out, held, scaled, table_text
from benchmarks.forecast.left_out import (
    KINDS,
    MEASURED_ARCHITECTURES,
    neutral,
    refit_lengths,
    refit_training,
    unmeasured,
)
from placements.hardware.architectures import attained
from placements.hardware.device_profiles import profile
from placements.hardware.engine_constants import bounds

# Forecasts of model a are half of what was measured, of b and c the same: two devices.
SAMPLES = (
    Sample("1", "a", "x", 2.0, 1.0, 1.0),
    Sample("2", "a", "y", 4.0, 2.0, 1.0),
    Sample("3", "b", "x", 3.0, 3.0, 1.0),
    Sample("4", "c", "y", 5.0, 5.0, 1.0),
)
KIND = Kind("toy", "a toy", "s", SAMPLES, scaled, "one scale")


def test_a_group_is_forecast_from_the_others_alone() -> None:
    seen = list[tuple[set[str], set[str]]]()

    def spy(kept: Sequence[Sample], left: Sequence[Sample], axis: Axis) -> list[float]:
        seen.append(({each.group(axis) for each in kept}, {each.group(axis) for each in left}))
        return [each.forecast for each in left]

    forecasts_left_out(SAMPLES, spy, "model")
    assert seen == [({"b", "c"}, {"a"}), ({"a", "c"}, {"b"}), ({"a", "b"}, {"c"})]


def test_what_a_group_measured_does_not_move_its_own_forecast() -> None:
    before = forecasts_left_out(SAMPLES, scaled, "model")
    changed = [replace(each, measured=each.measured * 9) if each.model == "a" else each for each in SAMPLES]
    after = forecasts_left_out(changed, scaled, "model")
    assert before is not None and after is not None
    assert before[:2] == after[:2]


def test_a_scale_is_the_median_of_the_groups_and_not_of_their_rows() -> None:
    many = [*SAMPLES[:1] * 9, *SAMPLES[2:]]
    assert scaled(many, SAMPLES[2:3], "model") == [3.0]


def test_one_group_cannot_be_left_out() -> None:
    assert forecasts_left_out(SAMPLES[:1], scaled, "model") is None
    assert "one group" in table_text([held(replace(KIND, samples=SAMPLES[:2]))])


def test_intervals_are_the_same_each_time_and_hold_the_median() -> None:
    found = [accuracy(SAMPLES, [each.forecast for each in SAMPLES], "model") for _ in range(2)]
    assert found[0] == found[1]
    assert found[0].median_low <= found[0].median <= found[0].median_high
    assert (found[0].low, found[0].high) == (-0.5, 0.0)


@pytest.mark.parametrize("name", ["h100-sxm-80g", "a100-sxm-80g", "l40s-48g", "b200-sxm-180g"])
def test_a_device_left_out_keeps_no_share_of_its_architecture(name: str) -> None:
    device = unmeasured(profile(name))
    has, own = attained(device), attained(replace(device, shares={}))
    others = [each for each in MEASURED_ARCHITECTURES if each.matmul != own.matmul]
    assert len(others) == 3
    assert min(each.memory for each in others) <= has.memory <= max(each.memory for each in others)
    assert has.processors == own.processors


def test_constants_are_fitted_from_the_middle_of_their_bounds() -> None:
    assert all(each.value == (each.low + each.high) / 2 for each in neutral(bounds("megatron")).values())


@pytest.mark.slow(group="planner")
def test_a_training_table_refits_without_the_rows_it_forecasts() -> None:
    kind = KINDS["training_foundry"]()
    left = [each for each in kind.samples if each.model == "70b"]
    kept = [each for each in kind.samples if each.model != "70b"][::4]  # a fit takes a second for every few rows
    slower = [replace(each, measured=each.measured * 2) for each in left]
    assert refit_training(kept, left, "model") == refit_training(kept, slower, "model")


def test_a_guessed_length_is_the_middle_of_its_range_where_a_framework_has_no_other_group() -> None:
    kind = KINDS["rl_guessed"]()
    verl = [each for each in kind.samples if each.case.framework == "verl"][:1]
    (found,) = refit_lengths([], verl, "model")
    assert found > verl[0].forecast  # a longer mean than the sixteenth that was guessed by hand
