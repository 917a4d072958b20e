"""The page as a file: its policy, its texts, what it never holds. `tests/browser` has it as a reader uses it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser

import pytest

from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.write.page import Page, PageTable, Section, TableCell, page_html, source_hash
from flowgraph.diagrams.write.style import page_stylesheet
from tests.browser.sample_page import sample_page
from tests.looped import looped
from tests.unit.flowgraph.diagrams.test_hostile_names import HOSTILE

NAMESPACE = "http://www.w3.org/2000/svg"
VOID = {"meta", "input", "link", "br", "img"}
SAMPLE = page_html(sample_page())


class Reading(HTMLParser):
    """Elements with their attributes, the texts in them, and whether each that was opened was closed in turn."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def values(self, attribute: str) -> list[str]:
        return [attributes[attribute] for _, attributes in self.elements if attribute in attributes]

    def within(self, tag: str) -> Iterator[str]:
        return (text for inside, text in self.texts if inside == tag)


def named(name: str) -> str:
    """Write a page in which everything that a user can name has this name."""
    table = PageTable(
        (name, name), ((TableCell(name), TableCell(name, 1.0)),) * 2, name, numeric=(1,), pools=(name, "")
    )
    section = Section(name, name, "", table, (name, name))
    return page_html(Page(name, name, ((name, name),), (section, section), (name, f"{name} 2")))


def shape(read: Reading) -> list[tuple[str, dict[str, str]]]:
    """Return every element without the texts that name something to a screen reader."""
    return [(tag, {**held, "aria-label": ""} if "aria-label" in held else held) for tag, held in read.elements]


@cache
def benign_shape() -> object:
    return shape(Reading(named("name")))


@looped("name", [each for each in HOSTILE if each.strip()])
def test_a_hostile_name_is_only_text_in_a_page(name: str) -> None:
    told = named(name)
    told.encode("utf-8")  # half a pair of surrogates cannot be written to a file
    read = Reading(told)
    assert shape(read) == benign_shape()
    assert not read.open
    assert next(read.within("title")) == clean(name, 100)
    assert clean(name, 300) in set(read.within("td"))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\ud800-\udfff]", told)


def test_a_page_without_names_still_has_a_title() -> None:
    assert list(Reading(named(" \n ")).within("title")) == ["?"]


def test_every_element_of_a_page_is_closed() -> None:
    assert Reading(SAMPLE).open == []


def test_the_policy_lets_in_what_is_inlined_and_nothing_else() -> None:
    read = Reading(SAMPLE)
    (rules,) = [held["content"] for tag, held in read.elements if tag == "meta" and "http-equiv" in held]
    styles, scripts = list(read.within("style")), list(read.within("script"))
    assert len(scripts) == 1
    assert styles[1] == page_stylesheet()
    assert dict(rule.split(" ", 1) for rule in rules.split("; ")) == {
        "default-src": "'none'",
        "style-src": " ".join(map(source_hash, styles)),
        "script-src": source_hash(scripts[0]),
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_the_policy_stands_before_what_it_rules() -> None:
    assert SAMPLE.index("Content-Security-Policy") < SAMPLE.index("<style>") < SAMPLE.index("<script>")


def test_a_page_asks_for_nothing_and_holds_no_style_or_script_of_an_element() -> None:
    read = Reading(SAMPLE)
    held = {name for _, attributes in read.elements for name in attributes}
    assert not {name for name in held if name.startswith("on")} | (held & {"style", "src", "srcset", "action"})
    assert all(address.startswith("#") for address in read.values("href"))
    assert not {"link", "img", "iframe", "object", "base", "form"} & {tag for tag, _ in read.elements}
    assert not re.search(r"https?:|@import|url\(|\bsrc=", SAMPLE.replace(NAMESPACE, ""))


def test_the_script_writes_no_markup_runs_no_text_and_calls_nobody() -> None:
    (script,) = Reading(SAMPLE).within("script")
    words = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(|fetch|XMLHttp|import\(|localStor"
    )
    assert not re.search(words, script)
    assert script.startswith('"use strict";')


def test_ids_are_there_once_and_every_reference_has_its_id() -> None:
    read = Reading(SAMPLE)
    ids = read.values("id")
    assert len(ids) == len(set(ids))
    assert set(read.values("aria-labelledby")) <= set(ids)
    assert {address.removeprefix("#") for address in read.values("href")} <= set(ids)


def test_headings_start_at_one_and_skip_no_level() -> None:
    assert [tag for tag, _ in Reading(SAMPLE).elements if re.fullmatch(r"h\d", tag)] == ["h1", *["h2"] * 4]


def test_a_number_to_sort_by_is_there_only_where_it_is_one() -> None:
    cells = (
        TableCell("1", 1),
        TableCell("none"),
        TableCell("endless", math.inf),
        TableCell("no number", math.nan),
        TableCell("small", 2e-9),
    )
    table = PageTable(("seconds",), tuple((cell,) for cell in cells), numeric=(0,))
    assert Reading(page_html(Page("t", sections=(Section("s", table=table),)))).values("data-sort") == ["1.0", "2e-09"]


def test_rows_say_their_pool_and_their_place() -> None:
    rows = [held for tag, held in Reading(SAMPLE).elements if tag == "tr" and held.get("data-row") == "3"]
    assert [held.get("class") for held in rows] == ["p0", "p0", "p1"]


def test_one_pool_is_nothing_to_choose_and_one_section_nothing_to_go_to() -> None:
    tags = [tag for tag, _ in Reading(page_html(Page("t", sections=(Section("s"),), pools=("train",)))).elements]
    assert not {"fieldset", "nav"} & set(tags)


def test_a_table_beside_a_picture_is_folded_unless_it_is_to_be_shown() -> None:
    folds = [held for tag, held in Reading(SAMPLE).elements if tag == "details"]
    assert ["open" in held for held in folds] == [False, False, True]


def test_a_picture_with_a_style_of_its_own_is_refused() -> None:
    with pytest.raises(AssertionError, match="embedded"):
        page_html(Page("t", sections=(Section("s", svg="<svg><style></style></svg>"),)))


def test_the_same_page_is_the_same_file() -> None:
    assert page_html(sample_page()) == SAMPLE
