"""`explain`: why each role is where it is."""

from __future__ import annotations

from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_json


def explain(
    plan: opt.PlanPath,
    role: Annotated[str | None, typer.Argument(help="policy.sample; none: every role", metavar="ROLE")] = None,
    json: opt.Json = False,
) -> None:
    """Say why each role is where it is, and what a step would take with it elsewhere."""
    result = app.explain_plan(plan, role)
    for fault in result.faults:
        note(fault)
    print_json(result.data()) if json else print(result.text())
