"""The page as a reader uses it: pointed at, filtered, zoomed, sorted, by mouse, by keyboard, on a phone, on paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from flowgraph.cluster.plan import TaskKind
from flowgraph.diagrams.model.charts import Bar, Lane, Lanes
from flowgraph.diagrams.write.page import Page, PageTable, Section, TableCell
from flowgraph.diagrams.write.svg.lanes_svg import lanes_svg
from flowgraph.diagrams.write.svg.svg_frame import Look
from tests.browser.sample_page import END_S, sample_page

if TYPE_CHECKING:
    from playwright.sync_api import Page as Shown

    Opened = Callable[..., Shown]

pytestmark = [pytest.mark.browser, pytest.mark.slow(group="commands"), pytest.mark.xdist_group("browser")]

PHONE = {"viewport": {"width": 360, "height": 720}, "has_touch": True, "is_mobile": True}


@pytest.fixture
def page(opened: Opened) -> Shown:
    return opened(sample_page())


def kept(page: Shown) -> list[str]:
    """Return the titles of what stays while something is traced; of everything while nothing is."""
    return page.locator(".tracing .kept > title").all_text_contents()


def column(page: Shown, section: int, place: int) -> list[str]:
    return page.locator(f"#s{section} tbody tr > :nth-child({place + 1})").all_text_contents()


def bar(page: Shown, title: str) -> Any:
    return page.locator(f".lanes .bar:has(title:text-matches('^{title}:'))").first


def seen(mark: Any) -> bool:
    return bool(mark.get_attribute("opacity") != "0")


def range_s(page: Shown) -> list[float]:
    return [float(word) for word in page.locator("output").inner_text().removesuffix(" s").split(" to ")]


def opacity(page: Shown, selector: str) -> float:
    return float(page.locator(selector).first.evaluate("each => getComputedStyle(each).opacity"))


# ---------------------------------------------------------------------------------------------------- graphs


def test_a_box_that_is_pointed_at_stays_with_its_arrows_and_their_ends(page: Shown) -> None:
    page.hover("[data-id=n3] rect")
    assert sorted(kept(page)) == ["LogProbs", "Rollout", "generate", "logprobs", "update"]
    assert opacity(page, "[data-id=n0]") < 0.2
    page.hover("h1")
    assert kept(page) == []
    assert opacity(page, "[data-id=n0]") == 1


def test_an_arrow_that_is_pointed_at_stays_with_its_two_ends(page: Shown) -> None:
    place = page.locator(".graph").bounding_box()
    assert place is not None
    page.mouse.move(place["x"] + 170, place["y"] + 104)  # four units beside its thin line
    assert sorted(kept(page)) == ["Prompts", "generate", "prompts"]


def test_the_label_of_an_arrow_goes_with_it(page: Shown) -> None:
    page.hover(".label[data-to=n1]")
    assert sorted(kept(page)) == ["Prompts", "generate", "prompts"]
    assert opacity(page, ".label[data-to=n1]") == 1
    page.hover("[data-id=n3] rect")
    assert opacity(page, ".label[data-to=n1]") < 0.2


def test_a_click_holds_what_is_traced_until_escape_or_a_second_click(page: Shown) -> None:
    box = page.locator("[data-id=n0]")
    box.click()
    page.hover("[data-id=n4] rect")
    assert sorted(kept(page)) == ["Prompts", "generate", "prompts"]
    assert box.get_attribute("aria-pressed") == "true"
    box.click()
    assert kept(page) == []
    box.click()
    page.keyboard.press("Escape")
    assert kept(page) == []
    assert box.get_attribute("aria-pressed") == "false"


def test_a_graph_is_one_stop_of_the_tab_key_and_arrow_keys_go_through_it(page: Shown) -> None:
    first = page.locator(".graph [tabindex='0']")
    assert first.count() == 1
    first.focus()
    page.keyboard.press("ArrowRight")
    assert kept(page)
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.locator(".graph .held").count() == 1
    assert page.locator(".graph :focus").count() == 0


# ---------------------------------------------------------------------------------------------------- pools


def test_a_pool_that_is_left_out_steps_back_in_pictures_and_leaves_tables(page: Shown) -> None:
    page.uncheck("input[value='1']")
    assert opacity(page, ".graph .box.p1") < 0.2
    assert opacity(page, ".lanes .bar.p1") < 0.2
    assert opacity(page, ".lanes .bar.p0") == 1
    assert page.locator("#s2 tbody tr:visible").count() == 2
    page.check("input[value='1']")
    assert opacity(page, ".graph .box.p1") == 1
    assert page.locator("#s2 tbody tr:visible").count() == 4


# ---------------------------------------------------------------------------------------------------- the timeline


def test_zooming_in_draws_bars_wider_and_ticks_at_round_seconds(page: Shown) -> None:
    update = bar(page, "update").locator("rect")
    width = float(update.get_attribute("width") or 0)
    page.click("button[aria-label='Zoom in']")
    assert range_s(page) == pytest.approx([END_S / 4, END_S * 3 / 4], abs=0.1)
    assert float(update.get_attribute("x") or 0) + float(update.get_attribute("width") or 0) == pytest.approx(940)
    assert float(bar(page, "logprobs").locator("rect").get_attribute("width") or 0) > 140
    ticks = page.locator(".lanes .tick:not([display=none]) text").all_text_contents()
    assert ticks == ["15 s", "20 s", "25 s", "30 s", "35 s", "40 s"]
    assert not seen(bar(page, "sync policy.sample"))
    page.click("button[aria-label='Whole timeline']")
    assert float(update.get_attribute("width") or 0) == pytest.approx(width, abs=0.01)
    assert page.locator(".lanes .tick:visible text").all_text_contents()[0] == "0 s"


def test_a_text_is_shown_where_it_fits_and_whole_where_it_fits_whole(page: Shown) -> None:
    sync = bar(page, "sync policy.sample")
    assert not sync.locator("text").is_visible()
    sync.focus()
    for _ in range(4):
        page.keyboard.press("+")
        page.keyboard.press("Shift+ArrowRight")
        page.keyboard.press("Shift+ArrowRight")
    assert sync.locator("text").is_visible()
    assert sync.locator("text").text_content() == "sync policy.sample"


def test_the_keyboard_zooms_moves_and_goes_back(page: Shown) -> None:
    page.locator("#s1 .scroll").first.focus()
    page.keyboard.press("+")
    page.keyboard.press("Shift+ArrowLeft")
    assert range_s(page) == pytest.approx([END_S / 8, END_S * 5 / 8], abs=0.1)
    page.keyboard.press("-")
    assert range_s(page) == [0, END_S]


def test_a_bar_that_is_reached_by_keyboard_comes_into_view(page: Shown) -> None:
    bar(page, "idle").focus()
    for _ in range(3):
        page.keyboard.press("+")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    start, end = range_s(page)
    assert start < 56.9 < end
    assert page.locator(".lanes :focus > title").text_content() == "sync policy.sample: 56.9 to 58.3 s"


def test_the_wheel_zooms_at_the_pointer_and_only_with_ctrl(page: Shown) -> None:
    update = bar(page, "update")
    update.scroll_into_view_if_needed()
    update.hover()
    page.mouse.wheel(0, -50)
    assert range_s(page) == [0, END_S]
    update.hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    page.locator("output:not(:text-matches('^0'))").wait_for()  # the wheel turns after the call is back
    middle = (36.4 + 56.9) / 2
    assert range_s(page) == pytest.approx([middle / 2, middle / 2 + END_S / 2], abs=0.2)


def test_the_mouse_takes_the_timeline_along(page: Shown) -> None:
    page.click("button[aria-label='Zoom in']")
    page.locator(".lanes").scroll_into_view_if_needed()
    place = page.locator(".lanes").bounding_box()
    assert place is not None
    page.mouse.move(place["x"] + 600, place["y"] + 60)
    page.mouse.down()
    page.mouse.move(place["x"] + 500, place["y"] + 60, steps=4)
    page.mouse.move(place["x"] + 395, place["y"] + 60, steps=4)
    page.mouse.up()
    page.mouse.move(place["x"] + 200, place["y"] + 60)
    assert range_s(page) == pytest.approx([END_S * 3 / 8, END_S * 7 / 8], abs=0.1)


def drawn(page: Shown) -> dict[str, list[Any]]:
    """Return where bars, ticks and the edges of steps are, in thousandths, and what ticks say."""
    read = (
        "found => found.map(each => ['x', 'width', 'x1', 'x2'].map(name => Math.round(each.getAttribute(name) * 1e3)))"
    )
    marks = {name: page.locator(f".zoomed {name}").evaluate_all(read) for name in (".bar rect", "line", ".step-edge *")}
    return marks | {"ticks": page.locator(".tick text").all_text_contents()}


@pytest.mark.parametrize("scale", [1.0, 0.001, 10.0])
def test_a_timeline_of_ours_is_whole_again_as_it_was_drawn(opened: Opened, scale: float) -> None:
    steps = range(3)
    kinds: tuple[tuple[TaskKind, float, float], ...] = (("generate", 0, 31), ("transfer", 31, 31.2), ("sync", 57, 58))
    bars = [
        Bar((58 * step + start) * scale, (58 * step + end) * scale, f"{kind} of the policy", kind, step=step)
        for step in steps
        for kind, start, end in kinds
    ]
    lanes = Lanes("Steps", (Lane("train", "train", tuple(bars)),), 174 * scale)
    told = Page("t", sections=(Section("Steps", svg=lanes_svg(lanes, Look(embedded=True))),))
    before = drawn(opened(told, java_script_enabled=False))
    page = opened(told)
    assert drawn(page) == before
    for _ in range(4):
        page.click("button[aria-label='Zoom in']")
    page.click("button[aria-label='Later']")
    unit = page.locator("output").inner_text().split()[-1]
    assert page.locator(".tick.made text").count() > 3
    assert all(text.endswith(f" {unit}") for text in page.locator(".tick text").all_text_contents())
    assert drawn(page)[".bar rect"] != before[".bar rect"]
    page.click("button[aria-label='Whole timeline']")
    assert drawn(page) == before


# ---------------------------------------------------------------------------------------------------- candidates


def test_a_column_sorts_up_then_down_then_as_ranked(page: Shown) -> None:
    ranked = column(page, 2, 0)
    head = page.locator("#s2 thead th").nth(1)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(page, 2, 1) == ["58.3", "64.0", "71.9", "does not fit"]
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert column(page, 2, 1) == ["71.9", "64.0", "58.3", "does not fit"]
    head.locator("button").click()
    assert head.get_attribute("aria-sort") is None
    assert column(page, 2, 0) == ranked


def test_rows_that_are_equal_stay_as_they_are_ranked_and_text_sorts_as_text(page: Shown) -> None:
    ranked = column(page, 2, 0)
    page.locator("#s2 thead button").nth(3).click()
    assert column(page, 2, 0) == ranked
    page.locator("#s2 thead button").nth(0).click()
    assert column(page, 2, 0) == sorted(ranked)


def test_a_dot_and_its_row_are_marked_together_sorted_or_not(page: Shown) -> None:
    page.locator("#s2 thead button").nth(1).click()
    page.hover(".dot[data-row='1'] circle")
    assert page.locator("tr.marked th").all_text_contents() == ["split 6 + 2"]
    page.hover("#s2 tr[data-row='2']")
    assert page.locator(".dot.marked > title").all_text_contents() == ["hybrid 8"]
    page.locator(".dot[data-row='0']").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("tr.marked[data-row='1']").count() == 1


# ---------------------------------------------------------------------------------------------------- the page


def test_light_and_dark_are_as_the_viewer_has_them_until_one_is_chosen(opened: Opened) -> None:
    page = opened(sample_page(), color_scheme="dark")
    colour = "getComputedStyle(document.body).backgroundColor"
    paper = "getComputedStyle(document.querySelector('.fg .page')).fill"
    assert page.evaluate(colour) == page.evaluate(paper) == "rgb(13, 17, 23)"
    toggle = page.get_by_role("button", name="Dark")
    assert toggle.get_attribute("aria-pressed") == "true"
    toggle.click()
    assert page.evaluate(colour) == page.evaluate(paper) == "rgb(255, 255, 255)"
    page.reload()
    assert page.evaluate(colour) == "rgb(255, 255, 255)"
    assert toggle.get_attribute("aria-pressed") == "false"


def test_a_picture_is_kept_as_a_file_of_its_own(page: Shown, tmp_path: Path) -> None:
    with page.expect_download() as told:
        page.get_by_role("button", name="Download SVG: One step").click()
    assert told.value.suggested_filename == "one-step.svg"
    told.value.save_as(tmp_path / "one-step.svg")
    svg = ElementTree.parse(tmp_path / "one-step.svg").getroot()
    style = svg.findtext("{http://www.w3.org/2000/svg}style")
    assert style is not None
    assert ".fg .bar-update .shape" in style


@pytest.mark.parametrize("width", [360, 380, 768, 1200, 1900])
def test_the_page_itself_never_scrolls_sideways(opened: Opened, width: int) -> None:
    page = opened(sample_page(), viewport={"width": width, "height": 720})
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_long_name_does_not_widen_the_page(opened: Opened) -> None:
    long = "x" * 5000
    table = PageTable((long, "b"), ((TableCell(long), TableCell("1")),))
    page = opened(
        Page(long, long, ((long, long),), (Section(long, long, "", table, (long,)),) * 2, (long, "b")), **PHONE
    )
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_on_a_phone_a_tap_holds_and_another_lets_go(opened: Opened) -> None:
    page = opened(sample_page(), **PHONE)
    page.tap("[data-id=n0]")
    assert sorted(kept(page)) == ["Prompts", "generate", "prompts"]
    page.tap("[data-id=n0]")
    assert kept(page) == []


def test_on_paper_everything_is_shown_in_light(opened: Opened) -> None:
    page = opened(sample_page(), color_scheme="dark")
    page.click(".theme")
    page.click(".theme")
    page.uncheck("input[value='0']")
    page.click("[data-id=n0]")
    page.click("button[aria-label='Zoom in']")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.querySelector('.fg .page')).fill") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(31, 35, 40)"
    assert not page.locator(".tools:visible, .save:visible, .topbar:visible, summary:visible").count()
    assert all(table.is_visible() for table in page.locator("table").all())
    assert opacity(page, ".lanes .bar.p0") == opacity(page, ".graph [data-id=n4]") == 1
    assert page.locator("#s2 tbody tr:visible").count() == 4
    assert seen(bar(page, "sync policy.sample"))
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert not seen(bar(page, "sync policy.sample"))
    assert page.locator("details[open]").count() == 1


def test_a_printed_page_is_a_file_of_a_few_sheets(page: Shown) -> None:
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_without_a_script_everything_is_there(opened: Opened) -> None:
    page = opened(sample_page(), java_script_enabled=False)
    assert [each.is_visible() for each in page.locator("main section, svg.fg").all()] == [True] * 7
    assert page.locator("button:visible, fieldset:visible").count() == 0
    page.locator("summary").first.click()
    assert page.locator("table").first.is_visible()


def test_a_page_of_nothing_says_nothing(opened: Opened) -> None:
    page = opened(Page(""))
    assert page.locator("h1").inner_text() == "?"


# ---------------------------------------------------------------------------------------------------- screen readers


def tree(page: Shown) -> list[dict[str, Any]]:
    """Return what a screen reader is told: role, name and properties of each part."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    return [each for each in nodes if not each["ignored"]]


