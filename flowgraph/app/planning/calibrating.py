"""`calibrate`: measured seconds are read and fitted, and the calibration of a request is found. No torch is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.app.planning.plan_result import read_plan
from flowgraph.app.planning.problem import prepare_from
from flowgraph.app.request import Say
from flowgraph.app.user_files import text_of
from flowgraph.cluster.calibration import Calibration
from flowgraph.cluster.cluster import device_of_unknown_speed
from flowgraph.errors import DataError, PlanError, UsageError, nearest
from flowgraph.runtime.record.run_folder import RunFolder
from placements import calibration

if TYPE_CHECKING:
    pass

LOG_BYTES = 2**26  # of a log or a trace: as much as a profile of ours has at most


def calibrate_runs(
    paths: Sequence[Path], plan: Path | None, measured: Sequence[str], say: Say
) -> calibration.CalibrationResult:
    """Fit scales of the forecast to measured seconds, and return the scales with their 90% intervals.

    `paths` are run folders, logs of runs of `plan`, or the file of one plan with `measured`, its seconds as texts
    `name=seconds`. `say` receives each note. Raises UsageError, for example, for `measured` with several paths or with
    a name for which the plan forecasts no seconds; DataError, for example, for a log without a timer of the plan's
    nodes; PlanError, for example, for a plan that forecasts no seconds; and RunFolderError for a folder that is not a
    run folder.
    """
    if measured and len(paths) > 1:
        what = "belongs to one plan, but several files are given"
        raise UsageError(what, where=f"--measured {measured[0]}", hint="calibrate each plan with its own seconds")
    names = ", ".join(map(str, paths))
    source = f"{', '.join(measured)} on {names}" if measured else names
    result = calibration.calibrate([_measured_run(path, plan, measured, say) for path in paths], source)
    for text in measured:  # what a log has beyond the plan is printed instead
        name = text.partition("=")[0]
        if name not in result.names:
            hint = nearest(name, result.names)
            raise UsageError(f"no seconds are forecast for `{name}`", where=f"--measured {text}", hint=hint)
    return result


def calibration_of(file: Path | None, measured: Sequence[str], plan: Path | None, say: Say) -> Calibration | None:
    """Return the calibration in a file, or one fitted to seconds `measured` on a plan; None if neither is given.

    `measured` are texts `name=seconds`, and `say` receives each note of the fit. Raises UsageError if both are given,
    for seconds without a plan, and for a file that cannot be read; DataError for a file without a calibration; and the
    errors of `calibrate_runs`.
    """
    if not measured:
        if file is None:
            return None
        text = text_of(file, "calibration", lambda why: UsageError(why, where=f"--calibration {file}"))
        return Calibration.from_json(text, str(file))
    where = f"--measured {measured[0]}"
    if file is not None:
        what, hint = f"cannot be combined with --calibration {file}", "pass both to `calibrate` instead"
        raise UsageError(what, where=where, hint=hint)
    if plan is None:
        what = "does not say which plan took these seconds"
        raise UsageError(what, where=where, hint="--measured-on PLAN.json, the plan that ran")
    return calibrate_runs([plan], None, measured, say).calibration


def _measured_run(path: Path, plan: Path | None, measured: Sequence[str], say: Say) -> calibration.MeasuredRun:
    if path.is_file():
        timings = () if plan is not None else tuple(calibration.given_timings(measured, str(path)))
        file = plan or path
    elif plan is not None:
        why = "has its own plan" if path.is_dir() else "is not a log"
        raise UsageError(f"{path} {why}", where=f"--plan {plan}", hint="--plan is the plan whose run wrote a log")
    else:
        folder = RunFolder.open(path)
        if measured:
            what = f"{path} has measured its own seconds"
            raise UsageError(what, where=f"--measured {measured[0]}", hint=f"calibrate {path}/plan.json --measured …")
        timings = tuple(calibration.recorded_timings(folder.metrics(), str(path / "metrics.jsonl")))
        file = folder.path / "plan.json"
    timed = read_plan(file)
    if timed.step is None:
        why = "forecasts no seconds, so there is nothing to fit; `plan FLOW -o plan.json` makes one that does"
        raise PlanError.unreadable(str(file), "", why)
    if not all(device.model for device in timed.used()):
        why = f"the speed of {device_of_unknown_speed(timed.cluster)}, is not known, so there is nothing to fit"
        raise PlanError.unreadable(str(file), "", why)
    problem = prepare_from(timed, str(file)).problem
    if path.is_file() and plan is not None:
        kind = f"log; `calibrate` reads {calibration.KNOWN}"
        text = text_of(path, kind, lambda why: DataError.unusable(path, why), LOG_BYTES)
        timings = calibration.logged_timings(text, path, problem, timed, say)
        if not timings:
            raise DataError.unusable(path, f"has no timer of a node of {file}")
    return calibration.MeasuredRun.of(path.name, problem, timed, timings)
