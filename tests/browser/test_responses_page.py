"""The page of responses in a browser: hostile texts stay texts, colours are chosen, and a token's numbers are read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.diagrams.write.responses_page import ResponsesPage, ShownResponse, TokenScale, responses_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = (
    "<script>document.title='run'</script>",
    "<img src=x onerror=\"document.title='run'\">",
    "\x1b[2J\u202e",
    "w" * 10**6,
)


def page_of_responses() -> ResponsesPage:
    responses = tuple(
        ShownResponse(
            title=f"prompt 0, sample {place} {text[:60]}",
            prompt=((text, text),),
            response=text,
            results=((text[:50], math.nan),),
            facts=(("source", text),),
            tokens=(text, "b", "\n", "") if place else (),
            token_count=4,
            values=((1.0, -1.0, 0.0, math.nan), (0.5, 0.25, math.inf, 2.0)) if place else ((), ()),
        )
        for place, text in enumerate(HOSTILE)
    )
    scales = (TokenScale(name="advantage", signed=True), TokenScale(name="surprise", signed=False, unit="nats"))
    return ResponsesPage(title=HOSTILE[0], about="four", facts=(("a", HOSTILE[1]),), scales=scales, responses=responses)


def test_hostile_responses_run_nothing_and_tokens_can_be_coloured_and_read(browser: Browser, tmp_path: Path) -> None:
    file, said = tmp_path / "page.html", list[str]()
    file.write_text(responses_html(page_of_responses()), encoding="utf-8")
    page = browser.new_context(viewport={"width": 390, "height": 800}).new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if request.url != file.as_uri() else None)
    page.goto(file.as_uri())
    assert page.title().startswith("<script>") and page.locator("img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    tokens = page.locator(".tokens").first
    classes = "box => Array.from(box.children, token => token.className)"
    assert tokens.evaluate(classes) == ["t D", "t d", "t 0", "t x"]
    page.locator("select").select_option(label="surprise")
    assert tokens.evaluate(classes) == ["t A", "t A", "t x", "t D"]
    assert "full colour from 2 nats" in page.locator(".legend").inner_text()
    tokens.focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    assert page.locator(".readout").inner_text() == "token 2 of 4: “b” · advantage -1 · surprise 0.25"
    page.locator("select").select_option(label="nothing")
    assert set(tokens.evaluate(classes)) <= {"t 0", "t 0 current"}
    assert said == []
