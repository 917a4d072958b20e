"""`runs`: what ran, how far and how well."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import print_json, print_table


def runs(
    folder: Annotated[Path, typer.Argument(help="The folder with the runs.", metavar="FOLDER")] = Path("runs"),
    json: opt.Json = False,
) -> None:
    """List runs: status, steps, reward and accuracy."""
    rows = app.list_runs(folder)
    if json:
        print_json(rows)
    else:
        cells = [[_shown(row[name]) for name in row] for row in rows]
        print_table(["run", "flow", "status", "steps", "started", "reward", "accuracy"], cells)


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
