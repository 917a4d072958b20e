"""`runs`, `report` and `trace`: the runs of a folder, the metrics of a run, and its measured and forecast seconds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from flowgraph.app.planning.plan_result import read_plan
from flowgraph.app.user_files import write_text
from flowgraph.cluster.plan import Plan, TimedTask
from flowgraph.diagrams.build.memory_picture import highest_peaks
from flowgraph.diagrams.model.charts import Curves
from flowgraph.diagrams.model.series import Series
from flowgraph.diagrams.write.svg.curves import curves_svg
from flowgraph.errors import RunFolderError, SettingError
from flowgraph.runtime.measure.measured_step import NAME, MeasuredStep, measured_events, read_measured
from flowgraph.runtime.record.run_folder import RunFolder
from placements import simulate

Points = list[tuple[int, float]]
MAX_NODES = 4  # whose seconds are in the picture, the slowest


def list_runs(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each run in a folder, newest first, with its status and its last recorded reward and accuracy.

    The keys are `run` (its path), `flow`, `status`, `steps` (as text, `DONE/PLANNED`), `started`, `reward` and
    `accuracy` (on held-out prompts); these two are None if the run has none. A run with damaged files has the status
    `damaged: REASON` and the start "", and comes last; its other values are None.
    """
    rows = list[dict[str, Any]]()
    for file in folder.glob("*/run.json"):
        row: dict[str, Any] = dict.fromkeys(("run", "flow", "status", "steps", "started", "reward", "accuracy"))
        row |= {"run": str(file.parent), "started": ""}
        try:
            run = RunFolder.open(file.parent)
            facts, curves = run.facts(), curves_of(run)
        except RunFolderError as error:
            rows.append(row | {"status": f"damaged: {error.what}"})
            continue
        rewards = (points[-1][1] for name, points in curves.items() if name.rpartition(".")[2] == "reward")
        row |= {
            "flow": facts.get("flow"),
            "status": facts.get("status"),
            "steps": f"{facts.get('steps_done')}/{facts.get('steps')}",
            "started": facts.get("started", ""),
            "reward": next(rewards, None),
            "accuracy": curves["eval/accuracy"][-1][1] if "eval/accuracy" in curves else None,
        }
        rows.append(row)
    return sorted(rows, key=lambda row: str(row["started"]), reverse=True)


def curves_of(run: RunFolder) -> dict[str, Points]:
    """Return the points (step, value) of each metric of a run, in recorded order, by name.

    Tokens per second (`tokens_per_s`) and seconds of a step (`step_s`) are among the metrics. Raises RunFolderError if
    the metrics cannot be read.
    """
    curves = defaultdict[str, Points](list)
    for line in run.metrics():
        step = line.pop("step")
        times = line.pop("time", {})
        for name, value in line.items():
            curves[name].append((step, value))
        for name in ("tokens_per_s", "step_s"):
            if name in times:
                curves[name].append((step, times[name]))
    return dict(curves)


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """The progress of a run: its facts, the points (step, value) of its metrics, and the seconds of its nodes.

    `nodes_s` are mean seconds per step. If steps overlap, `idle` is the mean idle share of each pool, and `waited_s`
    the mean seconds per step that each pool waits for weights. Each of `peaks` has the highest measured bytes of a
    phase and role on a device of its pool, with the forecast bytes, None without a forecast. `drawn` is the SVG file of
    the curves.
    """

    run: RunFolder
    facts: Mapping[str, Any]
    curves: Mapping[str, Points]
    nodes_s: Mapping[str, float]
    idle: Mapping[str, float]
    waited_s: Mapping[str, float]
    peaks: tuple[Mapping[str, Any], ...]
    drawn: Path

    @property
    def headlines(self) -> dict[str, str]:
        """Return the short names of the run's headline metrics by full name, with held-out accuracies first."""
        return short_metric_names(_lead(self.facts, self.curves))

    def data(self) -> dict[str, Any]:
        """Return the report as JSON-compatible data, with only the first and the last point of each metric.

        The keys are `run` (the facts), `metrics` (`first` and `last` by name), `nodes_s`, `peaks`, `curves` (the path
        of the picture) and, if steps overlap, `idle` and `waited_s`.
        """
        metrics = {name: {"first": points[0], "last": points[-1]} for name, points in self.curves.items()}
        report = {"run": dict(self.facts), "metrics": metrics, "nodes_s": dict(self.nodes_s)}
        if self.idle:
            report |= {"idle": dict(self.idle), "waited_s": dict(self.waited_s)}
        return report | {"peaks": [dict(peak) for peak in self.peaks], "curves": str(self.drawn)}


