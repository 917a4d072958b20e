"""`import`: another system's run as a flow and a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_json, write


def import_command(
    command: Annotated[
        Path, typer.Argument(help="a launch script of verl or OpenRLHF, or verl's YAML", metavar="FILE")
    ],
    device: Annotated[str, typer.Option("--device", help="what its devices are")] = "h100",
    model: opt.Models = None,
    prompt_tokens: opt.PromptTokens = None,
    response_tokens: opt.ResponseTokens = None,
    constants: opt.ConstantsFile = None,
    calibration: opt.CalibrationFile = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="write the plan here")] = None,
    found: Annotated[Path | None, typer.Option("--found", help="write what a search finds instead here")] = None,
    cache: opt.Cache = None,
    json: opt.Json = False,
) -> None:
    """Read another system's run as a flow and a plan: its memory, its step, and what a search finds instead."""
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
    print_json(result.data()) if json else print(result.text())
