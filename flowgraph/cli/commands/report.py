"""`report`: a run in figures and curves."""

from __future__ import annotations

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import print_json, say
from flowgraph.cli.run_tables import print_report


def report(run: opt.RunPath, json: opt.Json = False) -> None:
    """Summarize a run and plot its curves."""
    result = app.report_run(run)
    if json:
        print_json(result.data())
        return
    print_report(result)
    say(result.drawn)
