"""`runs` and `report`: what ran, how far and how well; a run's curves as SVG."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from flowgraph.cli.display import short
from flowgraph.cli.listings import print_table
from flowgraph.cli.plan_result import read_plan
from flowgraph.cli.trace import ratio
from flowgraph.cli.written_files import write_text
from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.build.memory_picture import highest
from flowgraph.diagrams.model.charts import Curves
from flowgraph.diagrams.model.series import Series
from flowgraph.diagrams.write.svg.curves import curves_svg
from flowgraph.diagrams.write.terminal.sparkline import sparkline
from flowgraph.errors import RunFolderError
from flowgraph.runtime.measure.measured_file import read_measured
from flowgraph.runtime.record.run_folder import RunFolder

Points = list[tuple[int, float]]
CURVE_CELLS = 20
NODES_DRAWN = 4  # of those whose seconds are drawn, the slowest


def list_runs(folder: Path, as_json: bool) -> None:
    """List the runs of a folder, newest first."""
    rows = [_summary(path.parent) for path in folder.glob("*/run.json")]
    rows.sort(key=lambda row: str(row["started"]), reverse=True)
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        shown = [[_shown(row[name]) for name in row] for row in rows]
        print_table(["run", "flow", "status", "steps", "started", "reward", "accuracy"], shown)


def _summary(path: Path) -> dict[str, Any]:
    """Sum one run up in a line; one whose files are damaged says so and hides no other."""
    try:
        run = RunFolder.open(path)
        facts, curves = run.facts(), curves_of(run)
    except RunFolderError as error:
        damaged = dict.fromkeys(("flow", "status", "steps", "started", "reward", "accuracy"))
        return {"run": str(path), **damaged, "status": f"damaged: {error.what}", "started": ""}
    reward = next((points[-1][1] for name, points in curves.items() if name.rpartition(".")[2] == "reward"), None)
    accuracy = curves["eval/accuracy"][-1][1] if "eval/accuracy" in curves else None
    return {
        "run": str(run.path),
        "flow": facts.get("flow"),
        "status": facts.get("status"),
        "steps": f"{facts.get('steps_done')}/{facts.get('steps')}",
        "started": facts.get("started", ""),
        "reward": reward,
        "accuracy": accuracy,
    }


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def curves_of(run: RunFolder) -> dict[str, Points]:
    """Give each metric's points (step, value) in the order in which they were recorded."""
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


def report_run(path: Path, as_json: bool) -> None:
    """Sum a run up: each headline metric at first, at best and at last, seconds by node; draw its curves."""
    run = RunFolder.open(path)
    facts, curves = run.facts(), curves_of(run)
    lead = _lead(facts, curves)
    names = short(lead)
    picture, drawn = curves_picture(run), run.path / "curves.svg"
    write_text(drawn, curves_svg(picture.title, picture.series))
    if as_json:
        told = {name: {"first": curves[name][0], "last": curves[name][-1]} for name in curves}
        summed = {"run": facts, "metrics": told, "nodes_s": node_seconds(run), "peaks": peaks_of(run)}
        print(json.dumps(summed | {"curves": str(drawn)}, indent=1))
        return
    print(
        f"{facts['flow']}: {facts['status']}, {facts['steps_done']} of {facts['steps']} steps, "
        f"{_models(facts)}, data {facts['data']['name']}"
    )
    print_table(
        ["metric", "first", "last", "min", "max", "curve"],
        [_row(names[name], [value for _, value in curves[name]]) for name in lead],
    )
    print_table(["node", "seconds a step"], [(name, f"{seconds:.4f}") for name, seconds in node_seconds(run).items()])
    if peaks := peaks_of(run):
        print_table(
            ["pool", "phase", "role", "peak forecast", "measured", "ratio"], [_peak_row(each) for each in peaks]
        )
    print(drawn)


def curves_picture(run: RunFolder) -> Curves:
    """Give a run's numbers over its steps: its headline metrics, then the seconds of its slowest nodes."""
    facts, curves = run.facts(), curves_of(run)
    lead = _lead(facts, curves)
    names = short(lead)
    series = [Series(names[name], _unit(facts, name), tuple(curves[name]), True) for name in lead]
    slowest = list(node_seconds(run))[:NODES_DRAWN]
    series += [Series(name, "s a step", tuple(points)) for name, points in _seconds_by_step(run, slowest).items()]
    about = f"{facts['steps_done']} of {facts['steps']} steps of {facts['flow']}, {facts['status']}."
    return Curves(f"{facts['flow']} · {run.path.name}", tuple(series), about)


def _lead(facts: dict[str, Any], curves: dict[str, Points]) -> list[str]:
    """Name the metrics that a run is judged by, as far as it has recorded them."""
    headlines = [name for name, metric in facts["metrics"].items() if metric.get("headline")]
    return [name for name in ("eval/accuracy", *headlines, "tokens_per_s") if name in curves]


def _seconds_by_step(run: RunFolder, nodes: list[str]) -> dict[str, Points]:
    found: dict[str, Points] = {name: [] for name in nodes}
    for line in run.metrics():
        times = line.get("time", {}).get("nodes_s", {})
        for name in nodes:
            if name in times:
                found[name].append((line["step"], times[name]))
    return found


def _row(name: str, values: list[float]) -> list[str]:
    told = [f"{value:.4g}" for value in (values[0], values[-1], min(values), max(values))]
    return [name, *told, sparkline(values, CURVE_CELLS)]


def _unit(facts: dict[str, Any], name: str) -> str:
    return str(facts["metrics"].get(name, {}).get("unit", "")) or {"tokens_per_s": "tokens/s"}.get(name, "")


def _models(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {model['name']}" for name, model in facts.get("models", {}).items()) or "no models loaded"


def node_seconds(run: RunFolder) -> dict[str, float]:
    """Give the mean seconds a step of each node, slowest first."""
    sums, steps = defaultdict[str, float](float), 0
    for line in run.metrics():
        nodes = line.get("time", {}).get("nodes_s", {})
        steps += bool(nodes)
        for name, seconds in nodes.items():
            sums[name] += seconds
    return {name: total / steps for name, total in sorted(sums.items(), key=lambda item: -item[1])}


def peaks_of(run: RunFolder) -> list[dict[str, Any]]:
    """Give the highest memory that each phase and role had in use on a device of its pool, and what was forecast.

    None stands for what the plan does not forecast; a run of which nothing was measured has none.
    """
    steps = read_measured(run.path)
    if not steps:
        return []
    forecast = highest(read_plan(run.path / "plan.json").forecast)
    measured = highest(each for step in steps for each in step.forecast)
    return [
        {"pool": pool, "phase": phase, "role": role, "forecast_bytes": forecast.get(key), "measured_bytes": held}
        for key, held in measured.items()
        for pool, phase, role in [key]
    ]


def _peak_row(peak: dict[str, Any]) -> list[str]:
    forecast, held = peak["forecast_bytes"], peak["measured_bytes"]
    told = "" if forecast is None else show_bytes(forecast)
    return [peak["pool"], peak["phase"], peak["role"], told, show_bytes(held), ratio(held, forecast)]
