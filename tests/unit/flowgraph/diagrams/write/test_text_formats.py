"""Every kind of picture as text, whole; what a format cannot draw; and hostile names in each format."""

from __future__ import annotations

import importlib
import re
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Flow
from flowgraph.diagrams.build.flow_picture import flow_picture
from flowgraph.diagrams.model.charts import Drawing
from flowgraph.diagrams.model.labels import SIGNS, clean, signed_label
from flowgraph.diagrams.model.picture import Box, Picture
from flowgraph.diagrams.write.as_data import KINDS, as_json
from flowgraph.diagrams.write.formats import mermaid_text, text_in
from flowgraph.diagrams.write.terminal.any_picture import terminal
from flowgraph.diagrams.write.terminal.terminal_boxes import assign_columns, reading_order
from flowgraph.errors import UsageError
from flowgraph.passes import compile_graph
from tests.compact_json import compact_json
from tests.looped import looped
from tests.unit.flowgraph.diagrams.drawings import EVERY, boxes, flow, lanes
from tests.unit.flowgraph.diagrams.test_hostile_names import HOSTILE

Golden = Callable[[str, str], None]

MORE_HOSTILE = (
    "section x",
    "title x",
    "wrap: x",
    "crit, done",
    "2001-01-01",
    "\\N\\G\\l",
    "<b>x</b>",
    "[bold]x[/bold]",
)
NAMES = (*HOSTILE, *MORE_HOSTILE)
SHIPPED = sorted(path.stem for path in (Path(__file__).parents[5] / "examples").glob("*.py") if path.stem != "__init__")
DOT = ["boxes", "flow"]
MERMAID = [*DOT, "sequence", "lanes", "memory"]


def shipped_flows() -> list[Flow[..., Any]]:
    """Return every flow that examples hold."""
    modules = [importlib.import_module(f"examples.{name}") for name in SHIPPED]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Flow)]
    return list({value.name: cast("Flow[..., Any]", value) for value in found}.values())


PICTURES = {each.name: flow_picture(compile_graph(each.graph())) for each in shipped_flows()}


def graphviz() -> Any:
    """Return the reader of DOT, where Graphviz is installed."""
    return pytest.importorskip("pygraphviz", reason="Graphviz is not installed")


def laid_out(text: str) -> ElementTree.Element:
    """Lay DOT out as Graphviz does, and give the picture that comes of it."""
    graph = graphviz().AGraph(string=text)
    try:
        return ElementTree.fromstring(cast("bytes", graph.draw(prog="dot", format="svg")))
    finally:
        graph.close()


def shown(picture: ElementTree.Element) -> list[str]:
    """Return the lines of text that a picture shows, without the space that keeps them from their line."""
    found = picture.iter("{http://www.w3.org/2000/svg}text")
    return ["".join(each.itertext()).replace("\xa0", " ").strip() for each in found]


@looped("kind", DOT)
def test_the_whole_dot(kind: str, golden: Golden) -> None:
    golden(text_in(EVERY[kind](None), "dot"), f"diagrams/{kind}.dot")


@looped("kind", MERMAID)
def test_the_whole_mermaid(kind: str, golden: Golden) -> None:
    golden(mermaid_text(EVERY[kind](None)), f"diagrams/{kind}.mmd")


@looped("kind", EVERY)
def test_the_whole_terminal(kind: str, golden: Golden) -> None:
    golden(terminal(EVERY[kind](None), 100, colour=False), f"diagrams/{kind}.txt")


def test_the_whole_terminal_in_colour(golden: Golden) -> None:
    coloured = terminal(flow(), 100, colour=True) + terminal(lanes(), 60, colour=True)
    golden(coloured.replace("\x1b", "^"), "diagrams/colour.txt")


@looped("kind", EVERY)
def test_the_whole_json(kind: str, golden: Golden) -> None:
    golden(compact_json(as_json(EVERY[kind](None))), f"diagrams/{kind}.json")


def test_what_a_format_cannot_draw_it_says_and_which_can() -> None:
    with pytest.raises(UsageError) as raised:
        mermaid_text(EVERY["scatter"](None))
    assert (
        str(raised.value) == "Mermaid cannot draw a scatter of candidates\n  hint: these can: svg, png, html, json, txt"
    )
    with pytest.raises(UsageError, match="Graphviz cannot draw a timeline"):
        text_in(lanes(), "dot")
    for name in ("png", "html", "texts"):
        with pytest.raises(UsageError, match=f"^{name} is not a text format"):
            text_in(lanes(), name)
    assert {kind for kind in KINDS if kind not in MERMAID} == {"comparison", "scatter", "curves"}


@looped("name", PICTURES)
def test_every_shipped_flow_is_a_line_for_each_box_and_laid_out_by_graphviz(name: str) -> None:
    picture = PICTURES[name]
    assert [row.box.id for row in assign_columns(picture)] == [box.id for box in reading_order(picture)]
    drawn = terminal(picture, 120, colour=False)
    assert drawn.count("●") == len(picture.boxes)
    assert max(map(len, drawn.splitlines())) <= 120
    graph = graphviz().AGraph(string=text_in(picture, "dot"))
    assert len(cast("list[str]", graph.nodes())) == len(picture.boxes)