def role(node: dict[str, Any]) -> str:
    return str(node.get("role", {}).get("value", ""))


def name(node: dict[str, Any]) -> str:
    return str(node.get("name", {}).get("value", "")).strip()


CONTROLS = {
    "button",
    "checkbox",
    "link",
    "DisclosureTriangle",
    "group",
    "region",
    "navigation",
    "figure",
    "image",
    "img",
}


def test_every_control_picture_and_landmark_has_a_name(page: Shown) -> None:
    nodes = tree(page)
    controls = [node for node in nodes if role(node) in CONTROLS]
    assert len(controls) > 40
    assert [role(node) for node in controls if not name(node)] == []
    assert {"main", "banner", "navigation"} <= {role(node) for node in nodes}
    assert page.get_attribute("html", "lang") == "en"


def test_what_can_be_focused_is_told_with_its_name(page: Shown) -> None:
    said = {(role(node), name(node)) for node in tree(page)}
    assert ("button", "generate") in said
    assert ("image", "update: 36.4 to 56.9 s") in said or ("img", "update: 36.4 to 56.9 s") in said
    assert ("checkbox", "train") in said


def test_headings_go_down_one_step_at_a_time(page: Shown) -> None:
    levels = [
        next(each["value"]["value"] for each in node["properties"] if each["name"] == "level")
        for node in tree(page)
        if role(node) == "heading"
    ]
    assert levels == [1, 2, 2, 2, 2]
