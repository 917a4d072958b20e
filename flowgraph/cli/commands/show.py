"""`show` and `check`: a flow at a stage, and every fault of a flow or of a plan's file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_json, say
from flowgraph.errors.exit_codes import ExitCode
from flowgraph.passes.verify import verified


@opt.takes(
    "flow stage diff facts model data columns batch cluster placement plan depth sync_every chunks contract settings "
    "passes cache verify json"
)
def show(
    fields: opt.Fields,
    stage: Annotated[
        str,
        opt.option(
            "--stage STAGE", "The stage: described, named, placed or lowered.", "described named placed lowered"
        ),
    ] = "named",
    diff: Annotated[
        tuple[str, str] | None, opt.option("--diff STAGE STAGE", "Compare two stages; `flowgraph diff` compares flows.")
    ] = None,
    facts: Annotated[
        bool, opt.option("--facts", "Print tokens and FLOPs of nodes, bytes on edges, and state.")
    ] = False,
    verify: opt.Verify = False,
    json: opt.Json = False,
) -> None:
    """Print a flow at a stage of the compiler.

    The stages are: as you described it, named (after the passes), placed by a plan, and lowered to a program.
    """
    request = app.make_request(**fields)
    with verified(verify):
        if diff is None or facts:
            result = app.flow_facts(request, note) if facts else app.FlowStage(request, stage, note)
            print_json(result.data()) if json else say(result.text(), fit=True)
            return
        app.FlowStage(request, stage, note)  # refuses a stage that does not exist
        old, new = (app.FlowStage(request, name, note) for name in diff)
        text = app.compared_stages(old, new)
        if not text:
            note("no difference")
        say(text, fit=True, end="")


@opt.takes("flow model data columns batch cluster placement plan settings passes cache json")
def check(fields: opt.Fields, flow: opt.FlowOrPlanFile, json: opt.Json = False) -> None:
    """Report every fault of a flow or a plan file.

    Nothing is loaded or trained. The exit code is 1 if there is a fault.
    """
    result: app.CheckResult | app.CheckedPlan
    if flow.endswith(".json"):
        result = app.check_plan_file(Path(flow), fields["cluster"])
    else:
        result = app.check_flow(app.make_request(**fields, flow=flow), note)
    if json:
        print_json(result.data())
    else:
        for fault in result.faults:
            say(fault, fit=True)
        for line in (*result.notes, *(f"left out: {line}" for line in result.pruned)):
            note(line)
        count = len(result.faults)
        note(f"{flow}: {count or 'no'} fault{'s' if count > 1 else ''}")
    raise typer.Exit(ExitCode.FAULT if result.faults else ExitCode.DONE)
