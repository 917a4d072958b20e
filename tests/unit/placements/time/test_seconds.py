"""Seconds by part: sums, multiples, and what comes of a part that is not known."""

from __future__ import annotations

from math import fsum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placements.time.seconds import Seconds, added

PARTS = st.dictionaries(st.sampled_from(["matmul", "attention", "data", "wait"]), st.none() | st.floats(0, 1e6))
KNOWN = st.dictionaries(st.sampled_from(["matmul", "attention", "data", "wait"]), st.floats(0, 1e6))


def unknown(seconds: Seconds) -> list[str]:
    return [name for name, part in seconds.parts.items() if part is None]


def test_no_parts_take_no_time() -> None:
    assert Seconds().total_s == 0
    assert added([]) == Seconds()


def test_what_is_not_known_is_named_and_makes_the_sum_unknown() -> None:
    told = Seconds({"matmul": 2.0, "wait": None, "sync": None})
    assert told.total_s is None
    assert unknown(told) == ["wait", "sync"]


def test_an_unknown_part_stays_unknown_whatever_is_added_to_it_before_or_after() -> None:
    unknown, known = Seconds({"sync": None}), Seconds({"sync": 1.0})
    for order in ([unknown, known, known], [known, unknown, known], [known, known, unknown]):
        assert added(order).parts == {"sync": None}


def test_nothing_is_not_unknown() -> None:
    assert Seconds({"sync": 0.0}).total_s == 0.0
    assert (Seconds({"sync": 0.0}) + Seconds({"sync": 1.0})).total_s == 1.0


@given(st.lists(KNOWN, max_size=5))
def test_the_sum_is_the_sum_of_all_parts(parts: list[dict[str, float]]) -> None:
    total = added(Seconds(dict(each)) for each in parts).total_s
    assert total == pytest.approx(fsum(value for each in parts for value in each.values()))


@given(PARTS, PARTS)
def test_the_order_of_a_sum_of_two_changes_no_part(
    one: dict[str, float | None], other: dict[str, float | None]
) -> None:
    assert dict((Seconds(one) + Seconds(other)).parts) == dict((Seconds(other) + Seconds(one)).parts)


@given(PARTS, st.integers(0, 8))
def test_so_many_times_is_as_often_added(parts: dict[str, float | None], times: int) -> None:
    many = Seconds(parts).times(times)
    told = added([Seconds(parts)] * times)
    if times:
        assert unknown(many) == unknown(told)
        assert many.total_s == pytest.approx(told.total_s)
    assert tuple(many.parts) == tuple(parts)
