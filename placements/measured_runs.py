"""Measured runs of forecast plans: what was timed, beside its forecast, and the scales that bring the two together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any, Final

from flowgraph.cluster.calibration import Calibration, Phase
from flowgraph.cluster.plan import StepForecast
from flowgraph.errors import DataError
from placements.calibrate import Measured, Misses, far_from, misses, refuse_no_seconds
from placements.homes import Home
from placements.loads import Load
from placements.scale_fit import Key, Observation, fit_scales
from placements.setting import Setting
from placements.step_forecast import node_seconds, step_of

STEP: Final = "step"
"""The name of a whole step among what can be timed; a node of this name goes before it."""

SYNC: Final = "sync"
"""The name of all weight syncs of a step."""

LOAD_PHASES: Mapping[str, Phase] = {"generate": "generate", "logprob": "forward", "update": "update"}


@dataclass(frozen=True)
class Timing:
    """Seconds measured for nodes or tasks of a step, one after another; `label` says of what, for texts."""

    label: str
    seconds: float
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """One run: its name, the setting and homes of its plan, and what was timed."""

    name: str
    setting: Setting
    homes: tuple[Home, ...]
    timings: tuple[Timing, ...]


@dataclass(frozen=True)
class Repair:
    """A calibration and what it repairs: the misses before and after, and what of the runs was not used, and why.

    `far` are timings many times off their forecast, as measured seconds over it. `names` are what can be timed.
    """

    calibration: Calibration
    before: Misses
    after: Misses
    far: Mapping[str, float]
    unused: Mapping[str, str]
    names: tuple[str, ...]


def seconds_by_node(lines: Sequence[Mapping[str, Any]], where: str) -> dict[str, float]:
    """Return the median seconds of each node over the steps of a run but the first, which warms up.

    `lines` are those of its metrics; `where` is their file.

    >>> steps = [{"time": {"nodes_s": {"policy.update": seconds}}} for seconds in (9.0, 2.0, 3.0, 2.5)]
    >>> seconds_by_node(steps, "metrics.jsonl")
    {'policy.update': 2.5}

    Raises DataError for what is no table of seconds.
    """
    tables = [_nodes_s(line, f"{where}:{number}") for number, line in enumerate(lines, 1)]
    return medians([table for table in tables if table])


def medians(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each name over all steps but the first, which warms up; what only that has counts.

    >>> medians([{"a": 9.0, "c": 4.0}, {"a": 1.0, "b": 2.0}, {"a": 3.0}])
    {'a': 2.0, 'c': 4.0, 'b': 2.0}
    """
    settled = {name for step in steps[1:] for name in step}
    names = dict.fromkeys(name for step in steps for name in step)
    return {
        name: median(step[name] for step in (steps[1:] if name in settled else steps) if name in step) for name in names
    }


def _nodes_s(line: Any, where: str) -> Mapping[str, float]:
    """Return the seconds by node of one line; none from a line about something else."""
    time = line.get("time", {}) if isinstance(line, Mapping) else None
    nodes = time.get("nodes_s", {}) if isinstance(time, Mapping) else None
    if not isinstance(nodes, Mapping):
        raise DataError.unusable(where, "has no table of seconds by node, as `time.nodes_s`")
    for name, seconds in nodes.items():
        refuse_no_seconds(f"{where} {name}", seconds)
    return nodes


def repair(runs: Sequence[MeasuredRun], source: str) -> Repair:
    """Return the calibration that fits these runs, and how well; `source` says what was measured.

    Forecasts are those of the engines' constants: a calibration that a run was planned with does not count.

    Raises DataError for seconds that cannot be, and for runs that have measured nothing that is forecast.
    """
    forecasts = [_Forecasts(run) for run in runs]
    observations = [each for forecast in forecasts for each in forecast.observations]
    names = tuple(dict.fromkeys(name for forecast in forecasts for name in forecast.names))
    if not observations:
        labels = ", ".join(run.name for run in runs)
        hint = f"what is forecast: {', '.join(names)}" if names else ""
        raise DataError.unusable(labels, "has measured no seconds of a node that is forecast", hint)
    calibration = fit_scales(observations, source)
    rows = [Measured(each.label, each.seconds, each) for each in observations]
    before, after = (misses(scaled, rows, _forecast) for scaled in (None, calibration))
    unused = {label: why for forecast in forecasts for label, why in forecast.unused.items()}
    return Repair(calibration, before, after, far_from(None, rows, _forecast), unused, names)


