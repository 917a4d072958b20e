"""Measured runs of forecast plans: seconds by node beside their forecast, and the constants that fit them better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from placements.calibrate import Calibration, Measured, calibrate
from placements.constants import Constants
from placements.decode import ServingConstants
from placements.loads import Load
from placements.placing import Home, work_of
from placements.setting import Setting
from placements.training_passes import TrainingConstants

# What is fitted, the most telling first: as many as there are measurements, less one.
FITTED: Mapping[type[Constants], tuple[str, ...]] = {
    TrainingConstants: ("matmul_share", "step_s", "overlap", "attention_share", "launch_s"),
    ServingConstants: ("layer_s", "step_s", "request_s", "row_s"),
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
    setting: Setting
    home: Home
    load: Load


def calibrations(runs: Sequence[MeasuredRun]) -> tuple[Calibration[Any], ...]:
    """Fit the constants of each engine that these runs have measured; none for one that they have not.

    Raises DataError for seconds that cannot be.
    """
    return tuple(_calibrations(runs))


def _calibrations(runs: Sequence[MeasuredRun]) -> Iterator[Calibration[Any]]:
    by_engine = dict[str, list[Measured]]()
    for run in runs:
        for engine, measured in _measured(run):
            by_engine.setdefault(engine, []).append(measured)
    names = ", ".join(run.name for run in runs)
    for engine, rows in by_engine.items():
        draws = rows[0].case.home.role.use == "sample"
        kind: type[Constants] = ServingConstants if draws else TrainingConstants
        only = FITTED[kind][: max(1, len(rows) - 1)]
        yield calibrate(kind, engine, rows, _forecast, only=only, source=f"fitted to {names}")


def _measured(run: MeasuredRun) -> Iterator[tuple[str, Measured]]:
    homes = {home.role.name: home for home in run.homes}
    for load in run.setting.loads:
        home, seconds = homes[load.role.name], run.nodes_s.get(load.node)
        if seconds is not None:
            yield home.engine, Measured(f"{run.name} {load.node}", seconds, _Case(run.setting, home, load))


def _forecast(constants: Constants, case: _Case) -> float:
    setting = replace(case.setting, calibrated={**case.setting.calibrated, case.home.engine: asdict(constants)})
    return work_of(setting, case.home, case.load).seconds.total_s or 0.0
