"""The page that `draw -o x.html` writes, of a plan with three pools, as a reader uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowgraph.app.drawing.page import target_page
from flowgraph.app.drawing.pictures import PictureDetail
from tests.browser.plans import planned_on_two_machines

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow(group="commands"), pytest.mark.xdist_group("browser")]

SECTIONS = [
    "The plan",
    "Which model is on which device",
    "A step in time",
    "A step in memory",
    "The named placements",
    "The search",
    "A step, call by call",
    "The flow",
]


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """Open the page; it may say nothing on the console and ask for nothing but itself."""
    file, said, asked = tmp_path / "plan.html", list[str](), list[str]()
    file.write_text(target_page(planned_on_two_machines(), PictureDetail()), encoding="utf-8")
    opened = browser.new_context(viewport={"width": 1200, "height": 900}, reduced_motion="reduce").new_page()
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(file.as_uri())
    yield opened
    opened.context.close()
    assert said == []
    assert set(asked) == {file.as_uri()}


def test_it_has_every_picture_of_a_plan_and_fits_a_screen_and_a_phone(page: Page) -> None:
    assert page.locator("main h2").all_inner_texts() == SECTIONS
    assert page.locator("main svg.fg").count() == len(SECTIONS) - 1
    for width in (1200, 380):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_box_that_is_pointed_at_keeps_its_arrows_alone(page: Page) -> None:
    plan = page.locator("svg.graph").first
    box = plan.locator(".box.kind-generate").first
    box.hover()
    name = box.get_attribute("data-id")
    own = plan.locator(f".arrow[data-from={name}], .arrow[data-to={name}]").count()
    assert plan.locator(".arrow.kept").count() == own > 0
    assert plan.locator(".arrow:not(.kept)").count() > 0


def test_a_pool_that_is_left_out_leaves_every_picture_and_table(page: Page) -> None:
    boxes = page.locator(".pools input")
    assert boxes.count() == 3
    rows = page.locator("main table tbody tr:visible")
    before = rows.count()
    boxes.nth(1).uncheck()
    assert rows.count() < before
    assert page.locator(".lane.p1.off, .bar.p1.off, .p1.off").count() > 0
    boxes.nth(1).check()
    assert rows.count() == before and page.locator(".off").count() == 0


def test_the_timeline_is_zoomed_and_given_back_as_it_was(page: Page) -> None:
    lanes = page.locator("svg.lanes")
    bar = lanes.locator(".zoomed .bar-update .shape").first
    before = float(bar.get_attribute("width") or 0)
    page.click("button[aria-label='Zoom in']")
    assert float(bar.get_attribute("width") or 0) > before
    page.click("button[aria-label='Whole timeline']")
    assert float(bar.get_attribute("width") or 0) == before


def test_candidates_are_sorted_and_tied_to_their_dots(page: Page) -> None:
    search = page.locator("section").filter(has=page.locator("svg.scatter"))
    seconds = search.locator("tbody tr > :nth-child(4)")
    heads = search.locator("thead button")
    heads.filter(has_text="a step takes").click()
    told = [float(each) for each in seconds.evaluate_all("cells => cells.map(each => each.dataset.sort)")]
    assert told == sorted(told)
    row = search.locator("tbody tr").first
    row.hover()
    place = row.get_attribute("data-row")
    assert "marked" in (search.locator(f".dot[data-row='{place}']").get_attribute("class") or "")