def _forecast(calibration: Calibration | None, observation: Observation) -> float:
    return observation.forecast(calibration)


class _Forecasts:
    """What of a run's timings is forecast, and how."""

    def __init__(self, run: MeasuredRun) -> None:
        self.run = run
        self.setting = replace(run.setting, calibration=None)
        self._homes = {home.role.name: home for home in run.homes}
        self._loads = {load.node: load for load in self.setting.loads}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return what can be timed: nodes that run a model, nodes on the host, all syncs, and the step."""
        return (*self._loads, *self._host_nodes, *((SYNC,) if self._syncs else ()), STEP)

    @cached_property
    def _host_nodes(self) -> tuple[str, ...]:
        own = {name for role in self.setting.roles for name in role.nodes}
        nodes = (node.name for node in self.setting.running.nodes if node.name not in own)
        return tuple(name for name in nodes if self._unscaled_s.get(name))

    @cached_property
    def _unscaled_s(self) -> dict[str, float | None]:
        return {name: each.total_s for name, each in node_seconds(self.setting, self.run.homes).items()}

    @cached_property
    def _step(self) -> StepForecast:
        return step_of(self.setting, self.run.homes)

    @cached_property
    def _syncs(self) -> frozenset[str]:
        return frozenset(task.name for task in self._step.tasks if task.kind == "sync" and task.seconds)

    @cached_property
    def unused(self) -> dict[str, str]:
        """Return the timings that no forecast belongs to, and why."""
        found = dict[str, str]()
        for timing in self.run.timings:
            missing = [name for name in timing.names if self._keys(name) is None]
            if missing:
                found[f"{self.run.name} {timing.label}"] = f"no seconds are forecast for {', '.join(missing)}"
        return found

    @cached_property
    def observations(self) -> tuple[Observation, ...]:
        """Return the timings that are forecast."""
        return tuple(self._observed())

    def _observed(self) -> Iterator[Observation]:
        for timing in self.run.timings:
            label = f"{self.run.name} {timing.label}"
            refuse_no_seconds(label, timing.seconds)
            if label in self.unused:
                continue
            keys = tuple(dict.fromkeys(key for name in timing.names for key in self._keys(name) or ()))
            phases: set[Phase] = {key[0] for key in keys}
            phase = phases.pop() if len(phases) == 1 else None
            yield Observation(label, timing.seconds, keys, self._of(timing.names), phase)

    def _of(self, names: Sequence[str]) -> Any:
        """Return the function that forecasts what has these names with a calibration."""

        def forecast(calibration: Calibration | None) -> float:
            setting = replace(self.setting, calibration=calibration)
            return sum(self._seconds(setting, name) for name in names)

        return forecast

    def _keys(self, name: str) -> tuple[Key, ...] | None:
        """Return the keys that the seconds of a node, of a task, of all syncs or of the step depend on.

        None where nothing is forecast. Raises DataError for a node whose role has no home, or no known seconds.
        """
        device = self.setting.classes[0].model
        if (load := self._loads.get(name)) is not None:
            return (self._load_key(load),)
        if name in self._host_nodes:
            return (("host", "", device),)
        if name in self._syncs or (name == SYNC and self._syncs):
            return (("sync", "", device),)
        if name == STEP and self._step.period_s:
            own = (self._load_key(load) for load in self._loads.values())
            syncs: tuple[Key, ...] = (("sync", "", device),) if self._syncs else ()
            return (*dict.fromkeys(own), *syncs, ("host", "", device))
        return None

    def _load_key(self, load: Load) -> Key:
        home = self._homes.get(load.role.name)
        label = f"{self.run.name} {load.node}"
        if home is None:
            raise DataError.unusable(label, f"the plan places {load.role.name} nowhere")
        if not self._unscaled_s.get(load.node):
            raise DataError.unusable(label, "no seconds are forecast for it, so nothing can be fitted to them")
        return LOAD_PHASES[load.phase], load.role.name, home.seat.of.model

    def _seconds(self, setting: Setting, name: str) -> float:
        """Return the forecast seconds of what `_keys` knows."""
        if name in self._loads or name in self._host_nodes:
            return node_seconds(setting, self.run.homes)[name].total_s or 0.0
        step = step_of(setting, self.run.homes)
        if name == STEP:
            return step.period_s or 0.0
        return sum(task.seconds or 0.0 for task in step.tasks if task.name == name or (name == SYNC == task.kind))
