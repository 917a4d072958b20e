"""Steps of reinforcement learning as frameworks publish them, against the planner's own forecast of the same step.

`python -m benchmarks.forecast.rl --write` writes the runs that are forecast to benchmarks/workloads; with the name of
such a file instead, it is forecast by itself. The null model is one rate of tokens for every device.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.forecast.cells import AMOUNT, COUNT, columns
from benchmarks.forecast.fit_constants import MeasuredCase, scale_of
from benchmarks.forecast.report import Case, Row, Table, View
from benchmarks.forecast.rl_calibrated import by_phase, by_step, one_factor, runs_of, uncalibrated
from benchmarks.forecast.rl_calibrated import cases_of as others_of
from benchmarks.forecast.rl_orders import cases_of as orders
from benchmarks.forecast.rl_rows import Read, read_end_to_end, read_nemo_rl, runs
from benchmarks.forecast.rl_steps import problem_of, seconds_of, step
from benchmarks.forecast.rl_workloads import FOLDER, Workload, read, to_toml
from flowgraph.cluster.plan import StepForecast
from placements.report.search_report import show_s, show_seconds_by_part

Reader = Callable[[Row], Read]


def tokens_of(workload: Workload) -> float:
    """Return the tokens of a step, prompts and responses."""
    drawn = [load for load in problem_of(workload).loads if load.phase == "generate"]
    return sum(load.rows * load.row_tokens for load in drawn)


def cases_of(reads: Iterable[Read], *, guessed: bool = False) -> Iterator[Case]:
    """Yield each row that states its batch and its lengths, or each whose mean length was guessed, by framework."""
    wanted = [each for each in reads if each.workload is None or each.guessed == guessed]
    rates = dict[str, list[float]]()
    for each in wanted:
        if each.workload is not None and each.seconds:
            rate = tokens_of(each.workload) / (each.workload.devices * each.seconds)
            rates.setdefault(each.metric, []).append(rate)
    for each in wanted:
        if each.workload is None or not each.seconds:
            if not guessed:
                yield Case(each.label, each.seconds or 0.0, None, None, each.framework, each.why)
            continue
        found = step(each.workload)
        ours = None if isinstance(found, str) else seconds_of(found, each.metric)
        null = tokens_of(each.workload) / (each.workload.devices * median(rates[each.metric]))
        why = found if isinstance(found, str) else "" if ours else f"no forecast of {each.metric}"
        yield Case(f"{each.label}: {each.metric}", each.seconds, ours, null, each.framework, why)


def scaled(found: Iterable[Case]) -> Iterator[Case]:
    """Yield the same cases, each forecast times the one factor that fits the other runs of its framework best."""
    told = [case for case in found if case.forecast is not None]
    for case in told:
        run = case.label.rpartition(":")[0]
        others = [each for each in told if each.group == case.group and each.label.rpartition(":")[0] != run]
        if not others:
            yield replace(case, forecast=None, why="its framework has no other run")
            continue
        measured = [MeasuredCase(each.label, each.measured, each.forecast) for each in others]
        yield replace(case, forecast=(case.forecast or 0.0) * scale_of(measured, float))


def ratios(reads: Iterable[Read]) -> Iterator[Case]:
    """Yield pairs of runs that differ in their placement: how many times the device seconds of the overlapped one.

    Without overlap, or with devices that are all alike busy, that is 1, which is the null model.
    """
    steps = [each for each in reads if each.metric == "step" and each.workload is not None and each.seconds]
    for one in steps:
        for other in steps:
            if one.pair != other.pair or not (_together(one) and not _together(other)):
                continue
            ours = [_device_seconds(each) for each in (one, other)]
            measured = [each.workload.devices * (each.seconds or 0.0) for each in (one, other) if each.workload]
            forecast = ours[0] / ours[1] if ours[0] and ours[1] else None
            yield Case(f"{one.label} to {other.label}", measured[0] / measured[1], forecast, 1.0, one.framework)


def _together(each: Read) -> bool:
    return each.placed is not None and each.placed.form == "together"


def _device_seconds(each: Read) -> float | None:
    found = step(each.workload) if each.workload is not None else ""
    if isinstance(found, str) or found.period_s is None or each.workload is None:
        return None
    return found.period_s * each.workload.devices


# ------------------------------------------------------------------------------------------- tables


def _views(reader: Reader) -> tuple[View, ...]:
    def reads(rows: Sequence[Row]) -> list[Read]:
        return [reader(row) for row in rows]

    return (
        View("batch and lengths stated", "s", lambda rows: cases_of(reads(rows))),
        View("  one scale for each framework, from its other runs", "s", lambda rows: scaled(cases_of(reads(rows)))),
        View("a mean length guessed", "s", lambda rows: cases_of(reads(rows), guessed=True)),
        View("  one scale for each framework", "s", lambda rows: scaled(cases_of(reads(rows), guessed=True))),
        View("device seconds, all roles together to overlapped", "ratio", lambda rows: ratios(reads(rows))),
        View(f"{OTHERS}: without a calibration", "s", lambda rows: others_of(runs_of(reads(rows)), uncalibrated)),
        View(f"{OTHERS}: one factor, no prior", "s", lambda rows: others_of(runs_of(reads(rows)), one_factor)),
        View(f"{OTHERS}: calibrated by its step", "s", lambda rows: others_of(runs_of(reads(rows)), by_step)),
        View(f"{OTHERS}: by its step and phases", "s", lambda rows: others_of(runs_of(reads(rows)), by_phase)),
    )


OTHERS = "a step after one run of the same system was measured"
ORDER = View(
    "systems of one setting in order, 5% apart or more: the mean is the share of pairs ordered wrong", "-", orders
)
NEMO_RL = frozenset(("policy_mode", "gen_gbs", "train_gbs", "gen_tp_pp", "train_tp_cp_ep_pp_vpp", "step_time_s"))
END_TO_END = frozenset(("framework", "placement_mode", "train_backend", "rollout_backend", "metric", "value", "unit"))
TABLES = (
    Table(
        "steps of NeMo-RL",
        NEMO_RL,
        _views(read_nemo_rl),
        columns(COUNT, "max_seq_len", "gpus", "gen_gbs", "train_gbs") | columns(AMOUNT, "avg_seq_len", "step_time_s"),
    ),
    Table(
        "steps of RL frameworks",
        END_TO_END,
        (*_views(read_end_to_end), ORDER),
        columns(COUNT, "n_gpus") | columns(AMOUNT, "value"),
    ),
)


def workloads(rows: Iterable[Row]) -> list[Workload]:
    """Return the runs of a table that say enough to be forecast, each once."""
    return list(runs([read_nemo_rl(row) if row.keys() >= NEMO_RL else read_end_to_end(row) for row in rows]))


# ------------------------------------------------------------------------------------------- by hand


def workload_text(workload: Workload, found: StepForecast) -> str:
    """Write the forecast of a run: its step and each task, beside what was measured."""
    tasks = (
        f"  {task.name} on {'+'.join(task.pools)}: {show_s(task.seconds)}  {show_seconds_by_part(task)}".rstrip()
        for task in found.tasks
    )
    clocks = (_clock_text(metric, seconds, found) for metric, seconds in workload.measured.items())
    lines = [workload.label, *(f"  assumed: {each}" for each in workload.assumed), f"  step {show_s(found.period_s)}"]
    return "\n".join([*lines, *tasks, *clocks, f"  {workload.command}"])


def _clock_text(metric: str, seconds: float, found: StepForecast) -> str:
    ours = seconds_of(found, metric)
    off = f", {ours / seconds - 1:+.0%}" if ours else ""
    return f"  measured {metric} {show_s(seconds)}, forecast {show_s(ours)}{off}"


def main() -> int:
    """Forecast the workload files that are named, and write all of them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="workload files")
    parser.add_argument("--write", action="store_true", help="write the workloads of benchmarks/measured")
    asked = parser.parse_args()
    for path in asked.files:
        workload = read(path)
        found = step(workload)
        print(found if isinstance(found, str) else workload_text(workload, found))
    if asked.write:
        write()
    return 0


def files() -> dict[str, str]:
    """Return the text of each workload file by its name: of every run in benchmarks/measured that says enough."""
    from benchmarks.forecast.__main__ import MEASURED
    from benchmarks.forecast.__main__ import read as rows_of

    found = (each for name in ("rl_nemo_rl.csv", "rl_end2end.csv") for each in workloads(rows_of(MEASURED / name)))
    return {each.file: to_toml(each) for each in found}


def write(folder: Path = FOLDER) -> None:
    """Write all workload files, and take away those of runs that are no more."""
    wanted = files()
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.toml"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, "utf-8")


if __name__ == "__main__":
    sys.exit(main())
