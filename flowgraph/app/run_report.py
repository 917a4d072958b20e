"""`runs` and `report`: what ran, how far and how well; a run's curves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowgraph.app.plan_result import read_plan
from flowgraph.app.written_files import write_text
from flowgraph.diagrams.build.memory_picture import highest
from flowgraph.diagrams.model.charts import Curves
from flowgraph.diagrams.model.series import Series
from flowgraph.diagrams.write.svg.curves import curves_svg
from flowgraph.errors import RunFolderError
from flowgraph.runtime.measure.measured_step import read_measured
from flowgraph.runtime.record.run_folder import RunFolder

Points = list[tuple[int, float]]
NODES_DRAWN = 4  # of those whose seconds are drawn, the slowest


def list_runs(folder: Path) -> list[dict[str, Any]]:
    """Return the runs of a folder, newest first."""
    rows = [_summary(path.parent) for path in folder.glob("*/run.json")]
    return sorted(rows, key=lambda row: str(row["started"]), reverse=True)


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


def curves_of(run: RunFolder) -> dict[str, Points]:
    """Return each metric's points (step, value) in the order in which they were recorded."""
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
    """How far a run is and how well: its facts, the points (step, value) of its metrics, the seconds of its nodes."""

    run: RunFolder
    facts: Mapping[str, Any]
    curves: Mapping[str, Points]
    nodes_s: Mapping[str, float]
    peaks: tuple[Mapping[str, Any], ...]
    drawn: Path

    @property
    def headlines(self) -> dict[str, str]:
        """Return the metrics that the run is judged by, each with its short name."""
        return short(_lead(self.facts, self.curves))

    def data(self) -> dict[str, Any]:
        """Return it with the first and last point of each metric."""
        metrics = {name: {"first": points[0], "last": points[-1]} for name, points in self.curves.items()}
        report = {"run": dict(self.facts), "metrics": metrics, "nodes_s": dict(self.nodes_s)}
        return report | {"peaks": [dict(each) for each in self.peaks], "curves": str(self.drawn)}


def report_run(path: Path) -> RunReport:
    """Sum a run up, and write its curves into its folder as SVG."""
    run = RunFolder.open(path)
    facts, curves = run.facts(), curves_of(run)
    picture, drawn = curves_picture(run), run.path / "curves.svg"
    write_text(drawn, curves_svg(picture.title, picture.series))
    return RunReport(
        run=run, facts=facts, curves=curves, nodes_s=node_seconds(run), peaks=tuple(peaks_of(run)), drawn=drawn
    )


def curves_picture(run: RunFolder) -> Curves:
    """Return a run's numbers over its steps: its headline metrics, then the seconds of its slowest nodes."""
    facts, curves = run.facts(), curves_of(run)
    lead = _lead(facts, curves)
    names = short(lead)
    series = [
        Series(name=names[name], unit=_unit(facts, name), points=tuple(curves[name]), headline=True) for name in lead
    ]
    slowest = list(node_seconds(run))[:NODES_DRAWN]
    series += [
        Series(name=name, unit="s a step", points=tuple(points))
        for name, points in _seconds_by_step(run, slowest).items()
    ]
    about = f"{facts['steps_done']} of {facts['steps']} steps of {facts['flow']}, {facts['status']}."
    return Curves(title=f"{facts['flow']} · {run.path.name}", series=tuple(series), about=about)


def _lead(facts: Mapping[str, Any], curves: Mapping[str, Points]) -> list[str]:
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


def _unit(facts: dict[str, Any], name: str) -> str:
    return str(facts["metrics"].get(name, {}).get("unit", "")) or {"tokens_per_s": "tokens/s"}.get(name, "")


def node_seconds(run: RunFolder) -> dict[str, float]:
    """Return the mean seconds a step of each node, slowest first."""
    sums, steps = defaultdict[str, float](float), 0
    for line in run.metrics():
        nodes = line.get("time", {}).get("nodes_s", {})
        steps += bool(nodes)
        for name, seconds in nodes.items():
            sums[name] += seconds
    return {name: total / steps for name, total in sorted(sums.items(), key=lambda item: -item[1])}


def peaks_of(run: RunFolder) -> list[dict[str, Any]]:
    """Return the highest memory that each phase and role had in use on a device of its pool, and what was forecast.

    None stands for what the plan does not forecast; a run without measurements has none.
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


def short(names: Iterable[str]) -> dict[str, str]:
    """Return metrics with their names without their nodes', but where two would be the same.

    >>> short(["policy.update.loss", "critic.update.loss", "eval/accuracy", "score.reward"]).values()
    dict_values(['policy.update.loss', 'critic.update.loss', 'eval/accuracy', 'reward'])
    """
    last = {name: name.rpartition(".")[2] for name in names}
    times = Counter(last.values())
    return {name: each if times[each] == 1 else name for name, each in last.items()}
