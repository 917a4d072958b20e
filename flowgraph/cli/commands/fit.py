"""`fit`: the fewest devices."""

from __future__ import annotations

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli import search_options as search
from flowgraph.cli.output import note
from flowgraph.cli.printed_plan import print_plan


def fit(
    flow: opt.FlowName,
    model: opt.Models = None,
    batch: opt.Batch = None,
    settings: opt.Sets = None,
    cluster: opt.MostDevices = "16x8xh100",
    prompt_tokens: opt.PromptTokens = None,
    response_tokens: opt.ResponseTokens = None,
    engine: search.Engines = None,
    precision: search.SamplingPrecision = None,
    constants: search.ConstantsFile = None,
    calibration: search.CalibrationFile = None,
    placement: opt.Placement = None,
    pin: search.Pins = None,
    passes: opt.Passes = None,
    out: opt.PlanOut = None,
    cache: opt.Cache = None,
    json: opt.Json = False,
) -> None:
    """Find the fewest devices on which a flow fits."""
    given = app.fields(locals(), but="calibration out json")
    scales = app.calibration_of(calibration, (), None, note)
    request = app.make_request(**given, calibration=scales, objective="devices")
    print_plan(app.make_plan(request, note), out, as_json=json)
