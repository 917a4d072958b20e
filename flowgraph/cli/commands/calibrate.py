"""`calibrate`: scales fitted to measured seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import completion as complete
from flowgraph.cli import options as opt
from flowgraph.cli.output import laid_out, note, print_json, say, write


def calibrate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders; with `--plan`, logs or traces of that plan; or one plan file.",
            metavar="RUN",
            autocompletion=complete.runs,
        ),
    ],
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            help="The plan that the logs or traces were recorded with.",
            metavar="PLAN.json",
            autocompletion=complete.plans,
        ),
    ] = None,
    measured: Annotated[
        list[str] | None,
        typer.Option(
            "--measured",
            help="Measured seconds of a node of the plan; `step` is the whole step. Repeat it for more.",
            metavar="NODE=SECONDS",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Write the scales, for `plan --calibration`.", metavar="CALIBRATION.json"),
    ] = None,
    json: opt.Json = False,
) -> None:
    """Fit the scales of the forecast to measured seconds.

    There is a scale for each phase, role and device, each with its 90% interval. A run is a run folder; with --plan, a
    verl log (console or JSON lines), NeMo RL metrics (JSON), or a Chrome trace with the nodes of the plan.
    """
    result = app.calibrate_runs(runs, plan, measured or (), note)
    write(out, result.calibration.to_json())
    with laid_out():
        print_json(result.data()) if json else say(result.text(), fit=True)
    for line in result.notes:
        note(line)
    if out is not None:
        note(out)
