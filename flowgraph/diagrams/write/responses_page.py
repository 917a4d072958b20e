"""A page of a model's responses, with their tokens coloured by what is known of each, in one file that loads nothing.

The page is data; `templates/responses.html.j2` writes it. Its policy allows its style and script by their hashes, and
nothing else. No text on it is trusted: control and direction characters are escaped, and lengths have limits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from flowgraph.diagrams.model.labels import clean, escape_controls, shown_number, unstacked
from flowgraph.diagrams.write.page import (
    LINE_CHARACTERS,
    TITLE_CHARACTERS,
    content_security_policy,
    read_asset,
    template,
)

STYLES = ("page.css", "responses.css")
SCRIPTS = ("page_elements.js", "page_theme.js", "responses.js")
MAX_TOKENS_A_RESPONSE, MAX_TOKENS_A_PAGE = 2000, 100_000
MAX_CHARACTERS, MAX_PIECE, MAX_MESSAGES = 20_000, 200, 50  # of a text, and of a token
LEVELS = 4  # of a colour, in each direction
FAINT = 0.02  # of the largest: less has no colour
LARGEST = 0.95  # the share of tokens that the strongest colour begins behind

Number = float | int | bool | str | None


@dataclass(frozen=True, kw_only=True)
class TokenScale:
    """A number by which tokens can be coloured; if `signed`, numbers below 0 have colours of their own."""

    name: str
    signed: bool
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class ShownResponse:
    """A response: its prompt as (role, text), its text, results such as scores, and other facts, each (name, value).

    `tokens` has the texts of the response's first tokens, and is empty if they are unknown; `token_count` counts all
    tokens. `values` has one row for each scale of the page, with a number or NaN for each of `tokens`.
    """

    title: str
    prompt: tuple[tuple[str, str], ...]
    response: str
    results: tuple[tuple[str, Number], ...]
    facts: tuple[tuple[str, Number], ...]
    tokens: tuple[str, ...]
    token_count: int
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class ResponsesPage:
    """A page of responses, whose tokens are coloured by the first of its scales until the reader chooses another."""

    title: str
    about: str
    facts: tuple[tuple[str, str], ...]
    scales: tuple[TokenScale, ...]
    responses: tuple[ShownResponse, ...]


def responses_html(page: ResponsesPage) -> str:
    """Return a page of responses as the text of one HTML file; texts are escaped, and long texts are cut.

    Prompts and responses are cut as `long_text` does; only the last 50 messages of a prompt are shown. Each response
    must have one row of values for each scale of the page.
    """
    styles, script = tuple(map(read_asset, STYLES)), "\n".join(('"use strict";', *map(read_asset, SCRIPTS)))
    coloured = [response for response in page.responses if response.tokens]
    tops = [
        top_of([value for response in coloured for value in response.values[place]])
        for place in range(len(page.scales))
    ]
    return template("responses.html.j2").render(
        page=page,
        policy=content_security_policy(styles, script),
        styles=styles,
        script=script,
        tops=tops,
        heading=lambda title: clean(title, TITLE_CHARACTERS),
        line=lambda text: clean(text, LINE_CHARACTERS),
        number=shown_number,
        text=long_text,
        piece=token_text,
        levels=lambda response: [
            "".join(map(level, values, [top] * len(values))) for values, top in zip(response.values, tops, strict=True)
        ],
        numbers=lambda response: json.dumps([list(map(shown_number, values)) for values in response.values]),
        messages=lambda prompt: prompt[-MAX_MESSAGES:],
    )


def top_of(values: Sequence[float]) -> float:
    """Return the number to which colours are scaled: the 95th percentile of the absolute values; 0 if there are none.

    Zeros, NaN and infinities are not counted.

    >>> top_of([0.0, -1.0, float("nan")]), top_of([])
    (1.0, 0.0)
    """
    sizes = sorted(abs(value) for value in values if math.isfinite(value) and value)
    return sizes[min(len(sizes) - 1, int(LARGEST * len(sizes)))] if sizes else 0.0


def level(value: float, top: float) -> str:
    """Return the colour of a number as a letter: "a" to "d" for negative, "A" to "D" for positive numbers, by size.

    Each letter stands for a quarter of the range up to `top`; "d" and "D", the strongest colours, also stand for larger
    numbers. Sizes below 2% of `top`, and all finite numbers if `top` is 0, are "0". NaN and infinities are "x".

    >>> "".join(level(value, 1.0) for value in (-2.0, -0.1, 0.001, 0.3, 1.0, float("nan")))
    'da0BDx'
    """
    if not math.isfinite(value):
        return "x"
    if top <= 0 or abs(value) < FAINT * top:
        return "0"
    step = min(LEVELS, math.ceil(LEVELS * abs(value) / top))
    return ("abcd" if value < 0 else "ABCD")[step - 1]


def long_text(text: str) -> str:
    """Return a text with control characters escaped; one of more than 20,000 characters is cut in its middle.

    The first and the last 10,000 characters remain, with the number of removed characters between them. At most two
    combining accents in a row are kept.
    """
    if len(text) > MAX_CHARACTERS:
        half, left_out = MAX_CHARACTERS // 2, len(text) - MAX_CHARACTERS
        text = f"{text[:half]}\n[… {left_out:,} characters …]\n{text[-half:]}"
    return escape_controls(unstacked(text))


def token_text(text: str) -> str:
    """Return the text of a token with control characters escaped, and with `↵` before a line end; `◦` if it is empty.

    A text of more than 200 characters is cut, and ends in an ellipsis.
    """
    safe = escape_controls(unstacked(text[:MAX_PIECE])) + ("…" if len(text) > MAX_PIECE else "")
    return safe.replace("\n", "↵\n") or "◦"
