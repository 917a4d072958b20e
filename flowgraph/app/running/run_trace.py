"""`trace`: what a run measured beside what its plan forecasts, as a Chrome trace or as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from flowgraph.app.planning.plan_result import read_plan
from flowgraph.cluster.plan import Plan, TimedTask
from flowgraph.diagrams.build.memory_picture import highest
from flowgraph.errors import RunFolderError
from flowgraph.runtime.measure.measured_file import NAME, read_measured
from flowgraph.runtime.measure.measured_step import MeasuredStep
from flowgraph.runtime.measure.measured_trace import measured_events
from flowgraph.runtime.record.run_folder import RunFolder
from placements import simulate


@dataclass(frozen=True)
class TaskComparison:
    """One task, as forecast and as measured: seconds of a step, and the peak on a device; None where not known."""

    task: str
    pools: tuple[str, ...]
    forecast_s: float | None
    measured_s: float | None
    forecast_bytes: int | None
    measured_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class RunTrace:
    """What a run measured, step by step, and the plan that it ran by."""

    run: RunFolder
    plan: Plan
    measured: tuple[MeasuredStep, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Return that nothing is forecast, where nothing is."""
        return ("the plan forecasts no seconds: only what was measured is shown",) if self.plan.step is None else ()

    @property
    def tasks(self) -> tuple[TaskComparison, ...]:
        """Return each task as forecast and as measured: the median of its seconds over all steps, its highest peak."""
        return tuple(compared(self.plan, self.measured))

    def trace(self, steps: int) -> dict[str, Any]:
        """Return the last steps as a Chrome trace, the forecast in it too if the plan has one."""
        last, step = self.measured[-steps:], self.plan.step
        events = measured_events(last, 2)
        if step is not None and all(task.seconds is not None for task in step.tasks):
            predicted = simulate(step, len(last)).trace(f"{self.plan.flow}, predicted")
            events = [*predicted["traceEvents"], *events]
        return {"traceEvents": events, "displayTimeUnit": "ms"}


def read_trace(path: Path) -> RunTrace:
    """Read what a run measured. Raises RunFolderError where nothing was measured."""
    run = RunFolder.open(path)
    measured, plan = read_measured(run.path), read_plan(run.path / "plan.json")
    if not measured:
        raise RunFolderError(f"has no step in {NAME}: nothing of it was measured", where=str(path))
    return RunTrace(run=run, plan=plan, measured=tuple(measured))


def compared(plan: Plan, steps: Sequence[MeasuredStep]) -> Iterator[TaskComparison]:
    """Pair what was measured with what is forecast, task by task as the program names them; the step comes last.

    A run without its recorded nodes is paired with the forecast of the whole run. What was not measured is left out.
    """
    forecast = plan.step.tasks if plan.step is not None else ()
    forecast_peaks = highest(plan.forecast)
    measured_peaks = highest(pool for step in steps for pool in step.forecast)
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
    """Return whether a forecast task is what was measured."""
    if forecast.name == measured.name or forecast.name.startswith(f"{measured.name} ("):
        return True
    moves = {"sync", "transfer", "offload"} & {forecast.kind, measured.kind}
    return not moves and not {*measured.name.split(", ")}.isdisjoint(forecast.name.split(", "))


def _median(times: Iterable[float | None]) -> float | None:
    seconds = [time for time in times if time is not None]
    return median(seconds) if seconds else None
