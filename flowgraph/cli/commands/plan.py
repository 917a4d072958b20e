"""`plan` and `fit`: where each role runs, and the fewest devices."""

from __future__ import annotations

from pathlib import Path

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_result, write
from flowgraph.passes.verify import verified


@opt.takes(
    "flow model data columns batch settings cluster plan depth sync_every chunks contract memory prompt_tokens "
    "response_tokens engine precision constants calibration measured measured_on method objective placement pin top "
    "what_if robust staleness ratio streamed passes out cache verify json"
)
def plan(
    fields: opt.Fields,
    calibration: opt.CalibrationFile = None,
    measured: opt.MeasuredSeconds = None,
    measured_on: opt.MeasuredOn = None,
    top: opt.Top = 5,
    out: opt.PlanOut = None,
    verify: opt.Verify = False,
    json: opt.Json = False,
) -> None:
    """Search for the best plan: devices, layouts, memory, step time.

    The step time is forecast for devices whose speed is known. With --plan, forecast that plan instead of searching.
    """
    seconds_of = app.measured_plan(fields["plan"], measured_on, measured or ())
    scales = app.calibration_of(calibration, measured or (), seconds_of, note)
    request = app.make_request(**fields, calibration=scales)
    with verified(verify):
        print_plan(app.make_plan(request, note), out, top=top, as_json=json)


@opt.takes(
    "flow model batch settings cluster=largest_cluster prompt_tokens response_tokens engine precision constants "
    "calibration placement pin passes out cache json"
)
def fit(
    fields: opt.Fields,
    calibration: opt.CalibrationFile = None,
    out: opt.PlanOut = None,
    json: opt.Json = False,
) -> None:
    """Find the fewest devices on which a flow fits."""
    scales = app.calibration_of(calibration, (), None, note)
    request = app.make_request(**fields, calibration=scales, objective="devices")
    print_plan(app.make_plan(request, note), out, as_json=json)


def print_plan(result: app.PlanResult, out: Path | None, *, top: int = 5, as_json: bool) -> None:
    """Print a plan, with at most `top` of the plans that the search found; write it to `out` unless `out` is None.

    With `as_json`, prints JSON. The search's seconds and the file's name go to stderr. Raises UsageError if the file
    cannot be written.
    """
    write(out, result.to_json())
    if result.search is not None:
        note(f"searched in {result.search.seconds:.2f} s")
    print_result(result, as_json=as_json, top=top)
    if out is not None:
        note(out)
