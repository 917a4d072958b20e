"""`simulate`: the steps of a plan without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import columns_there, note, print_json, say, write


def simulate(
    plan: opt.PlanPath,
    steps: Annotated[int, typer.Option("--steps", min=1, max=1000, help="Number of steps.", metavar="N")] = 2,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Write a Chrome trace, for ui.perfetto.dev.", metavar="TRACE.json"),
    ] = None,
    json: opt.Json = False,
) -> None:
    """Simulate the steps of a plan, without a GPU.

    The timeline shows when each pool works, and what it waits for.
    """
    result = app.simulate_plan(plan, steps)
    write(out, result.trace())
    print_json(result.data()) if json else say(result.text(columns_there()), fit=True)
    if out is not None:
        note(out)
