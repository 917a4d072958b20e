"""The pages: every link leads somewhere, every decision is in the index, and every word has one meaning."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)[^)]*\)")
ANCHOR = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)#([^)\s]+)\)")


def test_every_link_between_pages_leads_to_a_file() -> None:
    links = [(page, target) for page in PAGES for target in LINK.findall(page.read_text(encoding="utf-8"))]
    assert links
    assert [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()] == []


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_every_link_into_a_page_leads_to_a_heading() -> None:
    found = [(page, *link) for page in PAGES for link in ANCHOR.findall(page.read_text(encoding="utf-8"))]
    there = {page: anchors(page) for page in PAGES}
    into = [(page, (page.parent / target).resolve() if target else page, name) for page, target, name in found]
    lost = [f"{page.name}: #{name}" for page, target, name in into if name not in there[target]]
    assert found
    assert lost == []


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if page.parent.name == "adr" and f"adr/{page.name}" not in index] == []


def test_every_word_of_the_glossary_stands_there_once() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = Counter(re.findall(r"^\| (\*\*.+?\*\*(?: \(.+?\))?) \|", text, re.MULTILINE))
    assert [word for word, times in words.items() if times > 1] == []
    assert len(words) == len(re.findall(r"^\| \*\*", text, re.MULTILINE)) > 100
