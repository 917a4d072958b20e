"""`export`: a plan for another system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_json


def export_command(
    plan: opt.PlanPath,
    to: Annotated[str, typer.Option("--to", help="verl, openrlhf or nemo-rl", metavar="SYSTEM")],
    version: Annotated[str, typer.Option("--version", help="of the system; default the newest that is known")] = "",
    out: Annotated[Path | None, typer.Option("-o", "--out", help="a folder for the files; default stdout")] = None,
    json: opt.Json = False,
) -> None:
    """Write a plan as the flags and files that another system starts from, and say what it cannot express."""
    result = app.export_plan(plan, to, version)
    files = [] if out is None else result.save(out)
    if json:
        print_json(result.data())
    elif out is None:
        print(result.text())
    for file in files:
        note(file)
    for line in result.notes if not json else ():
        note(f"note: {line}")
