"""Round numbers for an axis."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowgraph.diagrams.model.ticks import labelled_ticks, number_text, pad_range, ticks

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
        marks = labelled_ticks(low, high)
        assert len({text for _, text in marks}) == len(marks)


def test_the_ticks_of_an_axis_have_one_notation_and_0_has_no_letter() -> None:
    for high, texts in (
        (2e6, "0 0.5M 1.0M 1.5M 2.0M"),
        (4e6, "0 1M 2M 3M 4M"),
        (2e3, "0 0.5k 1.0k 1.5k 2.0k"),
        (2e9, "0 5e8 1e9 1.5e9 2e9"),
        (2e-4, "0 5e-5 1e-4 1.5e-4 2e-4"),
        (400.0, "0 100 200 300 400"),
    ):
        assert [text for _, text in labelled_ticks(0, high)] == texts.split()
    assert [text for _, text in labelled_ticks(980_000, 1_060_000)] == ["980k", "1000k", "1020k", "1040k", "1060k"]
