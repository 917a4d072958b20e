"""`plan`: where each role runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note
from flowgraph.cli.printed_plan import print_plan
from flowgraph.passes.verify import verified


def plan(
    flow: opt.FlowName,
    model: opt.Models = None,
    data: opt.Data = None,
    batch: opt.Batch = None,
    settings: opt.Sets = None,
    cluster: opt.Clusters = None,
    plan: opt.PlanFile = None,
    memory: opt.Memory = None,
    prompt_tokens: opt.PromptTokens = None,
    response_tokens: opt.ResponseTokens = None,
    engine: opt.Engines = None,
    precision: opt.SamplingPrecision = None,
    constants: opt.ConstantsFile = None,
    calibration: opt.CalibrationFile = None,
    measured: opt.MeasuredSeconds = None,
    measured_on: opt.MeasuredOn = None,
    method: opt.Search = "auto",
    objective: opt.Objective = "step",
    placement: opt.Placement = None,
    pin: opt.Pins = None,
    top: opt.Top = 5,
    what_if: opt.WhatIf = None,
    robust: opt.Robust = False,
    staleness: opt.Staleness = None,
    ratio: opt.Ratio = None,
    streamed: opt.Streamed = False,
    passes: opt.Passes = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="write the plan here, to edit")] = None,
    cache: opt.Cache = None,
    verify: opt.Verify = False,
    json: opt.Json = False,
) -> None:
    """Say what runs where, the memory it needs and, on devices whose speed is known, how long a step takes."""
    given = app.fields(locals(), but="calibration measured measured_on top out verify json")
    seconds_of = app.measured_plan(plan, measured_on, measured or ())
    scales = app.calibration_of(calibration, measured or (), seconds_of, note)
    request = app.make_request(**given, calibration=scales)
    with verified(verify):
        print_plan(app.make_plan(request, note), out, top=top, as_json=json)
