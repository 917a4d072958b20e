"""Recorded responses as text for a terminal; `-o` writes them as a page instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flowgraph.cli.output import escape_controls, layout_columns, say
from flowgraph.diagrams.model.labels import clean, shown_number, unstacked

if TYPE_CHECKING:
    from flowgraph import app

PROMPT_LINES, RESPONSE_LINES = 4, 16
NAMED = 10  # columns before a text
MAX_CHARACTERS_A_CELL = 4  # of a line: a letter may have accents, which take no cell
SHOWN = ("length", "finished")  # after the results of nodes

_SELECTORS = re.compile("[\ufe00-\ufe0f]")  # they make some characters wider than they are counted


def print_rollouts(result: app.RolloutRows) -> None:
    """Print recorded responses to stdout: for each its numbers, the last message of its prompt, and its text.

    Lines have the width of the terminal. At most 4 lines of the message and 16 of the response are printed; the last
    line says if a text was cut. Results that are empty texts, such as the reason of no failure, are left out.
    """
    columns = layout_columns()
    head = f"{result.run}: {result.node}, step {result.step}, {len(result.rows)} of {result.matching} responses"
    say(head if result.matching == result.total else f"{head} that match, {result.total} in all", fit=True)
    for row in result.rows:
        tokens = (name for name in result.token_results if "Advantages" in result.types[name].split())
        names = ("prompt", "sample", *result.results, *tokens, *(name for name in SHOWN if name in row.values))
        parts = [f"{clean(name)} {shown_number(row.values[name])}" for name in names if row.values[name] != ""]
        say("\n" + " · ".join(parts), fit=True)
        for line in _lines("prompt", row.prompt[-1][1] if row.prompt else "", PROMPT_LINES, columns):
            say(line)
        for line in _lines("response", row.response, RESPONSE_LINES, columns):
            say(line)


def _lines(name: str, text: str, limit: int, columns: int) -> Iterator[str]:
    """Yield a text in at most `limit` lines, behind its name; the last says how many characters are left out."""
    from rich.cells import chop_cells

    room = max(columns - NAMED - 2, 8)
    start = text[: limit * room * MAX_CHARACTERS_A_CELL]
    safe = escape_controls(unstacked(_SELECTORS.sub("", start.replace("\t", "    "))))
    lines = list[str]()
    for line in safe.split("\n"):
        for part in chop_cells(line, room) or [""]:
            lines += [part[place : place + 2 * room] for place in range(0, max(len(part), 1), 2 * room)]
    cut = lines[:limit]
    if len(lines) > limit or len(start) < len(text):
        cut[-1:] = [f"… of {len(text):,} characters"]
    for place, line in enumerate(cut):
        yield f"  {name if place == 0 else '':<{NAMED}}{line}".rstrip()
