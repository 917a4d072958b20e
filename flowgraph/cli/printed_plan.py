"""A plan as `plan` and `fit` print it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.cli.output import laid_out, note, print_json, say, write

if TYPE_CHECKING:
    from flowgraph import app

TOP = 5


def print_plan(result: app.PlanResult, out: Path | None, *, top: int = TOP, as_json: bool) -> None:
    """Print a plan, and write it to `out` as a file to edit."""
    write(out, result.to_json())
    if result.search is not None:
        note(f"searched in {result.search.seconds:.2f} s")
    with laid_out():
        print_json(result.data(top=top)) if as_json else say(result.text(top=top), fit=True)
    if out is not None:
        note(out)
