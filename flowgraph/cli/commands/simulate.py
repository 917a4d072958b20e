"""`simulate`: the steps of a plan without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import columns_there, note, print_json, write


def simulate(
    plan: opt.PlanPath,
    steps: Annotated[int, typer.Option("--steps", min=1, max=1000, help="how many steps")] = 2,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="write a Chrome trace here, for ui.perfetto.dev")
    ] = None,
    json: opt.Json = False,
) -> None:
    """Play the steps of a plan without a GPU: when each pool works, and what it waits for."""
    result = app.simulate_plan(plan, steps)
    write(out, result.trace())
    print_json(result.data()) if json else print(result.text(columns_there()))
    if out is not None:
        note(out)
