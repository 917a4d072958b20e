"""`calibrate`, and the options that calibrate a plan: measured seconds, read and fitted. No torch is loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.cli.plan_result import read_plan
from flowgraph.cli.planning_request import of_unknown_speed, posed_by
from flowgraph.cli.written_files import write_text
from flowgraph.cluster.calibration import Calibration
from flowgraph.errors import DataError, PlanError, UsageError, nearest
from flowgraph.files.untrusted import read_bytes, read_text
from flowgraph.runtime.record.run_folder import RunFolder
from placements.calibrate import refuse_no_seconds
from placements.cuts import many
from placements.homes import homes_by
from placements.measured_runs import MeasuredRun, Timing, repair, seconds_by_node
from placements.timing_logs import KNOWN, read_log
from placements.timing_names import matched

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Plan
    from placements.homes import Home
    from placements.measured_runs import Repair
    from placements.setting import Setting

TIMED = ("generate", "logprob", "update", "score", "host", "sync")  # kinds of tasks whose seconds a calibration scales
LOG_BYTES = 2**26  # of a log or a trace: as much as a profile of ours has at most


def calibrate(
    paths: Sequence[Path], plan: Path | None, measured: Sequence[str], out: Path | None, as_json: bool
) -> None:
    """Fit scales to what runs have measured, print them and what they repair, and write them to `out`."""
    if measured and len(paths) > 1:
        what = "is of one plan, and several files are named"
        raise UsageError(what, where=f"--measured {measured[0]}", hint="calibrate each plan with its own seconds")
    found = repair([_run(path, plan, measured) for path in paths], _source(paths, measured))
    _refuse_unknown(found, measured)
    if out is not None:
        write_text(out, found.calibration.to_json())
    if as_json:
        print(json.dumps(_data(found), indent=1))
    else:
        print("\n".join(_lines(found)))
    for label, why in found.unused.items():
        print(f"not used: {label}: {why}", file=sys.stderr)
    if out is not None:
        print(out, file=sys.stderr)


def asked_calibration(file: Path | None, measured: Sequence[str], plan: Path | None) -> Calibration | None:
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
    found = repair([_run(plan, None, measured)], _source([plan], measured))
    _refuse_unknown(found, measured)
    return found.calibration


def _refuse_unknown(found: Repair, measured: Sequence[str]) -> None:
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


def _run(path: Path, plan: Path | None, measured: Sequence[str]) -> MeasuredRun:
    """Return what was measured: by a run's folder, by a log of a run of `plan`, or on a plan's file by hand."""
    if path.is_file() and plan is not None:
        return _logged(path, plan)
    if plan is not None:
        why = "has its own plan" if path.is_dir() else "is not a log"
        raise UsageError(f"{path} {why}", where=f"--plan {plan}", hint="--plan is the plan whose run wrote a log")
    if path.is_file():
        file, timings = path, tuple(_by_hand(measured, path))
    else:
        file, timings = _recorded(path, measured)
    setting, homes = _placed(read_plan(file), file)
    return MeasuredRun(path.name, setting, homes, timings)


def _placed(plan: Plan, file: Path) -> tuple[Setting, tuple[Home, ...]]:
    """Return the setting of a plan and where its roles live. Raises PlanError where no seconds are forecast."""
    if plan.step is None:
        hint = "`plan FLOW -o plan.json` makes one that does"
        raise PlanError.unreadable(str(file), "", f"forecasts no seconds, so there is nothing to fit; {hint}")
    if not all(device.model for device in plan.used()):
        why = f"the speed of {of_unknown_speed(plan.cluster)}, is not known, so there is nothing to fit"
        raise PlanError.unreadable(str(file), "", why)
    setting = posed_by(plan, str(file)).setting
    return setting, tuple(homes_by(setting, plan))


def _recorded(path: Path, measured: Sequence[str]) -> tuple[Path, tuple[Timing, ...]]:
    """Return the plan's file of a run's folder, and the seconds of its nodes."""
    folder = RunFolder.open(path)
    if measured:
        what = f"{path} has measured its own seconds"
        raise UsageError(what, where=f"--measured {measured[0]}", hint=f"calibrate {path}/plan.json --measured …")
    seconds = seconds_by_node(folder.metrics(), str(path / "metrics.jsonl"))
    return folder.path / "plan.json", tuple(Timing(name, each, (name,)) for name, each in seconds.items())


def _logged(path: Path, file: Path) -> MeasuredRun:
    """Return what the log of a run of a plan has measured; print what of it is not used."""
    plan = read_plan(file)
    setting, homes = _placed(plan, file)
    tasks = plan.step.tasks if plan.step is not None else ()
    try:
        text = read_bytes(path, LOG_BYTES).decode("utf-8")
    except OSError as error:
        raise DataError.unusable(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError.unusable(path, "is not text, so not a log", f"calibrate reads {KNOWN}") from None
    log = read_log(text, str(path), _ranges([task.name for task in tasks if task.kind in TIMED]))
    found = matched(log, setting)
    for name in log.unreadable:
        print(f"not used: {path.name} {name}: not a number of seconds", file=sys.stderr)
    for name, why in found.unused.items():
        print(f"not used: {path.name} {name}: {why}", file=sys.stderr)
    if log.other:
        others = many(log.other, "range") if log.system == "trace" else many(log.other, "metric")
        print(f"not used: {path.name}: {others} of other names", file=sys.stderr)
    if not found.timings:
        raise DataError.unusable(path, f"has no timer of a node of {file}")
    return MeasuredRun(path.name, setting, homes, found.timings)


def _ranges(names: Sequence[str]) -> dict[str, str]:
    """Return the task of each name that a range of a trace may have: profiles put `-` between the nodes of a task."""
    return {name.replace(", ", "-"): name for name in names} | {name: name for name in names}


def _by_hand(texts: Sequence[str], path: Path) -> Iterator[Timing]:
    """Return the seconds of a command line. Raises UsageError if there are none, or for text that is not seconds."""
    if not texts:
        what = "says nothing of what a run of it took"
        hint = "a plan takes --measured policy.generate=310; a log takes --plan PLAN.json"
        raise UsageError(what, where=f"calibrate {path}", hint=hint)
    names = [text.partition("=")[0] for text in texts]
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            seconds = float(value)
        except ValueError:
            equals, seconds = "", 0.0
        if not equals or not name:
            raise UsageError("should be NODE=SECONDS", where=f"--measured {text}", hint="policy.generate=310")
        if names.count(name) > 1:
            raise UsageError(f"`{name}` is said twice", where=f"--measured {text}", hint="leave one of them out")
        refuse_no_seconds(f"--measured {name}", seconds)
        yield Timing(name, seconds, (name,))


# ------------------------------------------------------------------------------------------------- what is printed


def _data(found: Repair) -> dict[str, object]:
    return {
        "calibration": json.loads(found.calibration.to_json()),
        "before": asdict(found.before),
        "after": asdict(found.after),
        "far": dict(found.far),
        "unused": dict(found.unused),
    }


def _lines(found: Repair) -> Iterator[str]:
    yield f"before  {found.before}"
    yield f"after   {found.after}"
    for device in found.calibration.devices:
        yield device
        for scale in found.calibration.scales:
            if scale.device == device:
                name = f"{scale.phase} {scale.role}".strip()
                counted = f"{scale.measurements} measured" if scale.measurements else "not measured"
                yield f"  {name:<28} {scale.factor:.3f} ({scale.low:.2f} to {scale.high:.2f}), {counted}"
    for label, times in found.far.items():
        yield f"far off: {label} took {times:.3g} times what is forecast, so its seconds may be wrong"
