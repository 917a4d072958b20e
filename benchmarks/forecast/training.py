"""Optimizer steps of FSDP and Megatron as they were published, against `update_seconds`.

As shipped; calibrated on a fifth of the rows, as a user would on own runs; and by which plan would be picked. The null
model is a constant share of the peak: the median of the rows that a calibration reads, or of the table as shipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import mean, median

from benchmarks.forecast.fit_constants import MeasuredCase, calibrate
from benchmarks.forecast.report import Case, Row, Table, View
from benchmarks.forecast.training_case import Trained, forecast_s
from benchmarks.forecast.training_papers import PAPER, PAPER_CELLS, paper
from benchmarks.forecast.training_rows import (
    BRIDGE,
    BRIDGE_CELLS,
    FOUNDRY,
    FOUNDRY_CELLS,
    PRIME,
    PRIME_CELLS,
    VTRAIN,
    VTRAIN_CELLS,
    bridge,
    foundry,
    prime,
    vtrain,
)
from flowgraph.cluster.calibration import Calibration
from flowgraph.errors import DataError
from placements.calibration.fit_scales import Key, Observation, fit_scales
from placements.hardware.engine_constants import TrainingConstants, constants

Reader = Callable[[Row], Trained | str]
Chosen = Callable[[Trained], bool]
"""Which rows: those that a calibration reads, or those that are held against it."""


def _shipped(read: Reader) -> View:
    return View("a step, constants as shipped", "s", lambda rows: _cases(rows, read))


def _calibrated(read: Reader) -> View:
    name = "a step, calibrated on a fifth of the rows, against the rest"
    return View(name, "s", lambda rows: _held(rows, read, lambda row: row.chosen, lambda row: not row.chosen))


def _one_machine(read: Reader) -> View:
    name = "a step on one machine, calibrated on a fifth of such rows, against the rest of them"
    return View(name, "s", lambda rows: _held(rows, read, _of_one, lambda row: row.nodes == 1 and not row.chosen))


def _several_machines(read: Reader) -> View:
    name = "a step on several machines, calibrated on a fifth of the rows of one"
    return View(name, "s", lambda rows: _held(rows, read, _of_one, lambda row: row.nodes > 1))


def _other_models(read: Reader) -> View:
    name = "a step, each model forecast by a fifth of the rows of all others"
    return View(name, "s", lambda rows: _left_out(rows, read))


def _after_one(read: Reader) -> View:
    name = "the same, after one step of that model on that device was measured"
    return View(name, "s", lambda rows: _repaired(rows, read, scaled=True))


def _before_one(read: Reader) -> View:
    name = "the same rows, each as often as another of that model on that device was measured, without its scale"
    return View(name, "s", lambda rows: _repaired(rows, read, scaled=False))


def _plans(read: Reader) -> View:
    name = "the plan picked, calibrated on a fifth of the rows of one machine, beside the best measured; null: any plan"
    return View(name, "s", lambda rows: _picked(rows, read))


def _of_one(row: Trained) -> bool:
    return row.chosen and row.nodes == 1


def _read(rows: Sequence[Row], read: Reader) -> list[Trained]:
    return [each for each in map(read, rows) if isinstance(each, Trained)]


def _cases(rows: Sequence[Row], read: Reader) -> Iterator[Case]:
    """Yield the forecasts as shipped, and a case with the reason for each row that has none."""
    known = _read(rows, read)
    yield from (
        Case("", 0.0, None, group="not forecast", why=each) for each in map(read, rows) if isinstance(each, str)
    )
    for row in known:
        yield _case(row, constants(TrainingConstants, row.engine, row.version), known)


def _held(rows: Sequence[Row], read: Reader, fitted: Chosen, held: Chosen) -> Iterator[Case]:
    """Yield the forecasts of the rows that are held against a calibration on others."""
    known = _read(rows, read)
    base = [row for row in known if fitted(row)]
    found = _fit(base)
    yield from (_case(row, found, base) for row in known if held(row))


def _left_out(rows: Sequence[Row], read: Reader) -> Iterator[Case]:
    known = _read(rows, read)
    for name in dict.fromkeys(row.name for row in known):
        yield from _held(rows, read, lambda row: row.chosen and row.name != name, lambda row: row.name == name)  # noqa: B023 - used at once


def _repaired(rows: Sequence[Row], read: Reader, *, scaled: bool) -> Iterator[Case]:
    """Return each row by each other row of its model and device: constants of other models, and the scale of that row.

    The null model is the share of the peak that the measured row attains.
    """
    known = _read(rows, read)
    for name in dict.fromkeys(row.name for row in known):
        found = _fit([row for row in known if row.chosen and row.name != name])
        own = [row for row in known if row.name == name] if found is not None else []
        for one in own:
            device, one_s = one.links.device.name, _forecast_s(found, one)
            others = [row for row in own if row is not one and row.links.device.name == device]
            if not others or not one_s:
                continue
            scales = fit_scales([_observation(one, one_s)], one.label)
            factor = scales.factor_of("update", "policy.train", device) if scaled else 1.0
            for row in others:
                ours, null = _forecast_s(found, row), row.peak_s * one.seconds / one.peak_s
                yield Case(row.label, row.seconds, None if ours is None else factor * ours, null, row.group)


def _observation(row: Trained, forecast_s: float) -> Observation:
    key: Key = ("update", "policy.train", row.links.device.name)

    def scaled(calibration: Calibration | None) -> float:
        return forecast_s * (1.0 if calibration is None else calibration.factor_of(*key))

    return Observation(row.label, row.seconds, (key,), scaled, "update")


def _picked(rows: Sequence[Row], read: Reader) -> Iterator[Case]:
    """Yield for each model."""
    known = _read(rows, read)
    found = _fit([row for row in known if _of_one(row)])
    groups = dict[tuple[object, ...], list[Trained]]()
    for row in known:
        groups.setdefault((row.name, row.layout.devices, row.tokens), []).append(row)
    for plans in (each for each in groups.values() if len(each) > 1 and found is not None):
        seconds = [row.seconds for row in plans]
        best = min(plans, key=lambda row: _forecast_s(found, row) or float("inf"))
        yield Case(plans[0].label, min(seconds), best.seconds, mean(seconds), plans[0].group)


def _case(row: Trained, found: TrainingConstants | None, base: Sequence[Trained]) -> Case:
    """Return the forecast of a row, and that of the share of the peak which the rows of `base` attain."""
    why = "too few rows to calibrate on"
    if found is None:
        return Case(row.label, row.seconds, None, group=row.group, why=why)
    share = median(each.peak_s / each.seconds for each in base)
    return Case(row.label, row.seconds, _forecast_s(found, row), row.peak_s / share, row.group)


def _forecast_s(found: TrainingConstants | None, row: Trained) -> float | None:
    return None if found is None else forecast_s(found, row)


def _fit(rows: Sequence[Trained]) -> TrainingConstants | None:
    """Calibrate the constants of the rows' engine; None if there are fewer rows than constants."""
    measured = [MeasuredCase(row.label, row.seconds, row) for row in rows]
    try:
        return calibrate(TrainingConstants, rows[0].engine, measured, forecast_s, version=rows[0].version).constants
    except (DataError, IndexError):
        return None


TABLES = (
    Table(
        "training steps, GPT on Megatron-DeepSpeed",
        VTRAIN,
        tuple(view(vtrain) for view in (_shipped, _one_machine, _several_machines, _other_models, _plans)),
        VTRAIN_CELLS,
    ),
    Table(
        "training throughput, MPT on FSDP",
        FOUNDRY,
        tuple(
            view(foundry)
            for view in (_shipped, _one_machine, _several_machines, _other_models, _before_one, _after_one)
        ),
        FOUNDRY_CELLS,
    ),
    Table(
        "training throughput, Megatron-Bridge",
        BRIDGE,
        tuple(view(bridge) for view in (_shipped, _calibrated, _other_models, _before_one, _after_one)),
        BRIDGE_CELLS,
    ),
    Table("training micro-batches, prime-rl on FSDP2", PRIME, (_shipped(prime),), PRIME_CELLS),
    Table("training steps of single papers", PAPER, (_shipped(paper),), PAPER_CELLS),
)
