"""One page for a plan or a run: its facts, its pictures and their tables, in one file that loads nothing.

A page is data; `templates/page.html.j2` writes it, with the style and the scripts in that folder. Its policy allows
that style and those scripts, by their hashes, and nothing else. Pictures are drawn elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.write.style import page_stylesheet
from flowgraph.diagrams.write.svg.svg_frame import Look

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATES = Path(__file__).with_name("templates")
STYLE = "page.css"
SCRIPTS = (  # the last one starts the others
    "page_elements.js",
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
    """One cell of a table: its text, and the number by which its column is sorted instead of the text, if any."""

    text: str
    sort: float | None = None


@dataclass(frozen=True)
class PageTable:
    """A table of a page; columns whose indices, from 0, are in `numeric` are right-aligned.

    `pools` has the pool of each row, "" for none, if rows belong to pools. A table that is next to a picture is folded
    unless it is `shown`. Row n is linked with dot n of the picture.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    caption: str = ""
    numeric: tuple[int, ...] = ()
    pools: tuple[str, ...] = ()
    shown: bool = False


@dataclass(frozen=True)
class Section:
    """A part of a page: a sentence about it, a picture drawn to be embedded, and the same data as a table."""

    title: str
    about: str = ""
    svg: str = ""
    table: PageTable | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """A whole page: its key facts as (name, value), its sections, and the pools that a reader can filter by, in order.

    Its pictures must have been drawn with `Look(embedded=True, pools=…)` of the same pools.
    """

    title: str
    about: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    sections: tuple[Section, ...] = ()
    pools: tuple[str, ...] = ()


def page_html(page: Page) -> str:
    """Return a page as the text of one HTML file; texts are escaped and cut, and SVG pictures are inserted unchanged.

    Headings have at most 100 characters, cells and facts 300, paragraphs 4,000. Raises AssertionError if a picture has
    a style sheet of its own, as one drawn without `Look(embedded=True)` has.
    """
    # The page's policy would refuse a picture's own style, and the reader's console would say so.
    assert not any("<style" in section.svg for section in page.sections), "draw with Look(embedded=True)"
    styles, script = (read_asset(STYLE), page_stylesheet()), "\n".join(('"use strict";', *map(read_asset, SCRIPTS)))
    return template("page.html.j2").render(
        page=page,
        policy=content_security_policy(styles, script),
        styles=styles,
        script=script,
        heading=lambda title: clean(title, TITLE_CHARACTERS),
        line=lambda text: _cleaned(text, LINE_CHARACTERS),
        text=lambda text: _cleaned(text, TEXT_CHARACTERS),
        sort_key=sort_key,
        pool_class=Look(pools=page.pools).pool,
    )


def template(name: str) -> Template:
    """Return the page template in the file `name` of the template folder; it escapes the texts that are inserted.

    Raises jinja2.TemplateNotFound for an unknown file; rendering raises jinja2.UndefinedError for a missing value.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(TEMPLATES, encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template(name)


def _cleaned(text: str, limit_characters: int) -> str:
    return clean(text, limit_characters) if text.strip() else ""


def sort_key(cell: TableCell) -> str:
    """Return the number by which a table cell is sorted, as text; "" if the cell has none or it is not finite."""
    return repr(float(cell.sort)) if cell.sort is not None and math.isfinite(cell.sort) else ""


def content_security_policy(styles: tuple[str, ...], script: str) -> str:
    """Return a Content-Security-Policy that allows only these style sheets and this script, by their SHA-256 hashes.

    `styles` and `script` are the source texts as they are in the page.
    """
    allowed = " ".join(map(source_hash, styles))
    rest = "base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; style-src {allowed}; script-src {source_hash(script)}; {rest}"


def source_hash(source: str) -> str:
    """Return the SHA-256 of a style sheet or script in the form that a Content-Security-Policy needs.

    Source: CSP level 3, section 2.3.1.

    >>> source_hash("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    hashed = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return f"'sha256-{hashed}'"


@cache
def read_asset(name: str) -> str:
    """Return the text of the style sheet or script in the file `name` of the template folder; texts are cached.

    Raises FileNotFoundError for an unknown file.
    """
    return TEMPLATES.joinpath(name).read_text(encoding="utf-8")
