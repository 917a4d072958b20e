"""A run's report and trace, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowgraph.cli.output import columns_asked, columns_there, print_table, say
from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.model.quantities import show_s

if TYPE_CHECKING:
    from flowgraph import app

CURVE_CELLS = (20, 80)  # fewest and most of a curve
REST = 60  # columns of a row without its curve
WIDE = 100  # columns that have room for the table of tasks in one line each
SHOWN_NAME = 36  # characters of a task's name in the table, so that it fits in 100 columns


def print_report(report: app.RunReport) -> None:
    """Print how far a run is, each headline metric, the seconds of its nodes and the peaks of its memory."""
    facts = report.facts
    say(
        f"{facts['flow']}: {facts['status']}, {facts['steps_done']} of {facts['steps']} steps, "
        f"{_models(facts)}, data {facts['data']['name']}",
        fit=True,
    )
    print_table(
        ["metric", "first", "last", "min", "max", "curve"],
        [_row(short, [value for _, value in report.curves[name]]) for name, short in report.headlines.items()],
    )
    seconds = [(name, f"{seconds:.4f}") for name, seconds in report.nodes_s.items()]
    print_table(["node", "seconds a step"], seconds)
    if report.peaks:
        heads = ["pool", "phase", "role", "peak forecast", "measured", "ratio"]
        print_table(heads, [_peak_row(each) for each in report.peaks])


def print_tasks(trace: app.RunTrace) -> None:
    """Print each task as forecast and as measured."""
    peak = "peak forecast" if columns_there() >= WIDE else "peak\nforecast"
    heads = ("task", "pool", "forecast", "measured", "ratio", peak, "measured", "ratio")
    print_table(heads, [_cells(each) for each in trace.tasks], right=range(2, len(heads)), columns=columns_there())
    say(f"seconds are medians of {len(trace.measured)} steps, peaks the highest of them", fit=True)


def _row(name: str, values: list[float]) -> list[str]:
    cells = [f"{value:.4g}" for value in (values[0], values[-1], min(values), max(values))]
    from flowgraph.diagrams.write.terminal.sparkline import sparkline

    fewest, most = CURVE_CELLS
    return [name, *cells, sparkline(values, max(fewest, min(most, (columns_asked() or 0) - REST)))]


def _peak_row(peak: Mapping[str, Any]) -> list[str]:
    forecast, held = peak["forecast_bytes"], peak["measured_bytes"]
    predicted = "" if forecast is None else show_bytes(forecast)
    return [peak["pool"], peak["phase"], peak["role"], predicted, show_bytes(held), ratio(held, forecast)]


def _models(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {model['name']}" for name, model in facts.get("models", {}).items()) or "no models loaded"


def _cells(row: app.TaskComparison) -> list[str]:

    def seconds(value: float | None) -> str:
        return "" if value is None else show_s(value)

    def memory(value: int | None) -> str:
        return "" if value is None else show_bytes(value)

    name = row.task if len(row.task) <= SHOWN_NAME else f"{row.task[: SHOWN_NAME - 1]}…"
    times = [seconds(row.forecast_s), seconds(row.measured_s), ratio(row.measured_s, row.forecast_s)]
    peaks = [memory(row.forecast_bytes), memory(row.measured_bytes), ratio(row.measured_bytes, row.forecast_bytes)]
    return [name, ", ".join(row.pools), *times, *peaks]


def ratio(measured: float | None, forecast: float | None) -> str:
    """Return measured / forecast with two decimals; "" if either is unknown or the forecast is 0.

    >>> ratio(3.0, 2.0), ratio(None, 2.0)
    ('1.50', '')
    """
    return f"{measured / forecast:.2f}" if measured is not None and forecast else ""
