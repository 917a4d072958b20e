"""Round numbers for an axis."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowgraph.diagrams.model.ticks import number_text, pad_range, ticks

wide = st.floats(-1e280, 1e280)


@given(wide, wide)
def test_ticks_lie_within_the_range_and_are_few(one: float, other: float) -> None:
    low, high = pad_range(*sorted((one, other)))
    marks = ticks(low, high)
    slack = (high - low) * 1e-5
    assert 2 <= len(marks) <= 7
    assert list(marks) == sorted(set(marks))
    assert all(low - slack <= mark <= high + slack for mark in marks)


@given(wide)
def test_a_number_is_told_in_few_characters(value: float) -> None:
    assert len(number_text(value)) <= 10
    assert abs(float(number_text(value).replace("k", "e3").replace("M", "e6")) - value) <= abs(value) * 0.006


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_whole_ticks_are_whole(low: int, length: int) -> None:
    assert all(mark == int(mark) for mark in ticks(low, low + length, integers=True))


def test_ticks_that_differ_are_told_apart() -> None:
    for low, high in (
        (0, 1),
        (-0.002, 0.002),
        (9e-7, 1.1e-6),
        (0, 70_000),
        (1000.0, 1000.4),
        (1.2e7, 1.3e7),
        (0, 3e12),
    ):
        marks = ticks(low, high)
        assert len({number_text(mark, marks[1] - marks[0]) for mark in marks}) == len(marks)