def report_run(path: Path) -> RunReport:
    """Return the report of a run's folder, and write its curves to `curves.svg` in that folder.

    Raises RunFolderError for a folder without a run or with files that cannot be read, PlanError for an unreadable
    plan, and UsageError if the picture cannot be written.
    """
    run = RunFolder.open(path)
    picture, drawn = curves_picture(run), run.path / "curves.svg"
    write_text(drawn, curves_svg(picture))
    steps = read_measured(run.path)
    forecast = highest_peaks(read_plan(run.path / "plan.json").forecast) if steps else {}
    peaks = [
        {"pool": pool, "phase": phase, "role": role, "forecast_bytes": forecast.get(key), "measured_bytes": in_use}
        for key, in_use in highest_peaks(pool for step in steps for pool in step.forecast).items()
        for pool, phase, role in [key]
    ]
    return RunReport(
        run=run,
        facts=run.facts(),
        curves=curves_of(run),
        nodes_s=_node_means(run),
        idle=_pool_means(run, "idle"),
        waited_s=_pool_means(run, "waited_s"),
        peaks=tuple(peaks),
        drawn=drawn,
    )


def curves_picture(run: RunFolder) -> Curves:
    """Return the picture of a run's curves: its headline metrics, then the seconds of its four slowest nodes.

    Raises RunFolderError if the run's facts or metrics cannot be read.
    """
    facts, curves = run.facts(), curves_of(run)
    lead = _lead(facts, curves)
    names, units = (
        short_metric_names(lead),
        {name: str(metric.get("unit", "")) for name, metric in facts["metrics"].items()},
    )
    series = list[Series]()
    for name in lead:
        unit = units.get(name, "") or ("tokens/s" if name == "tokens_per_s" else "")
        series.append(Series(name=names[name], unit=unit, points=tuple(curves[name]), headline=True))
    steps = [(line["step"], line.get("time", {}).get("nodes_s", {})) for line in run.metrics()]
    for name in list(_node_means(run))[:MAX_NODES]:
        points = tuple((step, seconds[name]) for step, seconds in steps if name in seconds)
        series.append(Series(name=name, unit="s a step", points=points))
    about = f"{facts['steps_done']} of {facts['steps']} steps of {facts['flow']}, {facts['status']}."
    return Curves(title=f"{facts['flow']} · {run.path.name}", series=tuple(series), about=about)


def _lead(facts: Mapping[str, Any], curves: Mapping[str, Points]) -> list[str]:
    headlines = [name for name, metric in facts["metrics"].items() if metric.get("headline")]
    return [name for name in (*eval_headlines(curves), *headlines, "tokens_per_s") if name in curves]


def eval_headlines(names: Collection[str]) -> list[str]:
    """Return the headline metrics among `names`: held-out accuracy, and that of each source if there are several.

    >>> eval_headlines(["eval/accuracy", "eval/reward", "eval/a", "eval/a/reward", "eval/b", "eval/b/reward"])
    ['eval/accuracy', 'eval/a', 'eval/b']
    """
    sources = [name for name in names if name.startswith("eval/") and f"{name}/reward" in names]
    return [*(["eval/accuracy"] if "eval/accuracy" in names else []), *(sources if len(sources) > 1 else [])]


def _node_means(run: RunFolder) -> dict[str, float]:
    """Return the mean seconds of each node over the steps of a run, longest first."""
    steps = [times for line in run.metrics() if (times := line.get("time", {}).get("nodes_s"))]
    sums = Counter[str]()
    for times in steps:
        sums.update(times)
    return {name: total / len(steps) for name, total in sums.most_common()}


def _pool_means(run: RunFolder, table: str) -> dict[str, float]:
    """Return the mean of each pool's `idle` or `waited_s` over the steps in which its idle share is known."""
    sums, steps = defaultdict[str, float](float), Counter[str]()
    for line in run.metrics():
        times = line.get("time", {})
        steps.update(times.get("idle", {}).keys())
        for name, measured in times.get(table, {}).items():
            sums[name] += measured
    means = {name: total / max(1, steps[name]) for name, total in sums.items()}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def short_metric_names(names: Iterable[str]) -> dict[str, str]:
    """Return the short name of each metric, without the name of its node, by full name.

    If two short names would be equal, both metrics keep their full names; `eval/…` is never shortened.

    >>> short_metric_names(["policy.update.loss", "critic.update.loss", "eval/accuracy", "score.reward"]).values()
    dict_values(['policy.update.loss', 'critic.update.loss', 'eval/accuracy', 'reward'])
    """
    last = {name: name if name.startswith("eval/") else name.rpartition(".")[2] for name in names}
    counts = Counter(last.values())
    return {name: part if counts[part] == 1 else name for name, part in last.items()}


