"""How commands print: JSON or text to stdout, notes and the files that were written to stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COLUMNS_ELSEWHERE = 100  # of what is printed to a file or a pipe


def note(line: object) -> None:
    """Print a line beside the result: a note, or a file that was written."""
    print(line, file=sys.stderr)


def print_json(data: Any, *, default: Any = None) -> None:
    """Print data as JSON."""
    print(json.dumps(data, indent=1, default=default))


def write(path: Path | None, text: str) -> None:
    """Write a file that the command line names, if it names one."""
    from flowgraph.app.written_files import write_text

    if path is not None:
        write_text(path, text)


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a plain table; its cells are data, never markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for each in head:
        table.add_column(each, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    Console(soft_wrap=not sys.stdout.isatty()).print(table)


def columns_there() -> int:
    """Return the columns that there are to print in: those of the terminal or of COLUMNS, else COLUMNS_ELSEWHERE."""
    asked = sys.stdout.isatty() or os.environ.get("COLUMNS", "")
    return shutil.get_terminal_size((COLUMNS_ELSEWHERE, 24)).columns if asked else COLUMNS_ELSEWHERE