@cache
def benign_tags(kind: str) -> list[str]:
    """Return the tags of a picture, as Graphviz lays it out, whose names are harmless."""
    return [each.tag for each in laid_out(text_in(EVERY[kind]("name"), "dot")).iter()]


@pytest.mark.parametrize("kind", DOT)
@looped("name", NAMES)
def test_a_hostile_name_is_only_text_in_dot(name: str, kind: str) -> None:
    told = laid_out(text_in(EVERY[kind](name), "dot"))
    assert [each.tag for each in told.iter()] == benign_tags(kind)
    found = {" ".join(each.split()) for each in shown(told)}
    assert " ".join(clean(name).split()) in found <= {" ".join(signed_label(name, status).split()) for status in SIGNS}
    assert not re.search(r"(?i)\b(href|url)\s*=", re.sub(r'"[^"]*"', '""', text_in(EVERY[kind](name), "dot")))


def skeleton(text: str) -> str:
    """Return a Mermaid text without its labels, by its entities and inert letters."""
    text = re.sub(r"^( +(?:accTitle:|title|section|participant \w+ as)) .*", r"\1", text, flags=re.MULTILINE)
    text = re.sub(r'"[^"\n]*"', '""', text)
    text = re.sub(r"^( +)[^:\n]+ :((?:\w+, )?b\d+x\d+, .*)$", r"\1:\2", text, flags=re.MULTILINE)
    return re.sub(r"^( +a\d+-?-[>)]>?a\d+:) .*$", r"\1", text, flags=re.MULTILINE)


@pytest.mark.parametrize("kind", MERMAID)
@looped("name", NAMES)
def test_a_hostile_name_leaves_every_mermaid_as_it_was(name: str, kind: str) -> None:
    text, benign = mermaid_text(EVERY[kind](name)), mermaid_text(EVERY[kind]("name"))
    assert skeleton(text) == skeleton(benign)
    assert len(text.splitlines()) == len(benign.splitlines())
    body = re.sub(r"axisFormat .*", "", text.partition("\n")[2])
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\ud800-\udfff`%\\]", body)
    assert not re.search(r"^ +(section|title|\d|click) .* :(\w+, )?b\d", body, flags=re.MULTILINE)


@pytest.mark.slow(group="commands")
@pytest.mark.parametrize("kind", EVERY)
@looped("name", NAMES)
def test_a_hostile_name_is_only_letters_in_a_terminal(name: str, kind: str) -> None:
    drawing = EVERY[kind](name)
    plain, coloured = terminal(drawing, 80, colour=False), terminal(drawing, 80, colour=True)
    assert not {letter for letter in plain if unicodedata.category(letter) in ("Cc", "Cf", "Cs")} - {"\n"}
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured).split() == plain.split()
    assert clean(name).split()[0][:8] in plain


labels = st.text(max_size=30)


@given(labels, st.sampled_from(sorted(EVERY)), st.integers(20, 160))
def test_any_name_leaves_a_terminal_its_lines(name: str, kind: str, width: int) -> None:
    text = terminal(EVERY[kind](name), width, colour=False)
    assert not {letter for letter in text if unicodedata.category(letter) in ("Cc", "Cf", "Cs")} - {"\n"}


def test_lines_are_no_wider_than_the_terminal() -> None:
    for make in EVERY.values():
        for width in (60, 80, 120):
            assert max(map(len, terminal(make(None), width, colour=False).splitlines())) <= width


def test_an_empty_picture_of_each_kind_is_drawn() -> None:
    empty: list[Drawing] = [Picture("none", (), (), ())]
    for kind, fields in (
        ("lanes", {"lanes": (), "end_s": 0.0}),
        ("memory", {"stores": ()}),
        ("curves", {"series": ()}),
    ):
        empty.append(cast("Any", KINDS[kind])(title="none", **fields))
    assert [terminal(each, 40, colour=False).splitlines()[0] for each in empty] == ["none"] * 4
    assert text_in(empty[0], "dot").splitlines()[-2:] == ['    label="none"', "}"]
    assert "section" not in mermaid_text(empty[1])


def test_a_box_stands_beneath_what_it_reads_wherever_it_was() -> None:
    picture = flow()
    turned = Picture(picture.title, picture.boxes[::-1], picture.frames, picture.arrows)
    assert [box.id for box in reading_order(turned)] == ["n1", "n0", "n2", "n3", "n4"]
    knot = Picture("knot", boxes().boxes[:2], boxes().frames, (*boxes().arrows[:1], boxes().arrows[0]))
    assert [box.id for box in reading_order(knot)] == ["n0", "n1"]


def test_a_column_is_free_after_its_last_reader() -> None:
    laid = assign_columns(Picture("line", tuple(Box(f"n{i}", ("x",), "host") for i in range(3)), (), ()))
    assert [row.column for row in laid] == [0, 0, 0]
