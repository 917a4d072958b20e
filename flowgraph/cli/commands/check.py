"""`check`: every fault of a flow or of a plan's file."""

from __future__ import annotations

from pathlib import Path

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_json, say
from flowgraph.errors.exit_codes import ExitCode


def check(
    flow: opt.FlowOrPlanFile,
    model: opt.Models = None,
    data: opt.Data = None,
    batch: opt.Batch = None,
    cluster: opt.Clusters = None,
    placement: opt.Placement = None,
    plan: opt.PlanFile = None,
    settings: opt.Sets = None,
    passes: opt.Passes = None,
    cache: opt.Cache = None,
    json: opt.Json = False,
) -> None:
    """Report every fault of a flow or a plan file.

    Nothing is loaded or trained. The exit code is 1 if there is a fault.
    """
    given = app.fields(locals(), but="json")
    result: app.CheckResult | app.CheckedPlan
    if flow.endswith(".json"):
        result = app.check_plan_file(Path(flow), cluster)
    else:
        request = app.make_request(**given)
        result = app.check_flow(request, note)
    if json:
        print_json(result.data())
    else:
        for fault in result.faults:
            say(fault, fit=True)
        for line in (*result.notes, *(f"left out: {line}" for line in result.pruned)):
            note(line)
        note(count_faults(len(result.faults), flow))
    raise typer.Exit(ExitCode.FAULT if result.faults else ExitCode.DONE)


def count_faults(faults: int, flow: str) -> str:
    """Sum a check up.

    >>> count_faults(0, "grpo"), count_faults(2, "grpo")
    ('grpo: no fault', 'grpo: 2 faults')
    """
    if not faults:
        return f"{flow}: no fault"
    return f"{flow}: {faults} fault{'s' if faults > 1 else ''}"
