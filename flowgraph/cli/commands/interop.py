"""`export` and `import`: a plan for another system, and another system's run as a flow and a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_json, print_result, say, write


def export_command(
    plan: opt.PlanPath,
    to: Annotated[str, opt.option("--to SYSTEM", "verl, openrlhf or nemo-rl.", "verl openrlhf nemo-rl")],
    version: Annotated[
        str, opt.option("--version VERSION", "Version of the system. Default: the newest supported one.")
    ] = "",
    out: Annotated[Path | None, opt.option("-o, --out FOLDER", "A folder for the files. Default: stdout.")] = None,
    json: opt.Json = False,
) -> None:
    """Export a plan to verl, OpenRLHF or NeMo RL.

    The output is the flags and files that start the run there; notes list what that system cannot express.
    """
    result = app.export_plan(plan, to, version)
    files = [] if out is None else result.save(out)
    if json:
        print_json(result.data())
    elif out is None:
        say(result.text())  # lines of a script stay whole
    for file in files:
        note(file)
    for line in result.notes if not json else ():
        note(f"note: {line}")


@opt.takes("command device model prompt_tokens response_tokens constants calibration out found cache json")
def import_command(
    fields: opt.Fields,
    command: Annotated[Path, opt.argument("FILE", "A launch script of verl or OpenRLHF, or a YAML file of verl.")],
    device: Annotated[str, opt.placing("--device DEVICE", "The device model of the run.")] = "h100",
    calibration: opt.CalibrationFile = None,
    out: opt.PlanOut = None,
    found: Annotated[
        Path | None, opt.option("--found PLAN.json", "Write the plan that the search found instead.")
    ] = None,
    json: opt.Json = False,
) -> None:
    """Import a verl or OpenRLHF run as a flow and a plan.

    It forecasts the memory and the step time of that plan, and of the plan that a search finds instead.
    """
    scales = app.calibration_of(calibration, (), None, note)
    request = app.make_request(**fields, calibration=scales)
    result = app.import_command(command, device, request)
    for file, imported in ((out, result.plan), (found, result.replacement)):
        if file is not None and imported is not None:
            write(file, imported.to_json())
            note(file)
        elif file is not None:
            note(f"{file} is not written: the search found no plan that the system can run")
    for line in result.notes:
        note(line)
    print_result(result, as_json=json)
