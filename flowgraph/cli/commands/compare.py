"""`compare`: plans beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import completion as complete
from flowgraph.cli import options as opt
from flowgraph.cli.output import columns_there, print_json, say


def compare(
    plans: Annotated[
        list[Path], typer.Argument(help="Plan files.", metavar="PLAN.json", autocompletion=complete.plans)
    ],
    json: opt.Json = False,
) -> None:
    """Compare plans side by side."""
    result = app.compare_plans(plans)
    print_json(result.data()) if json else say(result.text(columns_there()), fit=True)