@dataclass(frozen=True)
class TaskComparison:
    """The forecast and measured seconds per step of one task, and its peak bytes on a device; None if not known."""

    task: str
    pools: tuple[str, ...]
    forecast_s: float | None
    measured_s: float | None
    forecast_bytes: int | None
    measured_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class RunTrace:
    """The measured steps of a run, and its plan."""

    run: RunFolder
    plan: Plan
    measured: tuple[MeasuredStep, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a note if the plan does not forecast the seconds of a step; otherwise, an empty tuple."""
        return ("the plan forecasts no seconds: only what was measured is shown",) if self.plan.step is None else ()

    @property
    def tasks(self) -> tuple[TaskComparison, ...]:
        """Return the forecast and the measurement of each task, and then of the whole step.

        Measured seconds are the median over all steps; measured bytes are the highest peak on a device.
        """
        return tuple(compare_tasks(self.plan, self.measured))

    def trace(self, steps: int) -> dict[str, Any]:
        """Return the last `steps` measured steps as a Chrome trace, with the forecast of as many steps.

        The result is the JSON object of the trace, with the events of both. The forecast is left out if the plan does
        not forecast the seconds of every task. Raises SettingError for fewer than one step.
        """
        if steps < 1:
            raise SettingError.refused("--steps", "steps", steps, "should be a whole number from 1")
        last, step = self.measured[-steps:], self.plan.step
        events = measured_events(last, 2)
        if step is not None and all(task.seconds is not None for task in step.tasks):
            predicted = simulate(step, len(last)).trace(f"{self.plan.flow}, predicted")
            events = [*predicted["traceEvents"], *events]
        return {"traceEvents": events, "displayTimeUnit": "ms"}


def read_trace(path: Path) -> RunTrace:
    """Return the measured steps of a run's folder, with its plan.

    Raises RunFolderError for a folder without a run, without a measured step, or with measurements that cannot be read;
    PlanError for an unreadable plan.
    """
    run = RunFolder.open(path)
    measured, plan = read_measured(run.path), read_plan(run.path / "plan.json")
    if not measured:
        raise RunFolderError(f"has no step in {NAME}: nothing was measured", where=str(path))
    return RunTrace(run=run, plan=plan, measured=tuple(measured))


def compare_tasks(plan: Plan, steps: Sequence[MeasuredStep]) -> Iterator[TaskComparison]:
    """Yield the forecast and measured seconds and bytes of each measured task, and then of the whole step.

    Measured seconds are the median over `steps`, and measured bytes the highest peak on a device. Unknown values are
    None; bytes of the whole step always are. A replayed run skips the recorded nodes, but its step is compared with the
    forecast of all nodes.
    """
    forecast = plan.step.tasks if plan.step is not None else ()
    forecast_peaks = highest_peaks(plan.forecast)
    measured_peaks = highest_peaks(pool for step in steps for pool in step.forecast)
    for name in dict.fromkeys(task.name for step in steps for task in step.timed.tasks):
        runs = [task for step in steps for task in step.timed.tasks if task.name == name]
        last = runs[-1]
        keys = [(pool, last.kind, last.role) for pool in last.pools]
        seconds = [task.seconds for task in forecast if _same(task, last)]
        yield TaskComparison(
            task=name,
            pools=last.pools,
            forecast_s=sum(s for s in seconds if s is not None) if seconds and None not in seconds else None,
            measured_s=_median(task.seconds for task in runs),
            forecast_bytes=max((forecast_peaks[key] for key in keys if key in forecast_peaks), default=None),
            measured_bytes=max((measured_peaks[key] for key in keys if key in measured_peaks), default=None),
        )
    yield TaskComparison(
        task="a step",
        pools=(),
        forecast_s=plan.step.period_s if plan.step is not None else None,
        measured_s=_median(step.timed.period_s for step in steps),
        forecast_bytes=None,
        measured_bytes=None,
    )


def _same(forecast: TimedTask, measured: TimedTask) -> bool:
    if forecast.name == measured.name or forecast.name.startswith(f"{measured.name} ("):
        return True
    moves = {"sync", "transfer", "offload"} & {forecast.kind, measured.kind}
    return not moves and not {*measured.name.split(", ")}.isdisjoint(forecast.name.split(", "))


def _median(times: Iterable[float | None]) -> float | None:
    seconds = [time for time in times if time is not None]
    return median(seconds) if seconds else None
