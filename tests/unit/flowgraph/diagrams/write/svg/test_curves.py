"""A run's curves: well-formed, inside their panels, broken where a value is missing."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.diagrams.model.charts import Curves
from flowgraph.diagrams.model.series import POINTS_MAX, Series, running_mean, thin_points
from flowgraph.diagrams.write.svg.curves import curves_svg
from tests.looped import looped

SVG = "{http://www.w3.org/2000/svg}"
NAN = math.nan

numbers = st.floats(allow_nan=True, allow_infinity=True)
points = st.lists(st.tuples(st.integers(0, 10_000), st.none() | numbers), max_size=40).map(tuple)
anything = st.builds(Series, st.text(max_size=20), st.text(max_size=8), points, st.booleans())


def drawn(*series: Series) -> Element:
    return ElementTree.fromstring(curves_svg(Curves("a run", series)))


def curve(*values: float | None, name: str = "reward", headline: bool = False) -> Series:
    return Series(name, "", tuple(enumerate(values)), headline)


def panels(picture: Element) -> list[Element]:
    return list(picture.iter(f"{SVG}g"))


def texts(panel: Element) -> list[str]:
    return ["".join(each.itertext()) for each in panel.iter(f"{SVG}text")]


def places(panel: Element) -> list[tuple[float, float]]:
    """Return every place that a line or a dot of a panel goes through."""
    pairs = [
        pair for each in panel.iter(f"{SVG}path") for pair in re.findall(r"(-?[\d.]+) (-?[\d.]+)", each.attrib["d"])
    ]
    dots = [(each.attrib["cx"], each.attrib["cy"]) for each in panel.iter(f"{SVG}circle")]
    return [(float(x), float(y)) for x, y in pairs + dots]


def border(panel: Element) -> tuple[float, float, float, float]:
    """Return left, right and bottom of a panel's axis, and the top of the room that its name leaves."""
    axis = next(each for each in panel.iter(f"{SVG}line") if each.attrib["class"] == "axis")
    name = next(each for each in panel.iter(f"{SVG}text"))
    return float(axis.attrib["x1"]), float(axis.attrib["x2"]), float(name.attrib["y"]), float(axis.attrib["y1"])


def assert_inside(picture: Element) -> None:
    wide, tall = map(float, picture.attrib["viewBox"].split()[2:])
    for panel in panels(picture):
        left, right, top, bottom = border(panel)
        assert 0 <= left < right <= wide
        assert 0 <= top < bottom <= tall
        for x, y in places(panel):
            assert left - 0.01 <= x <= right + 0.01
            assert top <= y <= bottom + 0.01


def test_points_lie_inside_their_panel_and_rise_with_their_value() -> None:
    picture = drawn(curve(0.1, 0.4, 0.9))
    assert_inside(picture)
    xs, ys = zip(*places(panels(picture)[0])[:3], strict=True)
    assert list(xs) == sorted(xs)
    assert list(ys) == sorted(ys, reverse=True)
    assert (xs[1] - xs[0]) == pytest.approx(xs[2] - xs[1], abs=0.02)
    assert (ys[0] - ys[1]) / (ys[1] - ys[2]) == pytest.approx(3 / 5, abs=0.01)


@given(st.lists(anything, max_size=7))
def test_any_series_gives_a_well_formed_picture_with_every_point_inside(series: list[Series]) -> None:
    picture = drawn(*series)
    assert len(panels(picture)) == len(series)
    assert not re.search(r"\b(nan|inf)\b", " ".join(value for each in picture.iter() for value in each.attrib.values()))
    assert_inside(picture)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=5))
def test_any_range_has_at_least_two_ticks(values: list[float]) -> None:
    panel = panels(drawn(curve(*values)))[0]
    if any(abs(value) < 1e290 for value in values):
        assert 2 <= len([each for each in panel.iter(f"{SVG}line") if each.attrib["class"] == "grid"]) <= 7


