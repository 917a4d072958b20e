"""One Chromium for the pages of a module, and pages in it that watch what they say and ask for."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flowgraph.diagrams.write.page import Page as PageData
from flowgraph.diagrams.write.page import page_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("background-networking", "component-update", "gpu", "quic", "sync")  # it asks for nothing by itself
ARGUMENTS = ("--no-sandbox", "--no-first-run", *(f"--disable-{each}" for each in QUIET))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start the machine's own Chromium, without a window.

    It ends with its module: while it is driven an event loop runs in this thread, and other tests start their own.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no Chromium here: {', '.join(NAMES)}")
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        yield started
        started.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Give `opened(page, **context)`: a page written to a file and opened from there.

    Once the test is done, none of them may have said anything on the console or asked for anything but its file.
    """
    file, said, asked, contexts = tmp_path / "page.html", [], [], []

    def open_page(told: PageData, **context: Any) -> Page:
        file.write_text(page_html(told), encoding="utf-8")
        usual = {"viewport": {"width": 1200, "height": 800}, "reduced_motion": "reduce"}
        contexts.append(browser.new_context(**{**usual, **context}))
        page = contexts[-1].new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        return page

    yield open_page
    for each in contexts:
        each.close()
    assert said == []
    assert set(asked) <= {file.as_uri()}
