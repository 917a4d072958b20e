"""Lengths: as they are read, what holds of them whatever they are, and the longest of many by counting."""

from __future__ import annotations

from itertools import pairwise, product
from math import exp
from statistics import mean

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.errors import SettingError
from placements.workload.lengths import POINTS, LengthDistribution
from tests.looped import looped

points = st.lists(st.floats(1, 1e5), min_size=1, max_size=6).map(lambda each: LengthDistribution(tuple(sorted(each))))


@given(points, st.integers(1, 4))
def test_the_longest_of_some_draws_is_the_mean_over_all_ways_to_draw_them(
    lengths: LengthDistribution, count: int
) -> None:
    by_counting = mean(max(draw) for draw in product(lengths.points, repeat=count))
    assert lengths.longest_of(count) == pytest.approx(by_counting)


@given(points)
def test_the_longest_rises_with_the_draws_from_the_mean_to_the_most(lengths: LengthDistribution) -> None:
    longest = [lengths.longest_of(count) for count in (1, 2, 8, 64, 10**6)]
    assert longest[0] == pytest.approx(lengths.mean)
    assert longest[-1] == pytest.approx(lengths.most)
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(longest))


@given(points)
def test_what_remains_is_half_the_squares_over_the_mean_and_as_old_as_it_is_long(lengths: LengthDistribution) -> None:
    assert lengths.remaining.mean == pytest.approx(lengths.age, rel=1e-3)
    assert lengths.remaining.most <= lengths.most


@given(points, st.floats(0, 1), st.floats(0, 1))
def test_quantiles_ascend_between_the_least_and_the_most(lengths: LengthDistribution, one: float, other: float) -> None:
    low, high = lengths.quantile(min(one, other)), lengths.quantile(max(one, other))
    assert lengths.points[0] <= low <= high + 1e-9 <= lengths.most + 1e-6


@looped("text, tokens", [("1024", 1024), ("16k", 16_000), ("1.5K", 1500), ("2m", 2_000_000), ("1_024", 1024)])
def test_a_plain_number_is_one_length(text: str, tokens: float) -> None:
    assert LengthDistribution.parse(text) == LengthDistribution.fixed(tokens)


@looped(
    "text", ["mean=2k,p99=16k", "mean=2k,p99=16k,max=16k", "p50=1k,p90=4k", "mean=3k,p50=2k", "max=8k,mean=2k,p10=500"]
)
def test_what_is_said_holds_of_the_lengths_as_they_are_cut(text: str) -> None:
    lengths = LengthDistribution.parse(text)
    for name, value in lengths.quantities:
        told = {"mean": lengths.mean, "max": lengths.most}.get(name) or lengths.quantile(float(name[1:]) / 100)
        assert told == pytest.approx(value, rel=0.01)


def test_a_sigma_and_a_median_are_the_lognormal_of_them() -> None:
    lengths = LengthDistribution.parse("p50=2k,sigma=0.5")
    assert len(lengths.points) == POINTS
    assert lengths.mean == pytest.approx(2000 * exp(0.5**2 / 2), rel=1e-3)
    assert lengths.quantile(0.84134) == pytest.approx(2000 * exp(0.5), rel=1e-3)


def test_one_quantity_alone_has_the_usual_spread_beside_it() -> None:
    assert LengthDistribution.parse("mean=2k") == LengthDistribution.parse("mean=2k,sigma=0.7")


@looped(
    "text, error",
    [
        ("lots", "--response: tokens='lots': write tokens as 1024, 16k or 1.5k"),
        ("-3", "--response: tokens='-3': lengths are 1 to 100,000,000 tokens"),
        ("0.5", "--response: tokens='0.5': lengths are 1 to 100,000,000 tokens"),
        ("1e-3", "--response: tokens='1e-3': lengths are 1 to 100,000,000 tokens"),
        ("99999999999999", "--response: tokens='99999999999999': lengths are 1 to 100,000,000 tokens"),
        ("mean=1e308", "--response: mean='1e308': lengths are 1 to 100,000,000 tokens"),
        ("mean=1k,max=1e308", "--response: max='1e308': lengths are 1 to 100,000,000 tokens"),
        (
            "mean=10m,sigma=3",
            (
                "--response: lengths='mean=1e+07,sigma=3': the longest would have 7,889,752,549 tokens, and "
                "100,000,000 are the maximum: max=N cuts them"
            ),
        ),
        ("nan", "--response: tokens='nan': write tokens as 1024, 16k or 1.5k"),
        ("mean=2x", "--response: mean='2x': write tokens as 1024, 16k or 1.5k"),
        ("mean=2k,16k", "--response: lengths='mean=2k,16k': '16k' needs a name: mean, p50, p99, sigma, max"),
        ("p50=2k,p50=3k", "--response: lengths='p50=2k,p50=3k': p50 is given twice"),
        ("max=3k", "--response: lengths='max=3000': add a mean or a p50"),
        ("sigma=0.9", "--response: lengths='sigma=0.9': add a mean or a p50"),
        ("mean=2k,sigma=9", "--response: sigma='9': a spread of logarithms is above 0, at most 3"),
        ("mean=4k,max=3k", "--response: lengths='mean=4000,max=3000': mean exceeds max=3000"),
    ],
)
def test_a_bad_text_says_what_is_wrong_with_it(text: str, error: str) -> None:
    with pytest.raises(SettingError) as caught:
        LengthDistribution.parse(text, "--response")
    assert str(caught.value) == error


