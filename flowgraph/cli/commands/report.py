"""`report`: a run in figures and curves."""

from __future__ import annotations

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import print_json
from flowgraph.cli.run_tables import print_report


def report(run: opt.RunPath, json: opt.Json = False) -> None:
    """Sum a run up and draw its curves."""
    result = app.report_run(run)
    if json:
        print_json(result.data())
        return
    print_report(result)
    print(result.drawn)
