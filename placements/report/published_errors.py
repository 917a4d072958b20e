"""The errors of forecasts against published figures, by kind, and the lines that report them below a forecast.

`python -m benchmarks.forecast.left_out --write-errors` writes them to `published_errors.toml`: those of whole models or
whole kinds of hardware that were left out of every fit. Not here: how they are measured.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flowgraph.cluster.plan import Plan
from placements.hardware.device_profiles import profile_of

FILE = Path(__file__).with_name("published_errors.toml")
PHASES = ("generate", "update", "sync")
"""Kinds of task whose seconds have published rows of their own."""
UNKNOWN = "error not known: no published row is of such devices; `calibrate` fits runs"


@dataclass(frozen=True)
class PublishedError:
    """The error of one kind of forecast, measured against published figures that were left out of all fits.

    All errors are shares of the measured figure. `median` is the median absolute error; `low` and `high` are the 10th
    and 90th percentile of the signed error. `rows` counts the published figures, which cover `models` models and
    `devices` kinds of device. `noun` is the plural of what a row measures, such as steps, and `of` describes the rows.
    """

    rows: int
    models: int
    devices: int
    median: float
    low: float
    high: float
    noun: str
    of: str

    def __str__(self) -> str:
        return f"± {self.median:.0%}, from {self.rows:,} published {self.noun}"

    @property
    def short(self) -> str:
        """Return the median error and the number of rows as text: `± 25% (31)`."""
        return f"± {self.median:.0%} ({self.rows:,})"


@cache
def published_errors() -> Mapping[str, PublishedError]:
    """Return the shipped errors by kind of forecast: `step`, `generate`, `update`, `sync` and `memory`; cached."""
    tables = tomllib.loads(FILE.read_text("utf-8"))
    return {name: PublishedError(**table) for name, table in tables.items() if isinstance(table, dict)}


def error_lines(plan: Plan) -> Iterator[str]:
    """Yield lines of at most 80 columns with the published errors of a plan's forecast seconds and bytes.

    If the plan has no devices, or any device is a CPU or of an unknown model, the only line says that the error is not
    known. Otherwise, a plan that has only a forecast of memory gets only the error of memory, and a plan without any
    forecast gets no line.
    """
    if not has_published_rows(plan):
        yield UNKNOWN
        return
    errors = published_errors()
    memory = errors["memory"]
    scaled = plan.assumed is not None and plan.assumed.calibration is not None
    memory_text = f"memory {memory.low:+.0%} to {memory.high:+.0%} ({memory.rows})"
    if plan.step is not None and plan.step.period_s is not None:
        subject = "seconds without the calibration" if scaled else "a step's seconds and tokens/s"
        yield f"error of {subject}: {errors['step']}"
        yield f"  {', '.join(f'{name} {errors[name].short}' for name in PHASES)}"
        yield f"  {memory_text}; ±: median error, its model or hardware left out"
    elif plan.forecast:
        yield f"error of {memory_text}: 8 in 10 of the published {memory.noun}"


def step_error(plan: Plan) -> str:
    """Return the error of a plan's forecast seconds as text, such as `± 20%, from 100 published steps`.

    Returns "" if `has_published_rows` is False for the plan, or if a calibration scales the seconds, because published
    errors are those of forecasts without a calibration.
    """
    scaled = plan.assumed is not None and plan.assumed.calibration is not None
    return str(published_errors()["step"]) if has_published_rows(plan) and not scaled else ""


def has_published_rows(plan: Plan) -> bool:
    """Return whether published figures exist for devices like those of a plan: all must be GPUs of known models.

    The result is False for a plan without devices, or with a device that its cluster lacks.
    """
    devices = [plan.cluster.device(*place) for pool in plan.pools for place in pool.devices]
    return bool(devices) and all(device is not None and not profile_of(device).nominal for device in devices)
