"""Published runs forecast after one measured run of the same system: what a calibration is worth on other plans.

A system is a framework, a model and a device model. Each of its runs is taken in turn as the one that was measured, and
each other run is forecast with the scales that this one gives. Not here: the forecast without a calibration (`rl`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.forecast.report import Case
from benchmarks.forecast.rl_rows import Read
from benchmarks.forecast.rl_steps import PHASES, homes_of_workload, problem_of, seconds_of
from benchmarks.forecast.rl_workloads import Workload, from_toml, to_toml
from flowgraph.cluster.calibration import PHASES as SCALED
from flowgraph.cluster.calibration import Calibration, Scale
from flowgraph.cluster.plan import StepForecast
from flowgraph.errors import FlowError
from placements.calibration.fit_scales import Key, Observation, fit_scales
from placements.calibration.measured_runs import LOAD_PHASES
from placements.step.role_placements import RolePlacement
from placements.step.step_forecast import step_of
from placements.workload.planning_problem import PlanningProblem

Form = Callable[["Run"], Calibration]
"""How a calibration is made of one run."""


@dataclass(frozen=True, eq=False)
class Run:
    """A published run: its label, what was measured by clock, and where its roles live."""

    label: str
    framework: str
    workload: Workload
    clocks: Mapping[str, float]
    problem: PlanningProblem
    homes: tuple[RolePlacement, ...]

    @property
    def system(self) -> tuple[str, str, str]:
        """Return what runs of one system share: the framework, the model that is trained, and the device model."""
        return self.framework, self.workload.models["policy"], self.problem.classes[0].model

    def step(self, calibration: Calibration | None = None) -> StepForecast:
        """Return the forecast of a step with a calibration, every role where the run has it."""
        return step_of(replace(self.problem, calibration=calibration), self.homes)

    def observations(self, clocks: Iterable[str]) -> list[Observation]:
        """Return what these clocks measured, those that are not forecast left out."""
        step = self.step()
        return [
            Observation(f"{self.label}: {clock}", self.clocks[clock], self._keys, self._forecast(clock), None)
            for clock in clocks
            if clock in self.clocks and seconds_of(step, clock)
        ]

    def _forecast(self, clock: str) -> Callable[[Calibration | None], float]:
        return lambda calibration: seconds_of(self.step(calibration), clock) or 0.0

    @property
    def _keys(self) -> tuple[Key, ...]:
        where = {home.role.name: home.group.of.model for home in self.homes}
        found: list[Key] = [
            (LOAD_PHASES[load.phase], load.role.name, where[load.role.name]) for load in self.problem.loads
        ]
        return (*dict.fromkeys(found), ("sync", "", self.system[2]), ("host", "", self.system[2]))


def runs_of(reads: Iterable[Read]) -> list[Run]:
    """Return the runs whose step was measured, each once, with all its clocks that name seconds of one step."""
    clocks, workloads = dict[str, dict[str, float]](), dict[str, Read]()
    for read in reads:
        if read.workload is not None and read.seconds and not read.metric.startswith("time_"):
            clocks.setdefault(read.label, {})[read.metric] = read.seconds
            workloads[read.label] = read
    found = list[Run]()
    for label, own in clocks.items():
        workload = workloads[label].workload
        homes = _placed(to_toml(workload.question)) if workload is not None and "step" in own else None
        if workload is not None and homes is not None:
            found.append(Run(label, workloads[label].framework, workload, own, *homes))
    return found


@cache
def _placed(text: str) -> tuple[PlanningProblem, tuple[RolePlacement, ...]] | None:
    """Return the planning problem of a run and where its roles live; None where they do not fit."""
    workload = from_toml(text)
    try:
        problem = problem_of(workload)
        homes = homes_of_workload(workload, problem)
    except FlowError:
        return None
    return None if isinstance(homes, str) else (problem, tuple(homes))


# -------------------------------------------------------------------------------------------------- forms


def uncalibrated(_run: Run) -> None:
    """Return no calibration."""


def one_factor(run: Run) -> Calibration:
    """Return the factor of the measured step alone, for every phase, without a prior."""
    factor = run.clocks["step"] / (run.step().period_s or 1.0)
    return Calibration(
        source=run.label,
        scales=tuple(
            Scale(phase=phase, device=run.system[2], factor=factor, low=factor, high=factor) for phase in SCALED
        ),
    )


def by_step(run: Run) -> Calibration:
    """Return the scales that a measured step gives."""
    return fit_scales(run.observations(["step"]), run.label)


def by_phase(run: Run) -> Calibration:
    """Return the scales that the measured step and all phases that were published beside it give."""
    return fit_scales(run.observations(["step", *PHASES]), run.label)


def cases_of(runs: Sequence[Run], form: Callable[[Run], Calibration | None], clock: str = "step") -> Iterator[Case]:
    """Return each run as forecast after each other run of its system was measured; the null model is a rate of tokens.

    The null model takes the tokens a second of each device from the measured run.
    """
    from benchmarks.forecast.rl import tokens_of

    for measured in runs:
        others = [run for run in runs if run is not measured and run.system == measured.system and clock in run.clocks]
        calibration = form(measured) if others else None
        for run in others:
            rate = tokens_of(measured.workload) / measured.workload.devices / measured.clocks["step"]
            null = tokens_of(run.workload) / run.workload.devices / rate if clock == "step" else None
            ours = seconds_of(run.step(calibration), clock)
            yield Case(f"{run.label} by {measured.label}", run.clocks[clock], ours, null, " ".join(run.system))
