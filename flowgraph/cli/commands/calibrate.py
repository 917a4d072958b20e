"""`calibrate`: scales fitted to measured seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from flowgraph import app
from flowgraph.cli import completion as complete
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_result, write


def calibrate(
    runs: Annotated[
        list[Path],
        opt.argument(
            "RUN", "Run folders; with `--plan`, logs or traces of that plan; or one plan file.", complete.runs
        ),
    ],
    plan: Annotated[
        Path | None,
        opt.option("--plan PLAN.json", "The plan that the logs or traces were recorded with.", complete.plans),
    ] = None,
    measured: Annotated[
        list[str] | None,
        opt.option(
            "--measured NODE=SECONDS",
            "Measured seconds of a node of the plan; `step` is the whole step. Repeat it for more.",
        ),
    ] = None,
    out: Annotated[
        Path | None, opt.option("-o, --out CALIBRATION.json", "Write the scales, for `plan --calibration`.")
    ] = None,
    json: opt.Json = False,
) -> None:
    """Fit the scales of the forecast to measured seconds.

    There is a scale for each phase, role and device, each with its 90% interval. A run is a run folder; with --plan, a
    verl log (console or JSON lines), NeMo RL metrics (JSON), or a Chrome trace with the nodes of the plan.
    """
    result = app.calibrate_runs(runs, plan, measured or (), note)
    write(out, result.calibration.to_json())
    print_result(result, as_json=json)
    for line in result.notes:
        note(line)
    if out is not None:
        note(out)
