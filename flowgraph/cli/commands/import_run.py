"""`import`: another system's run as a flow and a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli import search_options as search
from flowgraph.cli.output import laid_out, note, print_json, say, write


def import_command(
    command: Annotated[
        Path, typer.Argument(help="A launch script of verl or OpenRLHF, or a YAML file of verl.", metavar="FILE")
    ],
    device: Annotated[
        str, typer.Option("--device", help="The device model of the run.", metavar="DEVICE", rich_help_panel=opt.PLACE)
    ] = "h100",
    model: opt.Models = None,
    prompt_tokens: opt.PromptTokens = None,
    response_tokens: opt.ResponseTokens = None,
    constants: search.ConstantsFile = None,
    calibration: search.CalibrationFile = None,
    out: opt.PlanOut = None,
    found: Annotated[
        Path | None,
        typer.Option("--found", help="Write the plan that the search found instead.", metavar="PLAN.json"),
    ] = None,
    cache: opt.Cache = None,
    json: opt.Json = False,
) -> None:
    """Import a verl or OpenRLHF run as a flow and a plan.

    It forecasts the memory and the step time of that plan, and of the plan that a search finds instead.
    """
    given = app.fields(locals(), but="command device calibration out found json")
    scales = app.calibration_of(calibration, (), None, note)
    request = app.make_request(**given, calibration=scales)
    result = app.import_command(command, device, request)
    for file, imported in ((out, result.plan), (found, result.replacement)):
        if file is not None and imported is not None:
            write(file, imported.to_json())
            note(file)
        elif file is not None:
            note(f"{file} is not written: a search finds nothing that the system runs")
    for line in result.notes:
        note(line)
    with laid_out():
        print_json(result.data()) if json else say(result.text(), fit=True)