@looped("missing", [None, NAN, math.inf, -math.inf])
def test_a_missing_value_breaks_the_line(missing: float | None) -> None:
    panel = panels(drawn(curve(1.0, 2.0, missing, 3.0, 2.0)))[0]
    assert [each.attrib["d"].count("L") for each in panel.iter(f"{SVG}path")] == [1, 1]


def test_one_point_is_a_dot_with_its_value() -> None:
    panel = panels(drawn(curve(0.25)))[0]
    assert not list(panel.iter(f"{SVG}path"))
    assert list(panel.iter(f"{SVG}circle"))
    assert "0.25" in texts(panel)


def test_a_constant_is_a_level_line_in_the_middle() -> None:
    panel = panels(drawn(curve(3.0, 3.0, 3.0)))[0]
    left, right, top, bottom = border(panel)
    heights = {y for _, y in places(panel)}
    assert len(heights) == 1
    assert top < heights.pop() < bottom
    assert left < right


@pytest.mark.parametrize("values", [(), (None,), (NAN, math.inf)], ids=str)
def test_a_series_without_values_says_so(values: tuple[float | None, ...]) -> None:
    assert "no values" in texts(panels(drawn(curve(*values)))[0])


def test_no_series_at_all_is_still_a_picture() -> None:
    assert drawn().findtext(f"{SVG}desc") == "No curves to draw."


def test_a_long_noisy_curve_is_pale_under_its_running_mean() -> None:
    noisy = curve(*[i % 2 for i in range(100)])
    lines = [each.attrib["class"] for each in panels(drawn(noisy))[0].iter(f"{SVG}path")]
    assert lines == ["curve pale", "curve"]
    smooth = [value for _, value in running_mean(tuple(enumerate([0.0, 1.0] * 50))) if value is not None]
    assert max(abs(value - 0.5) for value in smooth) < 0.1


def test_a_very_long_curve_keeps_its_spikes_and_few_points() -> None:
    spiky = [(step, 100.0 if step == 77_777 else math.sin(step)) for step in range(100_000)]
    thin = thin_points(spiky)
    assert len(thin) <= POINTS_MAX
    assert (77_777, 100.0) in thin
    assert thin == sorted(thin)


def test_headlines_come_first_and_the_rest_keep_their_order() -> None:
    given_ = [curve(1.0, name="a"), curve(1.0, name="b"), curve(1.0, name="c", headline=True)]
    assert [texts(panel)[0] for panel in panels(drawn(*given_))] == ["c", "a", "b"]


def test_all_panels_share_the_range_of_steps() -> None:
    picture = drawn(Series("long", "", ((0, 1.0), (100, 2.0))), Series("short", "", ((50, 1.0), (100, 2.0))))
    short = panels(picture)[1]
    left, right, _, _ = border(short)
    assert places(short)[0][0] == pytest.approx((left + right) / 2, abs=0.02)


def test_points_out_of_order_are_drawn_by_step() -> None:
    mixed = Series("reward", "", ((2, 3.0), (0, 1.0), (1, 2.0)))
    assert places(panels(drawn(mixed))[0]) == places(panels(drawn(curve(1.0, 2.0, 3.0)))[0])


def test_it_tells_what_it_shows_in_words() -> None:
    picture = drawn(Series("reward", "points", ((1, 0.1), (2, 0.05), (3, 0.9))))
    assert picture.attrib["role"] == "img"
    assert picture.findtext(f"{SVG}title") == "a run"
    told = "reward (points): from 0.1 at step 1 to 0.9 at step 3, between 0.05 and 0.9."
    assert picture.findtext(f"{SVG}desc") == told
    assert panels(picture)[0].findtext(f"{SVG}title") == told


def test_it_has_both_light_and_dark_and_nothing_from_outside() -> None:
    text = curves_svg(Curves("a run", (curve(1.0, 2.0),)))
    assert "@media (prefers-color-scheme: dark)" in text
    outside = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"<script|https?:|url\(|@import|href|\bon\w+=", outside)
