"""Pictures with a scale as SVG: texts that neither meet nor leave the picture, inert names, and true proportions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from flowgraph.diagrams.model.charts import (
    Bar,
    BarKind,
    Comparison,
    Curves,
    Dot,
    Lane,
    Lanes,
    MemoryChart,
    MemoryColumn,
    Phase,
    PoolShare,
    Scatter,
    Strip,
)
from flowgraph.diagrams.model.picture import Actor, Message, SequenceDiagram
from flowgraph.diagrams.model.series import Series
from flowgraph.diagrams.write.svg.comparison_svg import comparison_svg, row_title
from flowgraph.diagrams.write.svg.curves import curves_svg
from flowgraph.diagrams.write.svg.geometry import Rect
from flowgraph.diagrams.write.svg.lanes_svg import lanes_svg
from flowgraph.diagrams.write.svg.memory_svg import memory_svg
from flowgraph.diagrams.write.svg.scatter_svg import scatter_svg
from flowgraph.diagrams.write.svg.sequence_svg import sequence_svg
from flowgraph.diagrams.write.svg.svg_frame import Look
from flowgraph.diagrams.write.svg.text_lines import TextLine
from tests.looped import looped

SVG = "{http://www.w3.org/2000/svg}"
GIB = 2**30
LONG = "a name of sixty letters that goes on and on until it has them"
LOOK = Look(embedded=True, pools=("train", "generate"))
ACTIVE = {"script", "a", "image", "use", "foreignObject", "animate", "set", "iframe"}


def chain(*lengths: tuple[BarKind, float, str], start: float = 0.0, step: int = 0) -> tuple[Bar, ...]:
    bars = list[Bar]()
    for kind, seconds, label in lengths:
        bars.append(Bar(start, start + seconds, label, kind, "", step))
        start += seconds
    return tuple(bars)


def two_steps(name: str = "update the policy", speed: float = 1.0) -> Lanes:
    train = [
        bar
        for step in (0, 1)
        for bar in chain(
            ("idle", 9, "waits for a rollout"),
            ("logprob", 4, "log-probs"),
            ("advantage", 0.4, "advantages"),
            ("update", 12, name),
            ("transfer", 0.6, "to generate"),
            ("offload", 2, "offload"),
            start=28.0 * step,
            step=step,
        )
    ]
    generate = [
        bar
        for step in (0, 1)
        for bar in chain(
            ("generate", 9, "generate"), ("sync", 1, "sync"), ("idle", 18, "waits"), start=28.0 * step, step=step
        )
    ]
    slower = tuple(Bar(bar.start_s * speed, bar.end_s * speed, bar.label, bar.kind, step=bar.step) for bar in train)
    return Lanes(
        "Two steps",
        (
            Lane("train", "train", tuple(train)),
            Lane("generate", "generate", tuple(generate)),
            Lane("train", "train", slower, measured=True),
        ),
        56.0,
        "What each pool does.",
    )


def extreme_lanes() -> Lanes:
    one = Lane(LONG, LONG, (Bar(0, 0.001, LONG, "update"), Bar(0.001, 36_000, LONG, "generate")))
    return Lanes(LONG * 3, (one, Lane("b", "b", ())), 36_000)


def phases(count: int, gib: float = 3.0) -> tuple[Phase, ...]:
    return tuple(
        Phase(
            f"{'to ' if at % 2 else ''}{('log-probs of the reference', 'generate', 'update')[at % 3]}",
            tuple((f"role {role}", int((1 + (at + role) % 4) * gib * GIB)) for role in range(4)),
            transition=bool(at % 2),
            measured_bytes=int((9 + at % 5) * gib * GIB) if at % 2 == 0 else None,
        )
        for at in range(count)
    )


def memory(pools: int, count: int) -> MemoryChart:
    stores = tuple(
        MemoryColumn(f"pool {at}: 8 devices", "train", phases(count), 32 * GIB, 29 * GIB) for at in range(pools)
    )
    return MemoryChart("Memory of a step", stores, "What each device holds.")


def placements() -> Comparison:
    strips = (
        Strip(
            "split",
            41.2,
            (PoolShare("train", 10, ("policy", "value")), PoolShare("generate", 4, ("policy",))),
            "fits",
            chosen=True,
        ),
        Strip(LONG, 82.4, (PoolShare(LONG, 16, tuple(f"{LONG} {at}" for at in range(9))),), LONG * 4),
        Strip("many", 1e-3, tuple(PoolShare(f"pool {at}", at + 1, ("a",)) for at in range(9)), "x"),
        Strip("too large", None, (PoolShare("train", 16, ("policy",)),), "does not fit: 118.4 GiB on each device"),
        Strip("not known", None, ()),
    )
    return Comparison("Placements", strips, 64, "Each is a row.")


def search(count: int = 30) -> Scatter:
    dots = tuple(
        Dot(20 + (at * 37 % 100) * 0.7, ((at * 53) % 60 + 10) * GIB, f"candidate {at}", "front" if at < 4 else "other")
        for at in range(1, count)
    )
    return Scatter("A search", (Dot(15, 66 * GIB, "split in three", "best"), *dots), "Each is a dot.")


def messages(count: int = 25) -> SequenceDiagram:
    actors = (
        Actor("d", ("driver",), "driver"),
        Actor("g", ("policy", "generates"), "model", "generate"),
        *(Actor(name, (f"{name} model", LONG), "model", "train") for name in ("p", "v", "r")),
    )
    told = (
        Message("d", "d", "read 512 prompts"),
        Message("d", "g", "generate"),
        Message("g", "g", "sample up to 1,024 tokens each, and then some more of them"),
        Message("g", "p", "Rollout: 38 MiB", "transfer"),
        Message("d", "r", LONG * 2),
        Message("r", "p", "LogProbs", "transfer"),
        Message("p", "d", "done", "reply"),
        Message("p", "g", "weights: 14.2 GiB", "sync"),
        Message("r", "r", "a loop of the last one, whose label is long too"),
    )
    return SequenceDiagram("A step", actors, tuple(told[at % len(told)] for at in range(count)), "Who tells whom.")


SERIES = (
    Series("accuracy", "share", tuple((step, step / 100) for step in range(100)), headline=True),
    Series(LONG * 2, "tokens", ((0, -1e6), (10, 123456.0))),
    Series("none", "", ()),
)

PICTURES: dict[str, Callable[[], str]] = {
    "two steps": lambda: lanes_svg(two_steps(speed=1.07)),
    "a short and a long bar": lambda: lanes_svg(extreme_lanes()),
    "no lanes": lambda: lanes_svg(Lanes("none", (), 0.0)),
    "zero seconds": lambda: lanes_svg(Lanes("zero", (Lane("a", "a", (Bar(0, 0, "a", "update"),)),), 0.0)),
    "one pool in memory": lambda: memory_svg(memory(1, 3)),
    "twenty phases": lambda: memory_svg(memory(1, 20)),
    "sixty phases": lambda: memory_svg(memory(2, 60)),
    "eight pools": lambda: memory_svg(memory(8, 4)),
    "no pools": lambda: memory_svg(MemoryChart("none", ())),
    "an empty pool": lambda: memory_svg(MemoryChart("none", (MemoryColumn("a", "a", (), 0, 0),))),
    "placements": lambda: comparison_svg(placements()),
    "no placements": lambda: comparison_svg(Comparison("none", (), 0)),
    "a search": lambda: scatter_svg(search()),
    "a large search": lambda: scatter_svg(search(400)),
    "one candidate": lambda: scatter_svg(Scatter("one", (Dot(0.0, 0, LONG, "best"),))),
    "no candidates": lambda: scatter_svg(Scatter("none", ())),
    "a wide search": lambda: scatter_svg(Scatter("wide", tuple(Dot(10.0**at, GIB, f"c{at}") for at in range(-3, 4)))),
    "messages": lambda: sequence_svg(messages()),
    "few messages": lambda: sequence_svg(messages(3)),
    "no messages": lambda: sequence_svg(SequenceDiagram("none", (), ())),
    "curves": lambda: curves_svg(Curves("a run", SERIES)),
}


@dataclass(frozen=True)
class Text:
    """A text of a picture, and whether it is slanted."""

    words: TextLine
    slanted: bool


def tag(each: Element) -> str:
    return each.tag.removeprefix(SVG)


def texts(picture: Element, *, slanted: bool = False) -> Iterator[Text]:
    """Yield each text that is drawn, with its place."""
    turn = re.match(r"rotate\((-?\d+)", picture.get("transform", ""))
    slanted = slanted or bool(turn and turn[1] != "0")
    for each in picture:
        if tag(each) == "text" and (shown := "".join(each.itertext())):
            x, y, anchor = float(each.attrib["x"]), float(each.attrib["y"]), each.get("text-anchor", "start")
            yield Text(TextLine(x, y, shown, each.get("class", ""), anchor), slanted)  # type: ignore[arg-type]
        else:
            yield from texts(each, slanted=slanted)


def groups(picture: Element, name: str) -> list[Element]:
    return [each for each in picture.iter(f"{SVG}g") if name in each.get("class", "").split()]


def shape(group: Element) -> Rect:
    drawn = next(each for each in group.iter(f"{SVG}rect"))
    return Rect(*(float(drawn.attrib[name]) for name in ("x", "y", "width", "height")))


@cache
def drawn(name: str) -> str:
    return PICTURES[name]()


@pytest.mark.slow(group="commands")
@looped("name", PICTURES)
def test_no_text_meets_another_or_leaves_the_picture(name: str) -> None:
    picture = ElementTree.fromstring(drawn(name))
    page = Rect(0, 0, float(picture.attrib["width"]), float(picture.attrib["height"]))
    level = [each.words for each in texts(picture) if not each.slanted]
    assert [words.text for words in level if not page.holds(words.rect)] == []
    assert [(one.text, other.text) for one, other in combinations(level, 2) if one.rect.meets(other.rect)] == []


@looped("name", PICTURES)
def test_every_number_is_one_and_nothing_in_it_is_active(name: str) -> None:
    picture = ElementTree.fromstring(drawn(name))
    assert picture.attrib["role"] == "img"
    assert picture.findtext(f"{SVG}title")
    assert picture.findtext(f"{SVG}desc")
    assert {tag(each) for each in picture.iter()}.isdisjoint(ACTIVE)
    names = {name for each in picture.iter() for name in each.attrib}
    assert not [name for name in names if name.startswith("on") or name.endswith("href") or name in ("style", "id")]
    values = [value for each in picture.iter() for value in each.attrib.values()]
    assert not [value for value in values if re.search(r"\b(nan|inf)\b|url\(", value)]
    assert not [value for each in picture.iter(f"{SVG}rect") for value in (each.get("width", "0"),) if float(value) < 0]


def test_slanted_names_keep_apart_and_inside() -> None:
    picture = ElementTree.fromstring(memory_svg(memory(2, 60)))
    slanted = [each.words for each in texts(picture) if each.slanted]
    assert slanted
    for one, other in pairwise(slanted):
        assert other.x < one.x or (other.x - one.x) * 0.7072 >= one.size_px
    assert all(words.x - words.width * 0.7072 > 0 for words in slanted)


@pytest.mark.parametrize("draw", [lambda: lanes_svg(two_steps()), lambda: comparison_svg(placements())])
def test_texts_on_a_shape_stay_in_it(draw: Callable[[], str]) -> None:
    picture = ElementTree.fromstring(draw())
    for group in [*groups(picture, "bar"), *groups(picture, "part"), *groups(picture, "unused")]:
        assert all(shape(group).holds(each.words.rect) for each in texts(group))


def test_a_bar_of_twice_the_time_is_twice_as_wide() -> None:
    bars = (Bar(0, 10, "a", "generate"), Bar(10, 30, "b", "update"))
    short, long = groups(ElementTree.fromstring(lanes_svg(Lanes("x", (Lane("a", "a", bars),), 30.0))), "bar")
    assert shape(long).width == pytest.approx(2 * shape(short).width, abs=0.02)
    assert shape(long).left == pytest.approx(shape(short).right, abs=0.02)


def test_a_page_can_draw_bars_and_ticks_anew_from_their_attributes() -> None:
    picture = ElementTree.fromstring(lanes_svg(two_steps(), LOOK))
    (area,) = groups(picture, "zoomed")
    left, right, end_s = (float(area.attrib[f"data-{name}"]) for name in ("left", "right", "end"))
    for group in groups(area, "bar"):
        start = left + (right - left) * float(group.attrib["data-start"]) / end_s
        assert shape(group).left == pytest.approx(start, abs=0.02)
        assert group.attrib["tabindex"] == "0"
        assert group.findtext(f"{SVG}title")
    for group in groups(area, "tick"):
        line = next(group.iter(f"{SVG}line"))
        assert float(line.attrib["x1"]) == pytest.approx(
            left + (right - left) * float(group.attrib["data-at"]) / end_s, abs=0.02
        )
    assert {name for group in groups(area, "bar") for name in group.attrib["class"].split()} >= {"p0", "p1", "bar-idle"}


def test_measured_lanes_lie_under_the_forecast_of_their_pool_and_say_so() -> None:
    picture = ElementTree.fromstring(lanes_svg(two_steps()))
    told = [group.findtext(f"{SVG}title") for group in groups(picture, "lane")]
    assert told == ["train, forecast", "train, measured", "generate, forecast"]
    assert [each.words.text for each in texts(picture)].count("measured") == 1


def test_bars_at_the_same_time_do_not_cover_each_other() -> None:
    bars = (Bar(0, 5, "one", "score"), Bar(3, 8, "other", "score"))
    one, other = groups(ElementTree.fromstring(lanes_svg(Lanes("x", (Lane("a", "a", bars),), 8.0))), "bar")
    assert not shape(one).meets(shape(other))


def test_steps_are_named_where_they_begin() -> None:
    shown = [each.words.text for each in texts(ElementTree.fromstring(lanes_svg(two_steps())))]
    assert {"step 0", "step 1"} <= set(shown)
    assert "step 0" not in [each.words.text for each in texts(ElementTree.fromstring(lanes_svg(extreme_lanes())))]


def test_a_phase_of_twice_the_bytes_is_twice_as_high() -> None:
    halves = (Phase("a", (("m", 10 * GIB),)), Phase("b", (("m", 8 * GIB), ("n", 12 * GIB))))
    chart = MemoryChart("x", (MemoryColumn("a", "a", halves, 80 * GIB, 70 * GIB),))
    low, high = groups(ElementTree.fromstring(memory_svg(chart)), "phase")
    heights = [sum(float(each.attrib["height"]) for each in group.iter(f"{SVG}rect") if each.get("class") == "shape")
               for group in (low, high)]  # fmt: skip
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.05)


def test_what_does_not_fit_is_said_and_drawn_beyond_the_line() -> None:
    chart = MemoryChart(
        "x", (MemoryColumn("a", "a", (Phase("update", (("m", int(83.2 * GIB)),)),), 80 * GIB, 72 * GIB),)
    )
    picture = ElementTree.fromstring(memory_svg(chart))
    shown = [each.words.text for each in texts(picture)]
    assert "peak 83.2 GiB, 104%, over by 3.2 GiB" in shown
    (phase,) = groups(picture, "over")
    (capacity,) = groups(picture, "capacity")
    assert shape(phase).top < float(next(capacity.iter(f"{SVG}line")).attrib["y1"])


def test_a_peak_below_the_line_is_not_named_above_it() -> None:
    """69.6 of 79.6 GiB, of which a plan fills 71.6: the words stand under the pool's name, outside of the plot."""
    chart = MemoryChart(
        "x", (MemoryColumn("a", "a", (Phase("update", (("m", int(69.6 * GIB)),)),), int(79.6 * GIB), int(71.6 * GIB)),)
    )
    picture = ElementTree.fromstring(memory_svg(chart))
    (peak,) = [each for each in texts(picture) if each.words.text.startswith("peak ")]
    (capacity,), (room,) = groups(picture, "capacity"), groups(picture, "room")
    assert peak.words.text == "peak 69.6 GiB, 87%"
    assert peak.words.rect.bottom < float(next(capacity.iter(f"{SVG}line")).attrib["y1"]) - 12
    assert [each.words.text for level in (capacity, room) for each in texts(level)] == [
        "capacity", "79.6 GiB", "plan fills", "71.6 GiB"
    ]  # fmt: skip


