"""`explain`: why each role is where it is."""

from __future__ import annotations

from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import laid_out, note, print_json, say


def explain(
    plan: opt.PlanPath,
    role: Annotated[
        str | None, typer.Argument(help="A role, e.g. policy.sample. Default: every role.", metavar="ROLE")
    ] = None,
    json: opt.Json = False,
) -> None:
    """Explain why a plan places each role where it does.

    It lists how long a step would take with the role elsewhere.
    """
    result = app.explain_plan(plan, role)
    for fault in result.faults:
        note(fault)
    with laid_out():
        print_json(result.data()) if json else say(result.text(), fit=True)
