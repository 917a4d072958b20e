"""Sixty hostile names in every picture: they are text, and the markup around them is as it was."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from xml.etree import ElementTree

import pytest

from flowgraph.diagrams.model.charts import (
    Bar,
    Comparison,
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
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.picture import Actor, Arrow, Box, Frame, Message, Picture, SequenceDiagram
from flowgraph.diagrams.write.svg.comparison_svg import comparison_svg
from flowgraph.diagrams.write.svg.graph_svg import graph_svg
from flowgraph.diagrams.write.svg.lanes_svg import lanes_svg
from flowgraph.diagrams.write.svg.memory_svg import memory_svg
from flowgraph.diagrams.write.svg.scatter_svg import scatter_svg
from flowgraph.diagrams.write.svg.sequence_svg import sequence_svg
from flowgraph.diagrams.write.svg.svg_frame import Look
from tests.looped import looped
from tests.unit.flowgraph.diagrams.test_hostile_names import BENIGN, HOSTILE

Shape = list[tuple[str, tuple[tuple[str, str], ...]]]

SVG = "{http://www.w3.org/2000/svg}"
LOOK = Look(embedded=True)
GIB = 2**30


def lanes(name: str) -> str:
    bars = (Bar(0, 3, name, "update", name), Bar(3, 3.001, name, "idle"), Bar(4, 9, name, "generate", step=1))
    return lanes_svg(Lanes(name, (Lane(name, name, bars), Lane(name, name, bars, measured=True)), 9, f"{name}."), LOOK)


def memory(name: str) -> str:
    phases = (
        Phase(name, ((name, 9 * GIB), (f"other {name}", GIB))),
        Phase(f"to {name}", ((name, 5 * GIB),), transition=True),
    )
    return memory_svg(MemoryChart(name, (MemoryColumn(name, name, phases, 8 * GIB, 7 * GIB),), f"{name}."), LOOK)


def comparison(name: str) -> str:
    strips = (
        Strip(name, 1.0, (PoolShare(name, 4, (name, name)),), f"{name}.", chosen=True),
        Strip(name, None, (), f"{name}."),
    )
    return comparison_svg(Comparison(name, strips, 8, f"{name}."), LOOK)


def scatter(name: str) -> str:
    dots = (Dot(1, 2 * GIB, f"a {name}", "best", name), Dot(5, GIB, f"b {name}", "front", name))
    return scatter_svg(Scatter(name, dots, f"{name}."), LOOK)


def sequence(name: str) -> str:
    actors = (Actor("a0", (name,), "driver"), Actor("a1", (name, name), "model", f"pool {name}"))
    messages = (Message("a0", "a1", name), Message("a1", "a1", name), Message("a1", "a0", name, "reply"))
    return sequence_svg(SequenceDiagram(name, actors, messages, f"{name}."), LOOK)


def boxes(name: str) -> str:
    """Draw boxes and arrows; lines are broken to fit, so every name is cut to one word of the same length."""
    word = "".join(clean(name).split())[:4].ljust(4, "x")
    pair = Box("n0", (word,), "host", about=name), Box("n1", (word,), "update", "f0", about=f"about {name}")
    return graph_svg(Picture(name, pair, (Frame("f0", word),), (Arrow("n0", "n1", word),)), LOOK)


@cache
def benign_shape(draw: Callable[[str], str]) -> Shape:
    return shape(draw(BENIGN))


def shape(text: str) -> Shape:
    """Return every element of a picture but texts with the names of its attributes, and its classes.

    A name may be on one line or on two; of texts a test of their own asks that they are nothing else.
    """
    return [
        (
            each.tag,
            tuple((name, value if name == "class" else "") for name, value in each.attrib.items()),
        )
        for each in ElementTree.fromstring(text).iter()
        if each.tag not in (f"{SVG}text", f"{SVG}tspan")
    ]


@pytest.mark.parametrize("draw", [lanes, memory, comparison, scatter, sequence, boxes])
@looped("name", HOSTILE)
def test_a_hostile_name_is_only_text(name: str, draw: Callable[[str], str]) -> None:
    text = draw(name)
    assert shape(text) == benign_shape(draw)
    for each in ElementTree.fromstring(text).iter(f"{SVG}text"):
        assert each.attrib.keys() <= {"class", "x", "y", "text-anchor"}
        assert {inner.tag for inner in each} <= {f"{SVG}tspan"}
    assert ElementTree.fromstring(text).findtext(f"{SVG}title") == clean(name, 100)
