"""One page for a plan or a run: its facts, its pictures and their tables, in one file that asks for nothing.

A page is data; `templates/page.html.j2` writes it, with the style and the script that lie beside it. What the policy in
the page lets run is that style and that script, by their hashes, and nothing else. Pictures are drawn elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.write.style import page_stylesheet
from flowgraph.diagrams.write.svg.svg_frame import Look, environment

STYLE = "page.css"
SCRIPTS = (  # the last one starts what is in the others
    "page_theme.js",
    "page_pools.js",
    "page_keyboard.js",
    "page_tables.js",
    "page_trace.js",
    "page_bars.js",
    "page_ticks.js",
    "page_timeline.js",
    "page.js",
)
TITLE_CHARACTERS, LINE_CHARACTERS, TEXT_CHARACTERS = 100, 300, 4000  # a heading, a cell or a fact, a paragraph


@dataclass(frozen=True)
class TableCell:
    """What a cell of a table shows, and the number that its column is sorted by, if not by the text."""

    text: str
    sort: float | None = None


@dataclass(frozen=True)
class PageTable:
    """A table in the order in which its rows rank; `numeric` columns, from 0, stand right, digit below digit.

    `pools` names the pool of each row ("" for none), where rows belong to pools. Beside a picture a table is folded
    unless it is `shown`. The row of number n is linked with the picture's dot of that number.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    caption: str = ""
    numeric: tuple[int, ...] = ()
    pools: tuple[str, ...] = ()
    shown: bool = False


@dataclass(frozen=True)
class Section:
    """A part of a page: what it is about in a sentence, a picture of ours drawn to be embedded, the same as a table."""

    title: str
    about: str = ""
    svg: str = ""
    table: PageTable | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """A whole page: its key facts as (name, value), its sections, the pools that can be chosen among, in order.

    Its pictures are drawn with `Look(embedded=True, pools=…)` of the same pools.
    """

    title: str
    about: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    sections: tuple[Section, ...] = ()
    pools: tuple[str, ...] = ()


def page_html(page: Page) -> str:
    """Write a page as one HTML file: texts are a user's and are escaped, pictures are taken as ours."""
    # A picture's own style would be refused by the page's policy, which a reader's console then says.
    assert not any("<style" in section.svg for section in page.sections), "draw with Look(embedded=True)"
    styles, script = (asset(STYLE), page_stylesheet()), page_script()
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            policy=policy(styles, script),
            styles=styles,
            script=script,
            heading=heading,
            line=line,
            text=text,
            body=body,
            pool_class=Look(pools=page.pools).pool,
        )
    )


def policy(styles: tuple[str, ...], script: str) -> str:
    """Give the content-security policy of a page: these styles and this script, no other, and nothing from outside."""
    allowed = " ".join(map(digest, styles))
    rest = "base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; style-src {allowed}; script-src {digest(script)}; {rest}"


def digest(source: str) -> str:
    """Give the hash of a source as a policy names it (CSP level 3, section 2.3.1).

    >>> digest("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    hashed = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return f"'sha256-{hashed}'"


def heading(title: str) -> str:
    """Give a title fit for a heading."""
    return clean(title, TITLE_CHARACTERS)


def line(told: str) -> str:
    r"""Give what a cell or a fact shows; one that is empty stays so.

    >>> line("two\nlines"), line(" ")
    ('two lines', '')
    """
    return clean(told, LINE_CHARACTERS) if told.strip() else ""


def text(told: str) -> str:
    """Give a paragraph; one that is empty stays so."""
    return clean(told, TEXT_CHARACTERS) if told.strip() else ""


@dataclass(frozen=True)
class ShownCell:
    """A cell as the template writes it: the number to sort by as text, "" for none."""

    text: str
    sort: str
    numeric: bool


def body(table: PageTable) -> Iterator[tuple[str, tuple[ShownCell, ...]]]:
    """Give each row of a table as the name of its pool and its cells."""
    pools = table.pools or ("",) * len(table.rows)
    for pool, row in zip(pools, table.rows, strict=True):
        yield pool, tuple(_shown(cell, place in table.numeric) for place, cell in enumerate(row))


def _shown(cell: TableCell, numeric: bool) -> ShownCell:
    known = cell.sort is not None and math.isfinite(cell.sort)
    return ShownCell(line(cell.text), repr(float(cell.sort)) if known and cell.sort is not None else "", numeric)


def page_script() -> str:
    """Give the script of every page."""
    return "\n".join(('"use strict";', *map(asset, SCRIPTS)))


@cache
def asset(name: str) -> str:
    """Read a style or a script of ours, as it is put into a page."""
    return Path(__file__).with_name("templates").joinpath(name).read_text(encoding="utf-8")


__all__ = ["Page", "PageTable", "Section", "TableCell", "page_html"]