def test_an_unknown_quantity_names_the_nearest() -> None:
    with pytest.raises(SettingError, match="no setting `men`\n  hint: did you mean `mean`"):
        LengthDistribution.parse("men=2k")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mean=2k,p99=80k", "with that mean, the nearest p99 of a lognormal is"),
        ("p50=2k,p99=1k", "with that p50, the nearest p99 of a lognormal is 2000"),
        ("mean=2k,p50=3k", "with that mean, the nearest p50 of a lognormal is 2000"),
        ("mean=2k,p50=1k,p99=9k", "two of these define a lognormal, and max cuts it"),
    ],
)
def test_quantities_that_no_lognormal_has_are_refused(text: str, why: str) -> None:
    with pytest.raises(SettingError, match=why):
        LengthDistribution.parse(text)


@looped(
    "column",
    [
        [[1, 2, 3], [4], None],
        pa.array([[1, 2, 3], [4]], pa.large_list(pa.int32())),
        pa.chunked_array([[[1, 2, 3]], [[4]]]),
        [3, 1],
        pa.chunked_array([pa.array([1, None, 3], pa.uint16())]),
    ],
)
def test_a_column_of_ids_or_of_counts_is_its_lengths(column: object) -> None:
    assert LengthDistribution.of_column(column) == LengthDistribution((1.0, 3.0))


def test_of_a_long_column_neighbours_are_put_together_at_the_same_mean() -> None:
    lengths = LengthDistribution.of_column(range(1, 3 * POINTS + 1))
    assert lengths.points[:2] == (2.0, 5.0)
    assert len(lengths.points) == POINTS
    assert lengths.mean == (3 * POINTS + 1) / 2


@looped("column", [[], [None], ["text"], [0, 0], [-1, 4], [1.5], [10**18], [5, 10**9]])
def test_a_column_without_lengths_is_refused(column: list[object]) -> None:
    with pytest.raises(SettingError, match="lengths: column="):
        LengthDistribution.of_column(column)


def test_a_text_with_a_change_is_the_text_with_the_other_quantity() -> None:
    assert LengthDistribution.parse("mean=2k,p99=16k,max=20k").with_changes({"p99": "12k"}) == LengthDistribution.parse(
        "mean=2k,p99=12k,max=20k"
    )
    assert LengthDistribution.fixed(2000).with_changes({"p99": "8k"}) == LengthDistribution.parse("mean=2k,p99=8k")
    assert LengthDistribution.fixed(2000).with_changes({"mean": "3k"}) == LengthDistribution.fixed(3000)


def test_a_column_is_scaled_to_a_mean_and_stretched_to_a_percentile_at_its_mean() -> None:
    drawn = LengthDistribution.of_column(range(100, 5000))
    scaled = drawn.with_changes({"mean": "5k"})
    assert scaled.points == pytest.approx([point * 5000 / drawn.mean for point in drawn.points])
    stretched = drawn.with_changes({"p99": "9k"})
    assert (stretched.mean, stretched.quantile(0.99)) == pytest.approx((drawn.mean, 9000), rel=0.01)
    assert drawn.with_changes({"max": "2k"}) == drawn.cut(2000)


def test_lengths_print_so_that_they_can_be_read_again() -> None:
    lengths = LengthDistribution.parse("mean=2k,p99=16k,max=20k")
    assert (str(lengths), str(LengthDistribution.fixed(512))) == ("mean=2000,p99=16000,max=20000", "512")
    assert LengthDistribution.parse(str(lengths)).points == pytest.approx(lengths.points)
