"""`trace`: what a run measured."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_exact, print_json, say, write
from flowgraph.cli.run_tables import print_tasks


def trace(
    run: opt.RunPath,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="The file to write. Default: RUN/trace.json.", metavar="TRACE.json"),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Number of most recent steps.", metavar="N")] = 10,
    compare: Annotated[
        bool, typer.Option("--compare", help="Print forecast and measured seconds and memory of each task.")
    ] = False,
    json: opt.Json = False,
) -> None:
    """Write a Chrome trace of a run, measured and forecast.

    Open it in ui.perfetto.dev.
    """
    result = app.read_trace(run)
    for line in result.notes:
        note(line)
    if compare:
        print_json([asdict(each) for each in result.tasks]) if json else print_tasks(result)
        return
    trace = result.trace(steps)
    if out is None and json:
        print_exact(dumps(trace))
        return
    file = out or result.run.path / "trace.json"
    write(file, dumps(trace) + "\n")
    say(file)
