"""Measured runs of forecast plans: seconds by node beside their forecast, and the constants that fit them better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from flowgraph.errors import DataError
from placements.calibrate import Calibration, Measured, calibrate, refuse_no_seconds
from placements.constants import Constants
from placements.decode import ServingConstants
from placements.homes import Home
from placements.loads import Load
from placements.setting import Setting
from placements.step_forecast import work_of
from placements.steps import HOST, HostConstants
from placements.training_passes import TrainingConstants

# What is fitted, the most telling first: as many as there are measurements, less one.
FITTED: Mapping[type[Constants], tuple[str, ...]] = {
    TrainingConstants: ("matmul_share", "step_s", "overlap", "attention_share", "launch_s"),
    ServingConstants: ("layer_s", "step_s", "request_s", "row_s"),
    HostConstants: ("score_row_s", "token_s", "row_s"),
}


@dataclass(frozen=True)
class MeasuredRun:
    """One run: its name, the setting and homes of its plan, and the seconds that its nodes took, by name."""

    name: str
    setting: Setting
    homes: tuple[Home, ...]
    nodes_s: Mapping[str, float]


@dataclass(frozen=True)
class _Case:
    """A node as it is forecast: a load where its role lives, or host work, without either."""

    setting: Setting
    node: str
    home: Home | None = None
    load: Load | None = None

    @property
    def engine(self) -> str:
        """Name whose constants its seconds depend on."""
        return HOST if self.home is None else self.home.engine

    @property
    def kind(self) -> type[Constants]:
        """Return the class of these constants."""
        if self.home is None:
            return HostConstants
        return ServingConstants if self.home.role.use == "sample" else TrainingConstants

    def seconds(self, setting: Setting) -> float | None:
        """Return its seconds in a setting; None where they are not known."""
        if self.home is None or self.load is None:
            return setting.host_work.node_seconds(self.node, setting.host).total_s
        return work_of(setting, self.home, self.load).total_s


def seconds_by_node(lines: Sequence[Mapping[str, Any]], where: str) -> dict[str, float]:
    """Return the median seconds of each node over the steps of a run but the first, which warms up.

    `lines` are those of its metrics; `where` is their file.

    >>> steps = [{"time": {"nodes_s": {"policy.update": seconds}}} for seconds in (9.0, 2.0, 3.0, 2.5)]
    >>> seconds_by_node(steps, "metrics.jsonl")
    {'policy.update': 2.5}

    Raises DataError for what is no table of seconds.
    """
    told = [_nodes_s(line, f"{where}:{number}") for number, line in enumerate(lines, 1)]
    steps = [each for each in told if each]
    later = steps[1:] or steps
    names = dict.fromkeys(name for step in later for name in step)
    return {name: median(step[name] for step in later if name in step) for name in names}


def _nodes_s(line: Any, where: str) -> Mapping[str, float]:
    """Read the seconds by node of one line; none from a line that tells of something else."""
    time = line.get("time", {}) if isinstance(line, Mapping) else None
    nodes = time.get("nodes_s", {}) if isinstance(time, Mapping) else None
    if not isinstance(nodes, Mapping):
        raise DataError.unusable(where, "has no table of seconds by node, as `time.nodes_s`")
    for name, seconds in nodes.items():
        refuse_no_seconds(f"{where} {name}", seconds)
    return nodes


def calibrations(runs: Sequence[MeasuredRun]) -> tuple[Calibration[Any], ...]:
    """Fit the constants of each engine that these runs have measured; none for one that they have not.

    Raises DataError for seconds that cannot be, and for runs that have measured nothing that is forecast.
    """
    found = tuple(_calibrations(runs))
    if not found:
        nodes = dict.fromkeys(name for run in runs for name in _forecast_nodes(run.setting))
        names = ", ".join(run.name for run in runs)
        told = f"what is forecast: {', '.join(nodes)}" if nodes else ""
        raise DataError.unusable(names, "has measured no seconds of a node that is forecast", told)
    return found


def _calibrations(runs: Sequence[MeasuredRun]) -> Iterator[Calibration[Any]]:
    by_engine = dict[str, list[Measured]]()
    for run in runs:
        for engine, measured in _measured(run):
            by_engine.setdefault(engine, []).append(measured)
    names = ", ".join(run.name for run in runs)
    for engine, rows in by_engine.items():
        kind: type[Constants] = rows[0].case.kind
        only = FITTED[kind][: max(1, len(rows) - 1)]
        yield calibrate(kind, engine, rows, _forecast, only=only, source=f"fitted to {names}")


def _measured(run: MeasuredRun) -> Iterator[tuple[str, Measured]]:
    for case in _cases(run):
        seconds, label = run.nodes_s.get(case.node), f"{run.name} {case.node}"
        if seconds is None:
            continue
        if case.load is not None and case.home is None:
            raise DataError.unusable(label, f"the plan places {case.load.role.name} nowhere")
        if case.seconds(case.setting):
            yield case.engine, Measured(label, seconds, case)
        elif case.load is not None:
            raise DataError.unusable(label, "no seconds are forecast for it, so nothing can be fitted to them")


def _cases(run: MeasuredRun) -> Iterator[_Case]:
    """Return each node that is forecast, those of models first."""
    homes, loads = {home.role.name: home for home in run.homes}, {load.node: load for load in run.setting.loads}
    for node, load in loads.items():
        yield _Case(run.setting, node, homes.get(load.role.name), load)
    yield from (_Case(run.setting, name) for name in _host_nodes(run.setting))


def _forecast_nodes(setting: Setting) -> Iterator[str]:
    yield from (load.node for load in setting.loads)
    yield from _host_nodes(setting)


def _host_nodes(setting: Setting) -> Iterator[str]:
    """Name the nodes that read no model."""
    own = {name for role in setting.roles for name in role.nodes}
    return (node.name for node in setting.running.nodes if node.name not in own)


def _forecast(constants: Constants, case: _Case) -> float:
    setting = replace(case.setting, calibrated={**case.setting.calibrated, case.engine: asdict(constants)})
    seconds = case.seconds(setting)
    assert seconds, "a case without a forecast is refused before it is fitted"
    return seconds