def test_one_line_is_drawn_where_a_plan_fills_all() -> None:
    chart = MemoryChart("x", (MemoryColumn("a", "a", (Phase("update", (("m", GIB),)),), 2 * GIB, 2 * GIB),))
    picture = ElementTree.fromstring(memory_svg(chart))
    assert len(groups(picture, "capacity")) == 1
    assert groups(picture, "room") == []


def test_pools_share_out_the_devices_and_times_share_a_scale() -> None:
    picture = ElementTree.fromstring(comparison_svg(Comparison("x", placements().strips[:2], 16), LOOK))
    train, generate = groups(groups(picture, "strip")[0], "part")
    assert shape(train).width == pytest.approx(2.5 * shape(generate).width, rel=0.01)
    split, long = groups(picture, "length")
    assert shape(long).width == pytest.approx(2 * shape(split).width, abs=0.02)
    assert "p1" in generate.attrib["class"].split()


def test_the_chosen_placement_says_so_and_one_that_does_not_fit_has_no_bar() -> None:
    strips = groups(ElementTree.fromstring(comparison_svg(placements())), "strip")
    assert ["chosen" in [each.words.text for each in texts(strip)] for strip in strips] == [True] + [False] * 4
    assert [bool(groups(strip, "length")) for strip in strips] == [True, True, True, False, False]


