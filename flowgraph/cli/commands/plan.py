"""`plan` and `fit`: where each role runs, and the fewest devices."""

from __future__ import annotations

from pathlib import Path

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_result, write
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
    out: opt.PlanOut = None,
    cache: opt.Cache = None,
    verify: opt.Verify = False,
    json: opt.Json = False,
) -> None:
    """Search for the best plan: devices, layouts, memory, step time.

    The step time is forecast for devices whose speed is known.
    """
    fields = app.fields(locals(), but="calibration measured measured_on top out verify json")
    seconds_of = app.measured_plan(plan, measured_on, measured or ())
    scales = app.calibration_of(calibration, measured or (), seconds_of, note)
    request = app.make_request(**fields, calibration=scales)
    with verified(verify):
        print_plan(app.make_plan(request, note), out, top=top, as_json=json)


def fit(
    flow: opt.FlowName,
    model: opt.Models = None,
    batch: opt.Batch = None,
    settings: opt.Sets = None,
    cluster: opt.MostDevices = "16x8xh100",
    prompt_tokens: opt.PromptTokens = None,
    response_tokens: opt.ResponseTokens = None,
    engine: opt.Engines = None,
    precision: opt.SamplingPrecision = None,
    constants: opt.ConstantsFile = None,
    calibration: opt.CalibrationFile = None,
    placement: opt.Placement = None,
    pin: opt.Pins = None,
    passes: opt.Passes = None,
    out: opt.PlanOut = None,
    cache: opt.Cache = None,
    json: opt.Json = False,
) -> None:
    """Find the fewest devices on which a flow fits."""
    fields = app.fields(locals(), but="calibration out json")
    scales = app.calibration_of(calibration, (), None, note)
    request = app.make_request(**fields, calibration=scales, objective="devices")
    print_plan(app.make_plan(request, note), out, as_json=json)


def print_plan(result: app.PlanResult, out: Path | None, *, top: int = 5, as_json: bool) -> None:
    """Print a plan, and write it to `out` as a file to edit."""
    write(out, result.to_json())
    if result.search is not None:
        note(f"searched in {result.search.seconds:.2f} s")
    print_result(result, as_json=as_json, top=top)
    if out is not None:
        note(out)
