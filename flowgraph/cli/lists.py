"""`flows`, `models` and `cp`: what is shipped, and what installed packages add."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flowgraph.errors import UsageError
from flowgraph.files import find_flow, known_flows


def cache_folder(cache: Path | None) -> Path:
    """Give the folder for fetched models and made data: as asked, or the user's cache."""
    if cache is not None:
        return cache.expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flowgraph"


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a plain table; its cells are data, never markup."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for each in head:
        table.add_column(each, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    Console(soft_wrap=not sys.stdout.isatty()).print(table)


def list_flows(as_json: bool) -> None:
    """List the shipped flows and those of installed packages, one line each."""
    found = known_flows()
    if as_json:
        told = [
            {"name": name, "about": each.flow.about, "path": str(each.path), "package": each.package}
            for name, each in found.items()
        ]
        print(json.dumps(told, indent=1))
    else:
        several = len({each.package for each in found.values()}) > 1
        rows = [(name, *([each.package] if several else []), each.flow.about) for name, each in found.items()]
        print_table(["flow", *(["package"] if several else []), "what it is"], rows)


def list_models(cache: Path | None, as_json: bool) -> None:
    """List the models that need no folder or hub."""
    from dataclasses import asdict

    from flowgraph.models.known import known

    found = known(cache_folder(cache))
    if as_json:
        print(json.dumps([asdict(each) for each in found], indent=1, default=str))
    else:
        rows = [(m.name, f"{m.parameters:,}", m.origin, "yes" if m.ready else "no") for m in found]
        print_table(["model", "parameters", "where it comes from", "ready"], rows)


def copy_flow(flow: str, path: Path) -> None:
    """Copy the file of a flow that has a name of its own; never over one that is there."""
    found = find_flow(flow)
    if path.suffix != ".py":
        raise UsageError("a flow's file ends in .py", where=str(path), hint=f"{path}.py")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(found.source)
    except FileExistsError:
        raise UsageError("exists; nothing was written", where=str(path)) from None
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error
    print(path)
