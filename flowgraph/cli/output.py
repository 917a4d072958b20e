"""How commands print: the only module that writes to stdout and stderr, with control characters escaped.

Results go to stdout; notes and the names of written files go to stderr. Not here: the live display (`display`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TextIO

from flowgraph.diagrams.model.labels import escape_controls as escape_controls

COLUMNS_ELSEWHERE = 100  # of what is printed to a file or a pipe
LINE_EVERY_S = 5.0  # of progress, in a file or a pipe
NARROW = 24  # with fewer columns, a cell is not broken into lines


def say(text: object, *, fit: bool = False, file: TextIO | None = None, end: str = "\n") -> None:
    """Print text to stdout, or to `file`, with control characters escaped; `end` is printed after the text.

    `fit` breaks lines that are longer than `requested_columns()`, unless that is None.
    """
    plain = escape_controls(str(text))
    columns = requested_columns() if fit else None
    print(plain if columns is None else wrap_lines(plain, columns), end=end, file=file, flush=file is not None)


def note(line: object) -> None:
    """Print a line to stderr, such as a note or a file's name, as `say` does; a line that is too long is broken."""
    say(line, fit=True, file=sys.stderr)


def print_json(data: Any, *, default: Any = None) -> None:
    """Print data as JSON to stdout, indented and in ASCII; all other characters are escaped.

    `default` converts values that JSON does not have, as in `json.dumps`.
    """
    print(json.dumps(data, indent=1, default=default))


def print_exact(text: str) -> None:
    """Print text to stdout unchanged; the caller must have escaped control characters of names in the text."""
    print(text)


def write(path: Path | None, text: str) -> None:
    """Write text to the file `path`, replacing an existing file, or do nothing if `path` is None.

    Raises UsageError if the file cannot be written.
    """
    from flowgraph.app.user_files import write_text

    if path is not None:
        write_text(path, text)


def print_table(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Collection[int] = (),
    columns: int | None = None,
) -> None:
    """Print a plain table to stdout, with the titles `head` and the cells of each row in `rows`.

    Cells are printed as text, never as markup, with control characters escaped. They are broken into lines if the table
    is wider than the output. `right` has the indices of table columns with numbers, which are right-aligned and not
    wrapped. `columns` is the width of the output in characters; by default that of `requested_columns`, or, if it
    returns None, as wide as the table needs.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(head):
        number = place in right
        table.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in rows:
        table.add_row(*(Text(escape_controls(str(cell))) for cell in row))
    columns = columns or requested_columns()
    Console(soft_wrap=columns is None, width=columns).print(table)


def print_result(result: Any, *, as_json: bool, **detail: int) -> None:
    """Print the result of a function of `app` to stdout: its data as JSON, or its text in the columns of the terminal.

    `detail` are arguments of the result's methods `data` and `text`, such as `top`.
    """
    from placements.format import text_columns

    columns = requested_columns()
    with text_columns(columns) if columns is not None else nullcontext():
        print_json(result.data(**detail)) if as_json else say(result.text(**detail), fit=True)


def requested_columns() -> int | None:
    """Return the columns that text may use: those of the environment variable COLUMNS, or else those of the terminal.

    The result is None if stdout is a file or a pipe and COLUMNS is not set: text is not broken then.
    """
    if sys.stdout.isatty() or os.environ.get("COLUMNS", ""):
        return shutil.get_terminal_size((COLUMNS_ELSEWHERE, 24)).columns
    return None


def layout_columns() -> int:
    """Return the columns in which to lay out text: `requested_columns()`, or 100 if that is None."""
    return requested_columns() or COLUMNS_ELSEWHERE


def wrap_lines(text: str, columns: int) -> str:
    """Return text with lines broken between words, so that each has at most `columns` columns if its words allow that.

    Broken lines of a table's row continue below its last cell that leaves them room, other lines four columns to the
    right of their indent, or less where columns are too few.

    >>> print(wrap_lines("  policy  one two three four five six", 34))
      policy  one two three four five
              six
    >>> print(wrap_lines("policy: one two three four five six", 30))
    policy: one two three four
        five six
    """
    lines = list[str]()
    for line in text.split("\n"):
        if width(line) <= columns:
            lines.append(line)
            continue
        indent, part = _hanging(line, columns), ""
        for piece in re.findall(r"\s*(?:[#·] )?\S+", line):
            if part.strip() and width(part + piece) > columns:
                lines.append(part)
                part = " " * indent + piece.strip()
            else:
                part += piece
        lines.append(part)
    return "\n".join(lines)


def _hanging(line: str, columns: int) -> int:
    """Return where the lines that continue a line begin: under its last cell, or a little right of its own indent."""
    indent = len(line) - len(line.lstrip())
    for match in reversed(list(re.finditer(r"\S {2,}(?=\S)", line))):
        longest = max(map(width, line[match.end() :].split()))
        if columns - match.end() >= max(NARROW, longest):
            return match.end()
    return min(indent + 4, max(columns - NARROW, 0))


def width(text: str) -> int:
    """Return the number of terminal columns that a line of text occupies."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


class Progress:
    """Progress on stderr: one line that is rewritten on a terminal, elsewhere a line at most every 5 seconds.

    `count` is the number of `what`, such as "prompts", to be done; `verb` begins the line.
    """

    def __init__(self, verb: str, count: int, what: str) -> None:
        self.verb, self.count, self.what, self.done = verb, count, what, 0
        self._live, self._printed_s = sys.stderr.isatty(), 0.0
        self._first: tuple[int, float] | None = None  # what the first batch did, with all that is loaded, and when

    def __call__(self, count: int, detail: str) -> None:
        """Add `count` to what is done, and print the line with `detail`; from the second call on with the time left."""
        self.done += count
        now_s, last = time.monotonic(), self.done >= self.count
        if self._live or last or now_s - self._printed_s > LINE_EVERY_S:
            self._printed_s, left = now_s, ""
            if self._first is not None and not last:
                first, then_s = self._first
                left_s = (now_s - then_s) / (self.done - first) * (self.count - self.done)
                left = f"  about {left_s:.0f} s left"
            line = f"{self.verb} {self.done}/{self.count} {self.what}{detail}{left}"
            if self._live:
                room = shutil.get_terminal_size().columns - 1
                text = escape_controls(line).replace("\n", " ")[:room]
                print(f"\r\x1b[K{text}", end="\n" if last else "", file=sys.stderr, flush=True)
            else:
                say(line, file=sys.stderr)
        self._first = self._first or (self.done, now_s)
