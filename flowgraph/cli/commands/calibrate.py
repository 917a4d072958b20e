"""`calibrate`: scales fitted to measured seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_json, write


def calibrate(
    runs: Annotated[
        list[Path],
        typer.Argument(help="folders of runs, logs or traces of --plan, or one plan's file", metavar="RUN ..."),
    ],
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="the plan of the runs whose logs or traces are read", metavar="PLAN.json"),
    ] = None,
    measured: Annotated[
        list[str] | None,
        typer.Option("--measured", help="what a node of the plan took; `step`: all of it", metavar="NODE=SECONDS"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="write the scales here, for `plan --calibration`")
    ] = None,
    json: opt.Json = False,
) -> None:
    """Fit scales to the seconds that runs have measured, by phase, role and device, each with its 90% interval.

    A run is a folder of ours; with --plan, a log of verl (console or JSON lines), metrics of NeMo RL (JSON), or a
    Chrome trace with the plan's nodes.
    """
    result = app.calibrate_runs(runs, plan, measured or (), note)
    write(out, result.calibration.to_json())
    print_json(result.data()) if json else print(result.text())
    for line in result.notes:
        note(line)
    if out is not None:
        note(out)
