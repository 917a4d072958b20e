"""Take the pictures of `diagrams.md` and `samples.md` that are pixels: pages in a browser, and one PNG of ours.

Run it from anywhere: `python docs/screenshots.py`. It needs Chromium and the packages of `flowgraph-rl[draw]` and
playwright; no test runs it. Not here: the SVGs (`generate.py`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, sync_playwright

DOCS = Path(__file__).resolve().parent
PICTURES = DOCS / "pictures"
QUESTION = (
    *("--model", "Qwen2.5-7B", "--cluster", "2x8xh100", "--batch", "512", "--prompt-tokens", "512"),
    *("--response-tokens", "mean=1k,p99=4k", "--set", "policy.generate.max_tokens=4096"),
    *("--set", "policy.update.minibatch=128", "--set", "critic.update.minibatch=128"),
    *("--placement", "split:nemo-aligner"),
)
TRAINED = ("--cluster", "1xcpu", "--steps", "30", "--batch", "8", "--set", "policy.generate.n=4", "--eval-every", "0")
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


@dataclass(frozen=True)
class Shot:
    """One picture of the page: how wide and high in CSS pixels, in which colours, and the section at its top."""

    name: str
    width: int
    height: int
    colours: Literal["light", "dark"] = "light"
    section: str = ""
    points_at: str = ""  # what is traced, as a selector
    scale: float = 1.0


SHOTS = (
    Shot("page_light", 1200, 1200, points_at=".kind-generate[data-id]"),
    Shot("page_dark", 1200, 1100, "dark", section="A step in time"),
    Shot("page_phone", 390, 844, section="A step in time", scale=2.0),
)


def main() -> None:
    """Draw the page and the PNG, then take each picture."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page = Path(folder, "ppo.html")
        draw("ppo", *QUESTION, "-o", str(page))
        draw("grpo", "-o", str(PICTURES / "flow.png"))
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=list(ARGUMENTS))
        for shot in SHOTS:
            take(browser, page, shot)
        run, responses = Path(folder, "ppo-1"), Path(folder, "responses.html")
        command("run", "ppo", *TRAINED, "-o", str(run))
        command("rollouts", str(run), "--sort", "-score", "--limit", "4", "-o", str(responses))
        take_responses(browser, responses)
        browser.close()


def draw(*arguments: str) -> None:
    """Run `flowgraph draw` of this checkout."""
    command("draw", *arguments)


def command(*arguments: str) -> None:
    """Run a command of this checkout."""
    subprocess.run([sys.executable, "-m", "flowgraph", *arguments], cwd=DOCS.parent, check=True)


def take_responses(browser: Browser, path: Path) -> None:
    """Colour the tokens by log-prob ratio, go to the second one, and keep what is seen."""
    page = browser.new_page(viewport={"width": 1000, "height": 700})
    page.goto(path.as_uri())
    page.locator(".colour select").select_option("2")
    page.locator(".tokens").first.focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=PICTURES / "rollouts_page.png")
    page.close()


def take(browser: Browser, path: Path, shot: Shot) -> None:
    """Open the page as a reader would, and keep what is seen."""
    page = browser.new_page(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme=shot.colours,
        device_scale_factor=shot.scale,
        reduced_motion="reduce",
    )
    page.goto(path.as_uri())
    if shot.section:
        page.get_by_role("link", name=shot.section, exact=True).click()
    if shot.points_at:
        page.locator(shot.points_at).first.hover()
    page.screenshot(path=PICTURES / f"{shot.name}.png")
    page.close()


if __name__ == "__main__":
    main()
