"""`compare`: plans beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import columns_there, print_json


def compare(
    plans: Annotated[list[Path], typer.Argument(help="plans' files", metavar="PLAN.json ...")],
    json: opt.Json = False,
) -> None:
    """Print plans beside each other."""
    result = app.compare_plans(plans)
    print_json(result.data()) if json else print(result.text(columns_there()))
