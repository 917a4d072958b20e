"""`plan`: where each role runs."""

from __future__ import annotations

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli import search_options as search
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
    engine: search.Engines = None,
    precision: search.SamplingPrecision = None,
    constants: search.ConstantsFile = None,
    calibration: search.CalibrationFile = None,
    measured: search.MeasuredSeconds = None,
    measured_on: search.MeasuredOn = None,
    method: search.Search = "auto",
    objective: search.Objective = "step",
    placement: opt.Placement = None,
    pin: search.Pins = None,
    top: search.Top = 5,
    what_if: search.WhatIf = None,
    robust: search.Robust = False,
    staleness: search.Staleness = None,
    ratio: search.Ratio = None,
    streamed: search.Streamed = False,
    passes: opt.Passes = None,
    out: opt.PlanOut = None,
    cache: opt.Cache = None,
    verify: opt.Verify = False,
    json: opt.Json = False,
) -> None:
    """Search for the best plan: devices, layouts, memory, step time.

    The step time is forecast for devices whose speed is known.
    """
    given = app.fields(locals(), but="calibration measured measured_on top out verify json")
    seconds_of = app.measured_plan(plan, measured_on, measured or ())
    scales = app.calibration_of(calibration, measured or (), seconds_of, note)
    request = app.make_request(**given, calibration=scales)
    with verified(verify):
        print_plan(app.make_plan(request, note), out, top=top, as_json=json)