def test_only_a_placement_without_pools_is_said_not_to_fit() -> None:
    pool = PoolShare("all", 8, ("policy",))
    assert row_title(Strip("a", None, (pool,), "no rate")) == "a: time not known; all, 8 devices: policy. no rate"
    assert row_title(Strip("a", None, (), "1 GiB too much")) == "a: does not fit. 1 GiB too much"


def test_dots_know_their_row_and_the_best_is_a_shape_of_its_own_with_its_name() -> None:
    picture = ElementTree.fromstring(scatter_svg(search()))
    dots = groups(picture, "dot")
    assert sorted(int(dot.attrib["data-row"]) for dot in dots) == list(range(30))
    (best,) = groups(picture, "dot-best")[1:]  # the first is in the legend
    assert [tag(each) for each in best] == ["title", "polygon"]
    assert "1 split in three" in [each.words.text for each in texts(picture)]


def test_seconds_far_apart_are_drawn_by_their_logarithm() -> None:
    dots = tuple(Dot(seconds, GIB, "") for seconds in (1.0, 10.0, 100.0))
    circles = [
        group.find(f"{SVG}circle") for group in groups(ElementTree.fromstring(scatter_svg(Scatter("x", dots))), "dot")
    ]
    first, second, third = sorted(float(each.attrib["cx"]) for each in circles if each is not None)
    assert third - second == pytest.approx(second - first, abs=0.02)


