"""Measured runs of plans: measured and forecast seconds, and the scales that make them agree."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from statistics import median
from typing import Any

from flowgraph.cluster.calibration import Calibration, Phase
from flowgraph.cluster.plan import Plan, StepForecast
from flowgraph.errors import DataError
from placements.calibration.fit_scales import Key, Observation, fit_scales
from placements.calibration.timings import STEP, SYNC, Timing, refuse_no_seconds
from placements.step.role_placements import RolePlacement, homes_of_plan
from placements.step.step_forecast import node_seconds, step_of
from placements.workload.node_workload import NodeWorkload
from placements.workload.planning_problem import PlanningProblem

LOAD_PHASES: Mapping[str, Phase] = {"generate": "generate", "logprob": "forward", "update": "update"}
FAR = 5.0  # times the forecast, or as much below it: no scale is that wrong, so a mistake or another plan


@dataclass(frozen=True)
class ForecastErrors:
    """The relative errors of forecasts: (forecast - measured) / measured.

    `bias` is the signed median; `median` and `worst` are of absolute errors.
    """

    count: int
    bias: float
    median: float
    worst: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> ForecastErrors:
        """Return the summary of relative errors, given the ratios of forecast to measured seconds.

        Raises statistics.StatisticsError without ratios.
        """
        signed = [ratio - 1 for ratio in ratios]
        sizes = [abs(error) for error in signed]
        return cls(len(signed), median(signed), median(sizes), max(sizes))

    def __str__(self) -> str:
        bias = f"{'+' if self.bias >= 0 else '-'}{_percent(abs(self.bias), 1)}"
        median_error, worst = _percent(self.median, 1), _percent(self.worst, 0)
        return f"median |error| {median_error}, bias {bias}, worst {worst} of {self.count}"


def _percent(share: float, digits: int) -> str:
    return f"{share:.{digits}%}" if share < 1e4 else f"{100 * share:.2g}%"


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """A measured run of a plan: its name for texts, the problem, the placement of each role (`homes`), and timings."""

    name: str
    problem: PlanningProblem
    homes: tuple[RolePlacement, ...]
    timings: tuple[Timing, ...]

    @classmethod
    def of(cls, name: str, problem: PlanningProblem, plan: Plan, timings: tuple[Timing, ...]) -> MeasuredRun:
        """Return a measured run of `plan`, with the placement of each role; `name` describes the run in texts.

        Raises ResourceError if the problem's cluster has no devices for a pool of the plan.
        """
        return cls(name, problem, tuple(homes_of_plan(problem, plan)), timings)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names that can be timed: nodes that run models, host nodes with a forecast, `sync` and `step`.

        `sync` is left out if no weight syncs are forecast. A single weight sync can be timed by its own name too; such
        names are not listed.
        """
        return (*self._loads, *self._host_nodes, *((SYNC,) if self._syncs else ()), STEP)

    def observations(self, unused: dict[str, str]) -> Iterator[Observation]:
        """Yield an observation for each timing whose nodes or tasks all have a forecast.

        The labels of other timings are added to `unused`, each with the reason. Raises DataError if a timing's seconds
        are not a finite number above 0, or if the role of a timed node (for a whole step, of any node) has no pool or
        no forecast.
        """
        for timing in self.timings:
            label = f"{self.name} {timing.label}"
            refuse_no_seconds(label, timing.seconds)
            keys = {name: self._keys(name) for name in timing.names}
            if missing := [name for name, key in keys.items() if not key]:
                unused[label] = f"no seconds are forecast for {', '.join(missing)}"
                continue
            distinct = tuple(dict.fromkeys(key for name in timing.names for key in keys[name]))
            phases: set[Phase] = {phase for phase, _, _ in distinct}
            phase = phases.pop() if len(phases) == 1 else None
            yield Observation(label, timing.seconds, distinct, partial(self._seconds, timing.names), phase)

    @cached_property
    def _problem(self) -> PlanningProblem:
        return replace(self.problem, calibration=None)

    @cached_property
    def _step(self) -> StepForecast:
        return step_of(self._problem, self.homes)

    @cached_property
    def _loads(self) -> dict[str, NodeWorkload]:
        return {load.node: load for load in self._problem.loads}

    @cached_property
    def _syncs(self) -> frozenset[str]:
        return frozenset(task.name for task in self._step.tasks if task.kind == "sync" and task.seconds)

    @cached_property
    def _unscaled_s(self) -> dict[str, float | None]:
        return {name: seconds.total_s for name, seconds in node_seconds(self._problem, self.homes).items()}

    @cached_property
    def _host_nodes(self) -> tuple[str, ...]:
        of_roles = {name for role in self._problem.roles for name in role.nodes}
        nodes = (node.name for node in self._problem.running.nodes if node.name not in of_roles)
        return tuple(name for name in nodes if self._unscaled_s.get(name))

    def _keys(self, name: str) -> tuple[Key, ...]:
        device = self._problem.classes[0].model
        if (load := self._loads.get(name)) is not None:
            return (self._load_key(load),)
        if name in self._host_nodes:
            return (("host", "", device),)
        if name in self._syncs or (name == SYNC and self._syncs):
            return (("sync", "", device),)
        if name == STEP and self._step.period_s:
            loads = (self._load_key(load) for load in self._loads.values())
            syncs: tuple[Key, ...] = (("sync", "", device),) if self._syncs else ()
            return (*dict.fromkeys(loads), *syncs, ("host", "", device))
        return ()

    def _load_key(self, load: NodeWorkload) -> Key:
        home = next((home for home in self.homes if home.role.name == load.role.name), None)
        label = f"{self.name} {load.node}"
        if home is None:
            raise DataError.unusable(label, f"the plan has no pool for {load.role.name}")
        if not self._unscaled_s.get(load.node):
            raise DataError.unusable(label, "no seconds are forecast for it, so nothing can be fitted to them")
        return LOAD_PHASES[load.phase], load.role.name, home.group.of.model

    def _seconds(self, names: Sequence[str], calibration: Calibration | None) -> float:
        problem = replace(self._problem, calibration=calibration)
        return sum(self._seconds_of(problem, name) for name in names)

    def _seconds_of(self, problem: PlanningProblem, name: str) -> float:
        if name in self._loads or name in self._host_nodes:
            return node_seconds(problem, self.homes)[name].total_s or 0.0
        step = step_of(problem, self.homes)
        if name == STEP:
            return step.period_s or 0.0
        return sum(task.seconds or 0.0 for task in step.tasks if task.name == name or (name == SYNC == task.kind))


