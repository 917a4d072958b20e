"""Sixty names that would be syntax, script or trouble to some reader: inert in every format, and still readable."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from functools import cache
from xml.etree import ElementTree

import pytest

from examples.gpg import gpg
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool
from flowgraph.diagrams.build.plan_picture import plan_picture
from flowgraph.diagrams.model.charts import Curves
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.picture import Arrow, Box, Frame, Picture
from flowgraph.diagrams.model.series import Series
from flowgraph.diagrams.write.mermaid.flowchart import escaped, mermaid
from flowgraph.diagrams.write.svg.curves import curves_svg
from flowgraph.lowering.lower import lower
from flowgraph.passes import compile_graph
from tests.looped import looped

HOSTILE = (
    '"',
    "'",
    '"]',
    '"] --> n0["x',
    '"]:::update',
    "\"]; click n0 call alert('x')",
    "`",
    "`**bold**`",
    "``` ```",
    "<script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</svg><img src=x onerror=alert(1)>",
    "<br/>",
    "<b>bold</b>",
    "<!-- comment -->",
    "]]>",
    "<![CDATA[x]]>",
    "<?xml version='1.0'?>",
    "<!DOCTYPE svg [<!ENTITY e SYSTEM 'file:///etc/passwd'>]>&e;",
    "&",
    "&amp;",
    "&lt;script&gt;",
    "&#60;b&#62;",
    "#quot;",
    "#35;",
    "#lt;b#gt;",
    "#",
    ";",
    "a; b",
    "%%",
    "%% comment",
    '%%{init: {"securityLevel": "loose"}}%%',
    "---",
    "---\ntitle: x\n---",
    "end",
    "subgraph x",
    "graph TD",
    "style n0 fill:#000",
    "class n0 hidden",
    'click n0 "javascript:alert(1)"',
    "linkStyle 0 stroke:red",
    "classDef default fill:#000",
    "accTitle: x",
    "n0",
    "n0 --> n1",
    "n0@{ shape: circle }",
    "1. first",
    "- item",
    "+ item",
    "# heading",
    "**bold** _thin_ ~~gone~~",
    "[text](javascript:alert(1))",
    "www.example.com",
    "https://example.com/?a=1&b=2",
    "someone@example.com",
    "fa:fa-ban",
    "$$x^2$$",
    "a\\nb",
    "line one\nline two\r\nthree\ttab",
    "\x1b[31mred\x1b[0m \x07\x00\x7f",
    "\u202egnp.tfel-ot-thgir\u202c",
    "zero\u200bwidth\ufeff",
    "half \ud83d pair \uffff",
    "Z" + "\u0301\u0322\u0334\u0489" * 40 + "algo",
    "{{ 7 * 7 }}{% raw %}",
    "url(https://example.com/x.svg)",
    "* { display: none }",
    "模型 модель 🎯",
    "x" * 5000,
    "",
    " \n ",
)

BENIGN = "name"
GPG = compile_graph(gpg.graph())


def picture(name: str) -> Picture:
    boxes = (
        Box("n0", (name, name), "model"),
        Box("n1", (name,), "update", inside="f1"),
    )
    frames = (Frame("f0", name), Frame("f1", name, parent="f0"))
    return Picture(name, boxes, frames, (Arrow("n0", "n1", name), Arrow("n1", "n0", name)))


def plan(name: str) -> Picture:
    """Draw a plan whose pools, machines and parts of memory have this name, as a plan's file may have it."""
    machine = Machine(
        name=name, devices=(Device(kind="cpu", memory_bytes=2**30),) * 3, host_memory_bytes=2**30, cores=1
    )
    pools = (
        Pool.model_construct(name=name, devices=((name, 0),)),
        Pool.model_construct(name=f"{name} 2", devices=((name, 1), (name, 2))),
    )
    placed = tuple(
        PlacedRole(role=role.name, pool=pool.name, engine="local", layout=Layout(), memory={name: 2**20})
        for role, pool in zip(roles(GPG), pools, strict=True)
    )
    told = Plan(
        flow=name, structure_hash=structure_hash(GPG), cluster=Cluster(nodes=(machine,)), pools=pools, placed=placed
    )
    return plan_picture(lower(GPG, told))


def curves(name: str) -> str:
    return curves_svg(Curves(name, (Series(name, name, ((0, 0.0), (1, 1.0))), Series(name, "", ()))))


def skeleton(text: str) -> str:
    """Return a Mermaid text without its labels."""
    return re.sub(r"accTitle: .*", "accTitle:", re.sub(r'"[^"\n]*"', '""', text))


def read_back(label: str) -> str:
    """Read Mermaid's entities as the library does, without the joiner that nobody sees."""
    read = html.unescape(re.sub(r"#(\w+);", lambda found: f"&{'#' * found[1].isdigit()}{found[1]};", label))
    return read.replace("\u2060", "")


def test_there_are_sixty_of_them() -> None:
    assert len(set(HOSTILE)) >= 60


@cache
def benign_skeleton(draw: Callable[[str], Picture]) -> str:
    return skeleton(mermaid(draw(BENIGN)))


@pytest.mark.parametrize("draw", [picture, plan])
@looped("name", HOSTILE)
def test_a_hostile_name_leaves_the_mermaid_around_it_as_it_was(name: str, draw: Callable[[str], Picture]) -> None:
    text = mermaid(draw(name))
    assert skeleton(text) == benign_skeleton(draw)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\ud800-\udfff]", text)
    for label in re.findall(r'"([^"\n]*)"', text.partition("\n")[2]):
        assert not re.search(r"[`<>&%${}\[\]()\\:@/~*^|]", label.replace("<br/>", ""))


@looped("name", HOSTILE)
def test_a_hostile_name_still_reads_as_itself_in_mermaid(name: str) -> None:
    assert read_back(escaped(name)) == clean(name)


@looped("name", HOSTILE)
def test_a_hostile_name_is_only_text_in_an_svg(name: str) -> None:
    told, benign = ElementTree.fromstring(curves(name)), ElementTree.fromstring(curves(BENIGN))
    shape = [(each.tag, sorted(each.attrib)) for each in told.iter() if not each.tag.endswith("tspan")]
    assert shape == [(each.tag, sorted(each.attrib)) for each in benign.iter() if not each.tag.endswith("tspan")]
    assert told.findtext("{http://www.w3.org/2000/svg}title") == clean(name, 100)


def test_a_clean_label_is_one_short_line() -> None:
    assert all(0 < len(clean(name)) <= 60 and "\n" not in clean(name) for name in HOSTILE)
    assert clean("模型 модель 🎯") == "模型 модель 🎯"
