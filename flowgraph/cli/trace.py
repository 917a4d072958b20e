"""`trace`: what a run measured beside what its plan forecasts, as a Chrome trace or as a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flowgraph.cli.listings import columns_there
from flowgraph.cli.plan_result import read_plan
from flowgraph.cli.written_files import write_text
from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import Plan, TimedTask
from flowgraph.diagrams.build.memory_picture import highest
from flowgraph.errors import RunFolderError
from flowgraph.runtime.measure.measured_file import NAME, read_measured
from flowgraph.runtime.measure.measured_step import MeasuredStep
from flowgraph.runtime.measure.measured_trace import measured_events
from flowgraph.runtime.record.run_folder import RunFolder

SHOWN_NAME = 36  # characters of a task's name in the table, so that it fits in 100 columns


@dataclass(frozen=True)
class TaskComparison:
    """One task, as forecast and as measured: seconds of a step, and the peak on a device; None where not known."""

    task: str
    pools: tuple[str, ...]
    forecast_s: float | None
    measured_s: float | None
    forecast_bytes: int | None
    measured_bytes: int | None


def trace_run(path: Path, out: Path | None, steps: int, compare: bool, as_json: bool) -> None:
    """Write the last steps of a run as a trace, the forecast in it too if its plan has one; or `compare` all steps.

    Raises RunFolderError for a run of which nothing was measured.
    """
    run = RunFolder.open(path)
    measured, plan = read_measured(run.path), read_plan(run.path / "plan.json")
    if not measured:
        raise RunFolderError(f"has no step in {NAME}: nothing of it was measured", where=str(path))
    if plan.step is None:
        print("the plan forecasts no seconds: only what was measured is told", file=sys.stderr)
    if compare:
        show_compared(plan, measured, as_json)
        return
    shown = measured[-steps:]
    trace = {"traceEvents": [*predicted_events(plan, len(shown)), *measured_events(shown, 2)], "displayTimeUnit": "ms"}
    if out is not None or not as_json:
        target = out or run.path / "trace.json"
        write_text(target, json.dumps(trace) + "\n")
        print(target)
    else:
        print(json.dumps(trace))


def predicted_events(plan: Plan, steps: int) -> list[dict[str, Any]]:
    """Give the events of so many steps as the plan forecasts them, as process 1, a lane for each pool; else none."""
    from placements.chrome_trace import chrome_trace
    from placements.step_forecast import schedule_of
    from placements.timeline import play

    if plan.step is None or any(task.seconds is None for task in plan.step.tasks):
        return []
    played = play(schedule_of(plan.step.tasks, plan.step.waits), steps=steps)
    found: list[dict[str, Any]] = chrome_trace(played, f"{plan.flow}, predicted")["traceEvents"]
    return found


def show_compared(plan: Plan, steps: Sequence[MeasuredStep], as_json: bool) -> None:
    """Print each task as forecast and as measured: the median of its seconds over steps, and its highest peak."""
    rows = list(compared(plan, steps))
    if as_json:
        print(json.dumps([asdict(each) for each in rows], indent=1))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    heads = ("task", "pool", "forecast", "measured", "ratio", "peak forecast", "measured", "ratio")
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < 2 else "right", no_wrap=place > 1, overflow="fold")
    for each in rows:
        table.add_row(*map(Text, _cells(each)))
    Console(width=columns_there()).print(table)
    print(f"seconds are medians of {len(steps)} steps, peaks the highest of them")


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
            name,
            one.pools,
            _total(each for each in forecast if _same(each, one)),
            _median(task.seconds for task in times),
            max((peaks[key] for key in own if key in peaks), default=None),
            max((held[key] for key in own if key in held), default=None),
        )
    period_s = plan.step.period_s if plan.step is not None else None
    yield TaskComparison("a step", (), period_s, _median(step.timed.period_s for step in steps), None, None)


def _same(forecast: TimedTask, measured: TimedTask) -> bool:
    """Say whether a forecast task is what was measured: one that comes again in a step is measured under one name."""
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


def _cells(row: TaskComparison) -> list[str]:
    from placements.found_text import show_s

    def seconds(value: float | None) -> str:
        return "" if value is None else show_s(value)

    def memory(value: int | None) -> str:
        return "" if value is None else show_bytes(value)

    name = row.task if len(row.task) <= SHOWN_NAME else f"{row.task[: SHOWN_NAME - 1]}…"
    times = [seconds(row.forecast_s), seconds(row.measured_s), ratio(row.measured_s, row.forecast_s)]
    peaks = [memory(row.forecast_bytes), memory(row.measured_bytes), ratio(row.measured_bytes, row.forecast_bytes)]
    return [name, ", ".join(row.pools), *times, *peaks]


def ratio(measured: float | None, forecast: float | None) -> str:
    """Write how many times what was forecast was measured; nothing where one is not known.

    >>> ratio(3.0, 2.0), ratio(None, 2.0)
    ('1.50', '')
    """
    return f"{measured / forecast:.2f}" if measured is not None and forecast else ""
