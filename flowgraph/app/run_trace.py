"""`trace`: what a run measured beside what its plan forecasts, as a Chrome trace or as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from flowgraph.app.plan_result import read_plan
from flowgraph.cluster.plan import Plan, TimedTask
from flowgraph.diagrams.build.memory_picture import highest
from flowgraph.errors import RunFolderError
from flowgraph.runtime.measure.measured_step import NAME, MeasuredStep, measured_events, read_measured
from flowgraph.runtime.record.run_folder import RunFolder


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
        return ("the plan forecasts no seconds: only what was measured is told",) if self.plan.step is None else ()

    @property
    def tasks(self) -> tuple[TaskComparison, ...]:
        """Return each task as forecast and as measured: the median of its seconds over all steps, its highest peak."""
        return tuple(compared(self.plan, self.measured))

    def trace(self, steps: int) -> dict[str, Any]:
        """Return the last steps as a Chrome trace, the forecast in it too if the plan has one."""
        last = self.measured[-steps:]
        events = [*predicted_events(self.plan, len(last)), *measured_events(last, 2)]
        return {"traceEvents": events, "displayTimeUnit": "ms"}


def read_trace(path: Path) -> RunTrace:
    """Read what a run measured. Raises RunFolderError where nothing was measured."""
    run = RunFolder.open(path)
    measured, plan = read_measured(run.path), read_plan(run.path / "plan.json")
    if not measured:
        raise RunFolderError(f"has no step in {NAME}: nothing of it was measured", where=str(path))
    return RunTrace(run=run, plan=plan, measured=tuple(measured))


def predicted_events(plan: Plan, steps: int) -> list[dict[str, Any]]:
    """Return the events of steps as the plan forecasts them, as process 1, a lane for each pool; else none."""
    from placements import simulate

    if plan.step is None or any(task.seconds is None for task in plan.step.tasks):
        return []
    found: list[dict[str, Any]] = simulate(plan.step, steps).trace(f"{plan.flow}, predicted")["traceEvents"]
    return found


def compared(plan: Plan, steps: Sequence[MeasuredStep]) -> Iterator[TaskComparison]:
    """Pair what was measured with what is forecast, task by task as the program names them; the step comes last.

    A run without its recorded nodes is paired with the forecast of the whole run. What was not measured is left out.
    """
    forecast = plan.step.tasks if plan.step is not None else ()
    peaks, held = highest(plan.forecast), highest(each for step in steps for each in step.forecast)
    for name in dict.fromkeys(task.name for step in steps for task in step.timed.tasks):
        times = [task for step in steps for task in step.timed.tasks if task.name == name]
        one = times[-1]
        own = [(pool, one.kind, one.role) for pool in one.pools]
        yield TaskComparison(
            task=name,
            pools=one.pools,
            forecast_s=_total(each for each in forecast if _same(each, one)),
            measured_s=_median(task.seconds for task in times),
            forecast_bytes=max((peaks[key] for key in own if key in peaks), default=None),
            measured_bytes=max((held[key] for key in own if key in held), default=None),
        )
    period_s = plan.step.period_s if plan.step is not None else None
    yield TaskComparison(
        task="a step",
        pools=(),
        forecast_s=period_s,
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


def _total(tasks: Iterable[TimedTask]) -> float | None:
    """Add up the seconds of tasks; None if there is none, or one is not known."""
    times = [task.seconds for task in tasks]
    known = [seconds for seconds in times if seconds is not None]
    return sum(known) if times and len(known) == len(times) else None


def _median(times: Iterable[float | None]) -> float | None:
    known = [seconds for seconds in times if seconds is not None]
    return median(known) if known else None