def test_labels_of_messages_lie_between_their_lines_and_off_the_boxes() -> None:
    picture = ElementTree.fromstring(sequence_svg(messages()))
    boxes = [shape(group) for group in groups(picture, "actor")]
    for group in groups(picture, "message"):
        assert not [each for each in texts(group) for box in boxes if each.words.rect.meets(box)]
    assert len(boxes) == 10  # five at the top, and five at the foot of a tall picture
    assert len(groups(ElementTree.fromstring(sequence_svg(messages(3))), "actor")) == 5


SMALL: dict[str, Callable[[], str]] = {
    "lanes": lambda: lanes_svg(
        Lanes("Lanes", (Lane("all", "train", chain(("generate", 6, "generate"), ("idle", 4, "waits"))),), 10.0), LOOK
    ),
    "memory": lambda: memory_svg(
        MemoryChart("Memory", (MemoryColumn("all", "train", phases(2), 32 * GIB, 29 * GIB),)), LOOK
    ),
    "comparison": lambda: comparison_svg(Comparison("Placements", placements().strips[:1], 16), LOOK),
    "scatter": lambda: scatter_svg(Scatter("Search", search(4).dots), LOOK),
    "sequence": lambda: sequence_svg(messages(4), LOOK),
    "curves": lambda: curves_svg(Curves("Run", (Series("loss", "nats", ((0, 1.0), (1, 0.5), (2, 0.25))),)), LOOK),
}


@looped("kind", SMALL)
def test_a_small_one_is_drawn_as_its_golden(kind: str, golden: Callable[[str, str], None]) -> None:
    golden(SMALL[kind](), f"diagrams/{kind}.svg")
