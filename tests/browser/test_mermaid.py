"""Mermaid's own library reads what we write, and Chromium draws it: each shipped flow, each kind of picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flowgraph.app.drawing.pictures import PictureDetail, picture_named
from flowgraph.diagrams.build.flow_picture import flow_picture
from flowgraph.diagrams.model.charts import Drawing
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.picture import Arrow, Box, Frame, Picture
from flowgraph.diagrams.write.formats import mermaid_text
from flowgraph.flows.flow_files import known_flows
from flowgraph.passes import compile_graph
from tests.browser.plans import planned_on_two_machines
from tests.unit.flowgraph.diagrams.drawings import EVERY
from tests.unit.flowgraph.diagrams.test_hostile_names import HOSTILE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow(group="commands"), pytest.mark.xdist_group("browser")]

LIBRARY = Path(__file__).parents[2] / ".venv" / "npm" / "node_modules" / "mermaid" / "dist" / "mermaid.min.js"

# What is drawn is looked for by anything that could act, and its words are given back.
DRAW = """async text => {
    const { svg } = await mermaid.render("drawn", text);
    const page = new DOMParser().parseFromString(svg, "text/html");
    const acts = [...page.querySelectorAll("*")].filter(each =>
        each.matches("script, iframe, img, object, embed, a, form")
        || [...each.attributes].some(one => one.name.startsWith("on") || /^(href|src|xlink:href)$/.test(one.name)));
    return { acts: acts.map(each => each.outerHTML), words: page.body.textContent, width: svg.length };
}"""


@pytest.fixture(scope="module")
def mermaid(browser: Browser) -> Iterator[Page]:
    """Open an empty page with the library in it; it may ask for nothing."""
    if not LIBRARY.is_file():
        pytest.skip("the npm package mermaid is not installed: make browser")
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.set_content("<!doctype html><body></body>")
    page.add_script_tag(content=LIBRARY.read_text(encoding="utf-8"))
    page.evaluate("mermaid.initialize({ startOnLoad: false })")
    yield page
    page.close()
    assert asked == []


def drawn(page: Page, drawing: Drawing) -> Any:
    text = mermaid_text(drawing)
    page.evaluate("async text => { await mermaid.parse(text) }", text)
    return page.evaluate(DRAW, text)


@pytest.mark.parametrize("name", sorted(known_flows()))
def test_each_shipped_flow_is_read_and_drawn(name: str, mermaid: Page) -> None:
    picture = flow_picture(compile_graph(known_flows()[name].flow.graph()))
    found = drawn(mermaid, picture)
    assert found["acts"] == []
    assert all(box.label[0] in found["words"] for box in picture.boxes)


@pytest.mark.parametrize("name", ["plan", "sequence", "timeline", "memory"])
def test_each_picture_of_a_plan_that_mermaid_can_draw_is_read_and_drawn(name: str, mermaid: Page) -> None:
    found = drawn(mermaid, picture_named(name, planned_on_two_machines(), PictureDetail()))
    assert found["acts"] == []
    assert "pool0" in found["words"]


@pytest.mark.parametrize("kind", ["boxes", "flow", "sequence", "lanes", "memory"])
def test_each_kind_of_picture_with_hostile_names_acts_on_nothing(kind: str, mermaid: Page) -> None:
    for name in HOSTILE:
        assert drawn(mermaid, EVERY[kind](name))["acts"] == []


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_only_words_in_the_drawing(name: str, mermaid: Page) -> None:
    boxes = (Box("n0", (name, name), "model"), Box("n1", (name,), "update", inside="f0"))
    found = drawn(mermaid, Picture(name, boxes, (Frame("f0", name),), (Arrow("n0", "n1", name),)))
    assert found["acts"] == []
    assert clean(name) in found["words"].replace("\u2060", "")
