"""`fit`: the fewest devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note
from flowgraph.cli.printed_plan import print_plan


def fit(
    flow: opt.FlowName,
    model: opt.Models = None,
    batch: opt.Batch = None,
    settings: opt.Sets = None,
    cluster: Annotated[str, typer.Option("--cluster", help="the most there is: 16x8xh100")] = "16x8xh100",
    prompt_tokens: opt.PromptTokens = None,
    response_tokens: opt.ResponseTokens = None,
    engine: opt.Engines = None,
    precision: opt.SamplingPrecision = None,
    constants: opt.ConstantsFile = None,
    calibration: opt.CalibrationFile = None,
    placement: opt.Placement = None,
    pin: opt.Pins = None,
    passes: opt.Passes = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="write the plan here")] = None,
    cache: opt.Cache = None,
    json: opt.Json = False,
) -> None:
    """Find the fewest devices of a cluster on which a flow fits."""
    given = app.fields(locals(), but="calibration out json")
    scales = app.calibration_of(calibration, (), None, note)
    request = app.make_request(**given, calibration=scales, objective="devices")
    print_plan(app.make_plan(request, note), out, as_json=json)
