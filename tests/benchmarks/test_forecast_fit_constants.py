"""Fitting constants to measurements: what was put in comes out, within bounds."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.forecast.fit_constants import MeasuredCase, calibrate, scale_of
from flowgraph.errors import DataError, UnknownNameError
from placements.hardware.engine_constants import ConstantBounds, EngineConstants, TrainingConstants, bounds


@dataclass(frozen=True)
class Line(EngineConstants):
    slope: float
    offset: float
    unused: float


WITHIN = {
    "slope": ConstantBounds(1.0, 0.5, 4.0, "a guess"),
    "offset": ConstantBounds(0.1, 0.0, 1.0, "a guess"),
    "unused": ConstantBounds(3.0, 1.0, 9.0, "a guess"),
}


def line(constants: Line, case: float) -> float:
    return constants.slope * case + constants.offset


def measured(slope: float, offset: float, count: int = 12) -> list[MeasuredCase]:
    return [MeasuredCase(f"row {x}", slope * x + offset, float(x)) for x in range(1, count + 1)]


def test_constants_that_made_the_measurements_are_found_and_one_that_no_row_tells_stays():
    found = calibrate(Line, "line", measured(2.0, 0.5), line, within=WITHIN, source="12 rows")
    assert found.constants.slope == pytest.approx(2.0, rel=0.02)
    assert found.constants.offset == pytest.approx(0.5, abs=0.1)
    assert found.constants.unused == pytest.approx(3.0)
    assert found.after.median < 0.01 < found.before.median
    assert found.moved["slope"].source.startswith("12 rows: median |error| 0.")


def test_one_row_that_is_far_off_hardly_moves_a_fit():
    rows = measured(2.0, 0.5)
    found = calibrate(Line, "line", [*rows, MeasuredCase("slow", 50.0, 3.0)], line, within=WITHIN)
    assert found.constants.slope == pytest.approx(2.0, rel=0.06)


@given(st.floats(0.01, 50), st.floats(0, 20))
def test_no_measurement_moves_a_constant_out_of_its_bounds(slope: float, offset: float):
    found = calibrate(Line, "line", measured(slope, offset), line, within=WITHIN).constants
    for field in fields(Line):
        limits = WITHIN[field.name]
        assert limits.low <= getattr(found, field.name) <= limits.high


def test_the_same_rows_give_the_same_constants():
    twice = [calibrate(Line, "line", measured(1.7, 0.3), line, within=WITHIN) for _ in range(2)]
    assert twice[0] == twice[1]


def test_only_the_named_constants_move():
    found = calibrate(Line, "line", measured(2.0, 0.1, 1), line, within=WITHIN, only=["slope"])
    assert list(found.moved) == ["slope"]
    assert found.constants.offset == 0.1
    with pytest.raises(UnknownNameError, match="no constant `slop`"):
        calibrate(Line, "line", measured(2.0, 0.1), line, within=WITHIN, only=["slop"])


def test_fewer_rows_than_constants_are_refused():
    with pytest.raises(DataError) as raised:
        calibrate(Line, "line", measured(2.0, 0.1, 2), line, within=WITHIN)
    assert str(raised.value) == (
        "constants of line: 2 measurements are too few to fit 3 constants\n"
        "  hint: measure more, or fit only some of slope, offset, unused"
    )


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_row_without_seconds_is_refused(seconds: float):
    rows = [*measured(2.0, 0.1), MeasuredCase("step 7", seconds, 1.0)]
    with pytest.raises(DataError, match="step 7: seconds="):
        calibrate(Line, "line", rows, line, within=WITHIN)


def test_constants_whose_bounds_leave_no_room_are_not_fitted():
    fixed = {name for name, each in bounds("megatron", "2022").items() if each.low == each.high}
    rows = [MeasuredCase(str(n), 1.0, n) for n in range(20)]
    found = calibrate(TrainingConstants, "megatron", rows, lambda c, _: 1.0 / c.matmul_share, version="2022")
    assert fixed and not fixed & set(found.moved)
    assert found.constants.matmul_share == pytest.approx(1.0, rel=0.02)


def test_one_scale_meets_the_median_row():
    rows = [MeasuredCase("", factor * 10.0, 10.0) for factor in (1.5, 2.0, 7.0)]
    assert scale_of(rows, lambda case: case) == 2.0


def test_constants_of_which_the_fit_misses_by_more_are_kept():
    """Four rows are as forecast, three took four times as long: what lies between misses the median row."""
    slow = [MeasuredCase(name, 4 * case + 0.1, case) for name, case in (("a", 1.0), ("b", 1.0), ("c", 2.0))]
    kept = calibrate(Line, "line", [*slow, *measured(1.0, 0.1, 4)], line, within=WITHIN, only=["slope"])
    assert kept.kept and kept.after.median > 0.1 > kept.before.median
    assert (kept.constants, kept.moved) == (Line(1.0, 0.1, 3.0), {})