@dataclass(frozen=True)
class CalibrationResult:
    """A calibration, the forecast errors before and after it, and the timings that were not used, with reasons.

    `far` maps the label of each timing below a fifth or above five times its forecast to the ratio of measured to
    forecast seconds. `names` are all names that can be timed.
    """

    calibration: Calibration
    before: ForecastErrors
    after: ForecastErrors
    far: Mapping[str, float]
    unused: Mapping[str, str]
    names: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a line of text for each timing that was not used, with the reason."""
        return tuple(f"not used: {label}: {why}" for label, why in self.unused.items())

    def data(self) -> dict[str, Any]:
        """Return the calibration, the errors before and after it, and far-off and unused timings as data for JSON.

        The keys are the fields `calibration`, `before`, `after`, `far` and `unused`.
        """
        return {
            "calibration": json.loads(self.calibration.to_json()),
            "before": asdict(self.before),
            "after": asdict(self.after),
            "far": dict(self.far),
            "unused": dict(self.unused),
        }

    def text(self) -> str:
        """Return a text with the errors before and after, each scale with its 90% interval, and far-off timings."""
        lines = [f"before  {self.before}", f"after   {self.after}"]
        for device in self.calibration.devices:
            lines.append(device)
            for scale in self.calibration.scales:
                if scale.device == device:
                    name = f"{scale.phase} {scale.role}".strip()
                    counted = f"{scale.measurements} measured" if scale.measurements else "not measured"
                    lines.append(f"  {name:<28} {scale.factor:.3f} ({scale.low:.2f} to {scale.high:.2f}), {counted}")
        for label, times in self.far.items():
            lines.append(f"far off: {label} took {times:.3g} times its forecast, so its seconds may be wrong")
        return "\n".join(lines)


def repair(runs: Sequence[MeasuredRun], source: str) -> CalibrationResult:
    """Fit scales to the measured seconds of runs, and return them with the forecast errors before and after.

    Scales apply to forecasts from the engines' constants; a calibration with which a run was planned is ignored.
    `source` describes the measurement. Raises DataError for seconds that are not a number above 0, for a node whose
    role has no pool or no forecast, and if no timing of the runs has a forecast.
    """
    unused = dict[str, str]()
    observations = [observation for run in runs for observation in run.observations(unused)]
    names = tuple(dict.fromkeys(name for run in runs for name in run.names))
    if not observations:
        labels = ", ".join(run.name for run in runs)
        hint = f"what is forecast: {', '.join(names)}" if names else ""
        raise DataError.unusable(labels, "has no measured seconds of a node with a forecast", hint)
    calibration = fit_scales(observations, source)
    before, after = (
        ForecastErrors.of([observation.forecast(scales) / observation.seconds for observation in observations])
        for scales in (None, calibration)
    )
    ratios = {observation.label: observation.seconds / observation.forecast(None) for observation in observations}
    far = {label: ratio for label, ratio in ratios.items() if not 1 / FAR <= ratio <= FAR}
    return CalibrationResult(calibration, before, after, far, unused, names)
