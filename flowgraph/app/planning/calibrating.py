"""`calibrate`, and what calibrates a plan: measured seconds, read and fitted. No torch is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.app.planning.plan_result import read_plan
from flowgraph.app.planning.problem import prepare_from
from flowgraph.app.request import Say
from flowgraph.cluster.calibration import Calibration
from flowgraph.cluster.cluster import of_unknown_speed
from flowgraph.errors import DataError, PlanError, UsageError, nearest
from flowgraph.files.untrusted import read_bytes, read_text
from flowgraph.runtime.record.run_folder import RunFolder
from placements import calibration

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Plan
    from placements import PlanningProblem

LOG_BYTES = 2**26  # of a log or a trace: as much as a profile of ours has at most


def calibrate_runs(
    paths: Sequence[Path], plan: Path | None, measured: Sequence[str], say: Say
) -> calibration.CalibrationResult:
    """Fit scales to the seconds that runs have measured."""
    if measured and len(paths) > 1:
        what = "is of one plan, and several files are named"
        raise UsageError(what, where=f"--measured {measured[0]}", hint="calibrate each plan with its own seconds")
    fit = calibration.calibrate([_run(path, plan, measured, say) for path in paths], _source(paths, measured))
    _refuse_unknown(fit, measured)
    return fit


def calibration_of(file: Path | None, measured: Sequence[str], plan: Path | None, say: Say) -> Calibration | None:
    """Return the calibration of a file, or of seconds `measured` on a plan; None where neither is given.

    Raises UsageError for both, and for seconds that do not say on which plan they were measured.
    """
    if not measured:
        return None if file is None else read_calibration(file)
    where = f"--measured {measured[0]}"
    if file is not None:
        what, hint = f"--calibration {file} is given too", "give both to `calibrate`, and its file to --calibration"
        raise UsageError(what, where=where, hint=hint)
    if plan is None:
        what = "does not say which plan took these seconds"
        raise UsageError(what, where=where, hint="--measured-on PLAN.json, the plan that ran")
    return calibrate_runs([plan], None, measured, say).calibration


def _refuse_unknown(found: calibration.CalibrationResult, measured: Sequence[str]) -> None:
    """Refuse seconds of a command line for what has no forecast. What a log has beyond the plan is printed instead."""
    for text in measured:
        name = text.partition("=")[0]
        if name not in found.names:
            raise UsageError(
                f"no seconds are forecast for `{name}`", where=f"--measured {text}", hint=nearest(name, found.names)
            )


def read_calibration(path: Path) -> Calibration:
    """Return the calibration of a file. Raises UsageError for a file that cannot be read, DataError for another one."""
    try:
        return Calibration.from_json(read_text(path), str(path))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=f"--calibration {path}") from None
    except UnicodeDecodeError:
        raise UsageError("is not text, so not a calibration", where=f"--calibration {path}") from None


def _source(paths: Sequence[Path], measured: Sequence[str]) -> str:
    names = ", ".join(str(path) for path in paths)
    return f"{', '.join(measured)} on {names}" if measured else names


# ------------------------------------------------------------------------------------------------- what was measured


def _run(path: Path, plan: Path | None, measured: Sequence[str], say: Say) -> calibration.MeasuredRun:
    """Return what was measured: by a run's folder, by a log of a run of `plan`, or on a plan's file by hand."""
    if path.is_file() and plan is not None:
        return _logged(path, plan, say)
    if plan is not None:
        why = "has its own plan" if path.is_dir() else "is not a log"
        raise UsageError(f"{path} {why}", where=f"--plan {plan}", hint="--plan is the plan whose run wrote a log")
    if path.is_file():
        timings, file = tuple(calibration.given_timings(measured, str(path))), path
    else:
        folder = RunFolder.open(path)
        if measured:
            what = f"{path} has measured its own seconds"
            raise UsageError(what, where=f"--measured {measured[0]}", hint=f"calibrate {path}/plan.json --measured …")
        timings = tuple(calibration.recorded_timings(folder.metrics(), str(path / "metrics.jsonl")))
        file = folder.path / "plan.json"
    plan_read = read_plan(file)
    return calibration.MeasuredRun.of(path.name, _timed_problem(plan_read, file), plan_read, timings)


def _timed_problem(plan: Plan, file: Path) -> PlanningProblem:
    """Return the problem of a plan. Raises PlanError where no seconds are forecast."""
    if plan.step is None:
        hint = "`plan FLOW -o plan.json` makes one that does"
        raise PlanError.unreadable(str(file), "", f"forecasts no seconds, so there is nothing to fit; {hint}")
    if not all(device.model for device in plan.used()):
        why = f"the speed of {of_unknown_speed(plan.cluster)}, is not known, so there is nothing to fit"
        raise PlanError.unreadable(str(file), "", why)
    return prepare_from(plan, str(file)).setting


def _logged(path: Path, file: Path, say: Say) -> calibration.MeasuredRun:
    """Return what the log of a run of a plan has measured; say what of it is not used."""
    plan = read_plan(file)
    problem = _timed_problem(plan, file)
    try:
        text = read_bytes(path, LOG_BYTES).decode("utf-8")
    except OSError as error:
        raise DataError.unusable(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError.unusable(path, "is not text, so not a log", f"calibrate reads {calibration.KNOWN}") from None
    timings = calibration.logged_timings(text, path, problem, plan, say)
    if not timings:
        raise DataError.unusable(path, f"has no timer of a node of {file}")
    return calibration.MeasuredRun.of(path.name, problem, plan, timings)
