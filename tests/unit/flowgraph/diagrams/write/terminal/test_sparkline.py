"""A curve in one line of text."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from flowgraph.diagrams.write.terminal.sparkline import BLOCKS, GAP, sparkline

values = st.lists(st.none() | st.floats(allow_nan=True, allow_infinity=True), max_size=60)


@given(values, st.integers(0, 30))
def test_any_values_give_blocks_and_gaps_no_wider_than_asked(given_: list[float | None], width: int) -> None:
    line = sparkline(given_, width)
    assert len(line) == min(len(given_), width)
    assert set(line) <= {*BLOCKS, GAP}


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=24))
def test_the_highest_value_has_the_highest_block(numbers: list[float]) -> None:
    line = sparkline(numbers, 24)
    assert line[numbers.index(max(numbers))] == max(line)
    assert line[numbers.index(min(numbers))] == min(line)


def test_the_widest_range_of_floats_is_none_too_wide() -> None:
    assert sparkline([-1.7e308, 1.7e308]) == "▁█"


def test_only_missing_values_are_a_blank() -> None:
    assert sparkline([math.nan, None, math.inf]) == "   "
