"""`export`: a plan for another system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import completion as complete
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_json, say


def export_command(
    plan: opt.PlanPath,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="verl, openrlhf or nemo-rl.",
            metavar="SYSTEM",
            autocompletion=complete.one_of("verl", "openrlhf", "nemo-rl"),
        ),
    ],
    version: Annotated[
        str,
        typer.Option("--version", help="Version of the system. Default: the newest supported one.", metavar="VERSION"),
    ] = "",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="A folder for the files. Default: stdout.", metavar="FOLDER")
    ] = None,
    json: opt.Json = False,
) -> None:
    """Export a plan to verl, OpenRLHF or NeMo RL.

    The output is the flags and files that start the run there; notes list what that system cannot express.
    """
    result = app.export_plan(plan, to, version)
    files = [] if out is None else result.save(out)
    if json:
        print_json(result.data())
    elif out is None:
        say(result.text())  # lines of a script stay whole
    for file in files:
        note(file)
    for line in result.notes if not json else ():
        note(f"note: {line}")
