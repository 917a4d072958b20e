"""The report and the trace of a run as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowgraph.cli.output import layout_columns, print_table, requested_columns, say
from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.model.quantities import show_s

if TYPE_CHECKING:
    from flowgraph import app

CURVE_CELLS = (20, 80)  # fewest and most of a curve
REST = 60  # columns of a row without its curve
WIDE = 100  # columns that have room for the table of tasks in one line each
SHOWN_NAME = 36  # characters of a task's name in the table, so that it fits in 100 columns


def print_report(report: app.RunReport) -> None:
    """Print a run's progress to stdout, then tables of headline metrics, node seconds, idle pools and memory peaks.

    The tables of pools and peaks are left out if the run has none.
    """
    from flowgraph.diagrams.write.terminal.sparkline import sparkline

    facts = report.facts
    models = ", ".join(f"{name} {model['name']}" for name, model in facts.get("models", {}).items())
    progress = f"{facts['status']}, {facts['steps_done']} of {facts['steps']} steps"
    say(f"{facts['flow']}: {progress}, {models or 'no models loaded'}, data {facts['data']['name']}", fit=True)
    minimum, maximum = CURVE_CELLS
    cells = max(minimum, min(maximum, (requested_columns() or 0) - REST))
    rows = list[list[str]]()
    for name, short in report.headlines.items():
        values = [value for _, value in report.curves[name]]
        figures = (values[0], values[-1], min(values), max(values))
        rows.append([short, *(f"{value:.4g}" for value in figures), sparkline(values, cells)])
    print_table(["metric", "first", "last", "min", "max", "curve"], rows)
    print_table(["node", "seconds a step"], [(name, f"{seconds:.4f}") for name, seconds in report.nodes_s.items()])
    if report.idle:
        waited = {pool: f"{seconds:.4f}" for pool, seconds in report.waited_s.items()}
        pools = [(pool, f"{share:.1%}", waited.get(pool, "")) for pool, share in report.idle.items()]
        print_table(["pool", "idle", "seconds a step of waiting for weights"], pools)
    if report.peaks:
        peaks = [
            [peak["pool"], peak["phase"], peak["role"], *_compared(peak["forecast_bytes"], peak["measured_bytes"])]
            for peak in report.peaks
        ]
        print_table(["pool", "phase", "role", "peak forecast", "measured", "ratio"], peaks)


def print_tasks(trace: app.RunTrace) -> None:
    """Print a table of each task's forecast and measured seconds and memory, with the ratios measured / forecast.

    Unknown values are empty; the last line has the number of steps over which medians and peaks were taken.
    """
    peak = "peak forecast" if layout_columns() >= WIDE else "peak\nforecast"
    heads = ("task", "pool", "forecast", "measured", "ratio", peak, "measured", "ratio")
    rows = list[list[str]]()
    for row in trace.tasks:
        name = row.task if len(row.task) <= SHOWN_NAME else f"{row.task[: SHOWN_NAME - 1]}…"
        seconds = ["" if value is None else show_s(value) for value in (row.forecast_s, row.measured_s)]
        peaks = _compared(row.forecast_bytes, row.measured_bytes)
        rows.append([name, ", ".join(row.pools), *seconds, ratio(row.measured_s, row.forecast_s), *peaks])
    print_table(heads, rows, right=range(2, len(heads)), columns=layout_columns())
    say(f"seconds are medians of {len(trace.measured)} steps, peaks the highest of them", fit=True)


def _compared(forecast: int | None, measured: int | None) -> list[str]:
    sizes = ["" if size is None else show_bytes(size) for size in (forecast, measured)]
    return [*sizes, ratio(measured, forecast)]


def ratio(measured: float | None, forecast: float | None) -> str:
    """Return `measured / forecast` as text with two decimals; "" if either is unknown or the forecast is 0.

    >>> ratio(3.0, 2.0), ratio(None, 2.0)
    ('1.50', '')
    """
    return f"{measured / forecast:.2f}" if measured is not None and forecast else ""
