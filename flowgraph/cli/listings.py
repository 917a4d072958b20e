"""`flows`, `models` and `cp`: what is shipped, and what installed packages add."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from flowgraph.errors import UsageError
from flowgraph.flows.flow_files import find_flow, known_flows
from flowgraph.models.listing import known

COLUMNS_ELSEWHERE = 100  # of what is printed to a file or a pipe


def cache_folder(cache: Path | None) -> Path:
    """Give the folder for fetched models and made data: as asked, or the user's cache."""
    if cache is not None:
        return cache.expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flowgraph"


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
    """Give the columns that there are to print in: those of the terminal or of COLUMNS, else COLUMNS_ELSEWHERE."""
    asked = sys.stdout.isatty() or os.environ.get("COLUMNS", "")
    return shutil.get_terminal_size((COLUMNS_ELSEWHERE, 24)).columns if asked else COLUMNS_ELSEWHERE


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


def list_models(cache: Path | None, as_json: bool, *, everything: bool = False) -> None:
    """List the models that need no folder or hub; `everything` adds those that a plan needs no hub for."""
    from dataclasses import asdict

    from flowgraph.models.table import table

    found, sized = known(cache_folder(cache)), sorted(table().values(), key=lambda each: each.name.casefold())
    if as_json:
        told = [asdict(each) for each in found]
        told += [{"name": m.name, "kind": "hub", "parameters": m.parameters} for m in sized] if everything else []
        print(json.dumps(told, indent=1, default=str))
        return
    rows = [(m.name, f"{m.parameters:,}", m.origin, "yes" if m.ready else "no") for m in found]
    rows += (
        [(m.name, f"{m.parameters:,}", "the hub; its sizes are known here", "") for m in sized] if everything else []
    )
    print_table(["model", "parameters", "where it comes from", "ready"], rows)
    if not everything:
        more = f"plans need no hub for {len(sized)} more, whose sizes are known: flowgraph models --all"
        print(more, file=sys.stderr)


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
