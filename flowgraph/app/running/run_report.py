"""`runs` and `report`: what ran, how far and how well; a run's curves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowgraph.app.planning.plan_result import read_plan
from flowgraph.app.user_files import write_text
from flowgraph.diagrams.build.memory_picture import highest
from flowgraph.diagrams.model.charts import Curves
from flowgraph.diagrams.model.series import Series
from flowgraph.diagrams.write.svg.curves import curves_svg
from flowgraph.errors import RunFolderError
from flowgraph.runtime.measure.measured_file import read_measured
from flowgraph.runtime.record.run_folder import RunFolder

Points = list[tuple[int, float]]
MAX_NODES = 4  # whose seconds are in the picture, the slowest


def list_runs(folder: Path) -> list[dict[str, Any]]:
    """Return the runs of a folder, newest first; one whose files are damaged says so and hides no other."""
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
        return report | {"peaks": [dict(peak) for peak in self.peaks], "curves": str(self.drawn)}


def report_run(path: Path) -> RunReport:
    """Sum a run up, and write its curves into its folder as SVG."""
    run = RunFolder.open(path)
    picture, drawn = curves_picture(run), run.path / "curves.svg"
    write_text(drawn, curves_svg(picture.title, picture.series))
    return RunReport(
        run=run,
        facts=run.facts(),
        curves=curves_of(run),
        nodes_s=_node_seconds(run),
        peaks=tuple(_peaks_of(run)),
        drawn=drawn,
    )


def curves_picture(run: RunFolder) -> Curves:
    """Return a run's numbers over its steps: its headline metrics, then the seconds of its slowest nodes."""
    facts, curves = run.facts(), curves_of(run)
    lead = _lead(facts, curves)
    names, units = short(lead), {name: str(metric.get("unit", "")) for name, metric in facts["metrics"].items()}
    series = list[Series]()
    for name in lead:
        unit = units.get(name, "") or ("tokens/s" if name == "tokens_per_s" else "")
        series.append(Series(name=names[name], unit=unit, points=tuple(curves[name]), headline=True))
    steps = [(line["step"], line.get("time", {}).get("nodes_s", {})) for line in run.metrics()]
    for name in list(_node_seconds(run))[:MAX_NODES]:
        points = tuple((step, seconds[name]) for step, seconds in steps if name in seconds)
        series.append(Series(name=name, unit="s a step", points=points))
    about = f"{facts['steps_done']} of {facts['steps']} steps of {facts['flow']}, {facts['status']}."
    return Curves(title=f"{facts['flow']} · {run.path.name}", series=tuple(series), about=about)


def _lead(facts: Mapping[str, Any], curves: Mapping[str, Points]) -> list[str]:
    """Return the metrics that a run is judged by, as far as it has recorded them."""
    headlines = [name for name, metric in facts["metrics"].items() if metric.get("headline")]
    return [name for name in ("eval/accuracy", *headlines, "tokens_per_s") if name in curves]


def _node_seconds(run: RunFolder) -> dict[str, float]:
    """Return the mean seconds a step of each node, slowest first."""
    sums, steps = defaultdict[str, float](float), 0
    for line in run.metrics():
        nodes = line.get("time", {}).get("nodes_s", {})
        steps += bool(nodes)
        for name, seconds in nodes.items():
            sums[name] += seconds
    return {name: total / steps for name, total in sorted(sums.items(), key=lambda item: -item[1])}


def _peaks_of(run: RunFolder) -> Iterator[dict[str, Any]]:
    """Yield the highest memory that each phase and role had in use on a device of its pool, and what was forecast.

    None stands for what the plan does not forecast; a run without measurements has none.
    """
    if not (steps := read_measured(run.path)):
        return
    forecast = highest(read_plan(run.path / "plan.json").forecast)
    for key, measured_bytes in highest(pool for step in steps for pool in step.forecast).items():
        names = dict(zip(("pool", "phase", "role"), key, strict=True))
        yield {**names, "forecast_bytes": forecast.get(key), "measured_bytes": measured_bytes}


def short(names: Iterable[str]) -> dict[str, str]:
    """Return metrics with their names without their nodes', but where two would be the same.

    >>> short(["policy.update.loss", "critic.update.loss", "eval/accuracy", "score.reward"]).values()
    dict_values(['policy.update.loss', 'critic.update.loss', 'eval/accuracy', 'reward'])
    """
    last = {name: name.rpartition(".")[2] for name in names}
    counts = Counter(last.values())
    return {name: part if counts[part] == 1 else name for name, part in last.items()}
