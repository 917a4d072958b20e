"""Fit an engine's constants to tables of measured seconds, within their bounds.

Only attained shares and overheads are fitted, not the peaks of devices and networks. Not here: the forecasts, and
reading measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt
from statistics import median
from typing import TYPE_CHECKING, Any, Generic

from flowgraph.errors import DataError, UnknownNameError
from placements.calibration.measured_runs import ForecastErrors
from placements.calibration.timings import refuse_no_seconds
from placements.hardware.engine_constants import C, ConstantBounds, bounds, constant_names
from placements.workload.batch_partition import many

if TYPE_CHECKING:
    from numpy.typing import NDArray

OUTLIER = 0.1  # logarithmic errors beyond this weigh less than their square in a fit
PRIOR = 0.03  # an error of every row that weighs as much as moving a constant through its whole range
WORSE = 0.01  # of the seconds: a fit whose median error grows by more made the forecast worse
STEP = 1e-3  # of a constant's range, to measure its effect


@dataclass(frozen=True)
class MeasuredCase:
    """Measured seconds of a `case`, the forecast's input."""

    label: str
    seconds: float
    case: Any


@dataclass(frozen=True)
class FittedConstants(Generic[C]):
    """Constants fitted to measurements: all of them, the errors before and after, and those that moved, with bounds.

    Where the fit would make errors larger, the constants are `kept` and none has moved; `after` has the errors of the
    fit.
    """

    engine: str
    constants: C
    before: ForecastErrors
    after: ForecastErrors
    moved: Mapping[str, ConstantBounds] = field(default_factory=dict[str, ConstantBounds])
    kept: bool = False


def calibrate(
    kind: type[C],
    engine: str,
    measured: Sequence[MeasuredCase],
    forecast: Callable[[C, Any], float],
    *,
    version: str = "",
    only: Iterable[str] = (),
    within: Mapping[str, ConstantBounds] | None = None,
    source: str = "fitted",
) -> FittedConstants[C]:
    """Return the constants of an engine fitted to measured seconds: those of `only`, or all whose bounds leave room.

    `within` has the bounds of constants that are in no engine file. `source` describes the measurements. The logarithms
    of forecasts are fitted, outliers with less weight; constants on which no row depends keep their shipped values. The
    same rows give the same constants.

    Raises DataError for fewer rows than constants, or a row without seconds; UnknownNameError for a constant, an engine
    or a version that is not known.
    """
    shipped = within if within is not None else bounds(engine, version)
    start = kind(**{name: shipped[name].value for name in constant_names(kind)})
    only = tuple(only)
    for name in only:
        if name not in constant_names(kind):
            raise UnknownNameError.of("constant", name, constant_names(kind))
    names = [
        name for name in constant_names(kind) if shipped[name].low < shipped[name].high and name in (only or shipped)
    ]
    for row in measured:
        refuse_no_seconds(row.label, row.seconds)
    if len(measured) < max(1, len(names)):
        hint = f"measure more, or fit only some of {', '.join(names)}"
        few = "1 measurement is" if len(measured) == 1 else f"{len(measured)} measurements are"
        what = f"{few} too few to fit {many(len(names), 'constant')}"
        raise DataError.unusable(f"constants of {engine}", what, hint)
    fitted = _fit(start, names, shipped, measured, forecast)
    constants = start.moved(fitted)
    before, after = (
        ForecastErrors.of([forecast(tried, row.case) / row.seconds for row in measured]) for tried in (start, constants)
    )
    if after.median > before.median + WORSE:
        return FittedConstants(engine, start, before, after, kept=True)
    origin = f"{source}: {after}"
    moved = {name: ConstantBounds(fitted[name], shipped[name].low, shipped[name].high, origin) for name in names}
    return FittedConstants(engine, constants, before, after, moved)


def _fit(
    start: C,
    names: Sequence[str],
    shipped: Mapping[str, ConstantBounds],
    measured: Sequence[MeasuredCase],
    forecast: Callable[[C, Any], float],
) -> dict[str, float]:
    """Return the constants with the smallest errors; while they are fitted, 0 to 1 are the bounds of each."""
    import numpy as np
    from scipy.optimize import least_squares

    lows = np.array([shipped[name].low for name in names])
    ranges = np.array([shipped[name].high - shipped[name].low for name in names])
    logs, prior = np.log([row.seconds for row in measured]), PRIOR * sqrt(len(measured))
    first = (np.array([shipped[name].value for name in names]) - lows) / ranges

    def errors(places: NDArray[np.float64]) -> NDArray[np.float64]:
        moved = start.moved(dict(zip(names, (lows + places * ranges).tolist(), strict=True)))
        forecasts = np.array([log(forecast(moved, row.case)) for row in measured])
        return np.concatenate([forecasts - logs, prior * (places - first)])

    if not names:
        return {}
    inside = np.clip(first, 2 * STEP, 1 - 2 * STEP)
    fit = least_squares(errors, inside, bounds=(0.0, 1.0), loss="soft_l1", f_scale=OUTLIER, diff_step=STEP)
    fitted = np.clip(lows + fit.x * ranges, lows, lows + ranges)
    return dict(zip(names, fitted.tolist(), strict=True))


def scale_of(measured: Sequence[MeasuredCase], forecast: Callable[[Any], float]) -> float:
    """Return the factor for all forecasts with which their median error is 0.

    >>> scale_of([MeasuredCase("", seconds, 1.0) for seconds in (2.0, 3.0, 9.0)], lambda case: case)
    3.0
    """
    return round(exp(median(log(row.seconds / forecast(row.case)) for row in measured)), 12)
