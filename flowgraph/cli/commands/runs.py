"""`runs`, `report` and `trace`: list runs, summarize one, and compare its measured and forecast steps."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_exact, print_json, print_table, say, write
from flowgraph.cli.run_tables import print_report, print_tasks


def runs(
    folder: Annotated[Path, opt.argument("FOLDER", "The folder with the runs.")] = Path("runs"),
    json: opt.Json = False,
) -> None:
    """List runs: status, steps, reward and accuracy."""
    rows = app.list_runs(folder)
    if json:
        print_json(rows)
    else:
        cells = [
            ["" if value is None else f"{value:.3f}" if isinstance(value, float) else value for value in row.values()]
            for row in rows
        ]
        print_table(["run", "flow", "status", "steps", "started", "reward", "accuracy"], cells)


def report(run: opt.RunPath, json: opt.Json = False) -> None:
    """Print a summary of a run, and plot its curves.

    The curves are written to curves.svg in the run folder.
    """
    result = app.report_run(run)
    if json:
        print_json(result.data())
        return
    print_report(result)
    say(result.drawn)


def trace(
    run: opt.RunPath,
    out: Annotated[
        Path | None, opt.option("-o, --out TRACE.json", "The file to write. Default: RUN/trace.json.")
    ] = None,
    steps: Annotated[int, opt.option("--steps N", "Number of most recent steps.", min=1)] = 10,
    compare: Annotated[
        bool, opt.option("--compare", "Print forecast and measured seconds and memory of each task.")
    ] = False,
    json: opt.Json = False,
) -> None:
    """Write a Chrome trace of a run, measured and forecast.

    Open it in ui.perfetto.dev. With --compare, print the seconds and the memory of tasks instead.
    """
    result = app.read_trace(run)
    for line in result.notes:
        note(line)
    if compare:
        print_json([asdict(task) for task in result.tasks]) if json else print_tasks(result)
        return
    trace = result.trace(steps)
    if out is None and json:
        print_exact(dumps(trace))
        return
    file = out or result.run.path / "trace.json"
    write(file, dumps(trace) + "\n")
    say(file)
