"""Fit an engine's constants to tables of measured seconds, within their bounds, and read constants from a profile file.

Only shares attained and overheads move: what a device or a network can do is not fitted. Not here: what is forecast,
and where measurements are read from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, isfinite, log, sqrt
from statistics import median
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from flowgraph.errors import DataError, UnknownNameError
from flowgraph.files.untrusted import parse_toml
from placements.constants import Bounds, C, Constants, bounds, engines, known
from placements.cuts import many

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")

OUTLIER = 0.1  # misses of the logarithm beyond this pull on a fit less than by their square
PRIOR = 0.03  # the miss of every row that moving a constant through its whole range weighs as much as
WORSE = 0.01  # of the seconds: where the median miss of a fit is larger by more, it made the forecast worse
FAR = 5.0  # times what is forecast, or as much below it: more than any constant is off, so a slip or another plan
STEP = 1e-3  # of a constant's range, to see what moving it does


@dataclass(frozen=True)
class Measured:
    """Seconds that were measured, of whatever `case` tells the forecast."""

    label: str
    seconds: float
    case: Any


@dataclass(frozen=True)
class Misses:
    """How far forecasts are from what was measured: (forecast - measured) / measured.

    `bias` is the median with its sign, `median` and `worst` are of the sizes.
    """

    count: int
    bias: float
    median: float
    worst: float

    def __str__(self) -> str:
        bias = f"{'+' if self.bias >= 0 else '-'}{_percent(abs(self.bias), 1)}"
        told = f"median |error| {_percent(self.median, 1)}, bias {bias}, worst {_percent(self.worst, 0)}"
        return f"{told} of {self.count}"


@dataclass(frozen=True)
class Calibration(Generic[C]):
    """Constants fitted to measurements: all of them, the misses before and after, and what moved, with its bounds.

    Where the fit misses by more than the constants did before, these are `kept` and nothing has moved; `after` is what
    the fit would have missed. `far` are rows that are FAR from their forecast, each as measured seconds over it.
    """

    engine: str
    constants: C
    before: Misses
    after: Misses
    moved: Mapping[str, Bounds] = field(default_factory=dict[str, Bounds])
    kept: bool = False
    far: Mapping[str, float] = field(default_factory=dict[str, float])


def calibrate(
    kind: type[C],
    engine: str,
    measured: Sequence[Measured],
    forecast: Callable[[C, Any], float],
    *,
    version: str = "",
    only: Iterable[str] = (),
    within: Mapping[str, Bounds] | None = None,
    source: str = "fitted",
) -> Calibration[C]:
    """Fit the constants of an engine to measured seconds: those of `only`, or all whose bounds leave room.

    `within` gives bounds of constants that no engine file has. `source` says what was measured. The logarithms of
    forecasts are fitted, outliers with less weight; what no row tells stays at its shipped value. The same rows give
    the same constants.

    Raises DataError for fewer rows than constants, or a row without seconds; UnknownNameError for a constant, an engine
    or a version that is not known.
    """
    shipped = within if within is not None else bounds(engine, version)
    start = kind(**{name: shipped[name].value for name in known(kind)})
    names = _fitted(kind, shipped, tuple(only))
    _refuse(measured, names, engine)
    fitted = _least(start, names, shipped, measured, forecast)
    constants = start.moved(fitted)
    before, after = (misses(each, measured, forecast) for each in (start, constants))
    if after.median > before.median + WORSE:
        return Calibration(engine, start, before, after, kept=True, far=far_from(start, measured, forecast))
    said = f"{source}: {after}"
    moved = {name: Bounds(fitted[name], shipped[name].low, shipped[name].high, said) for name in names}
    return Calibration(engine, constants, before, after, moved, far=far_from(constants, measured, forecast))


def far_from(constants: T, measured: Sequence[Measured], forecast: Callable[[T, Any], float]) -> dict[str, float]:
    """Return the rows that are far from their forecast: measured seconds over it."""
    times = {each.label: each.seconds / forecast(constants, each.case) for each in measured}
    return {label: each for label, each in times.items() if not 1 / FAR <= each <= FAR}


def misses(constants: T, measured: Sequence[Measured], forecast: Callable[[T, Any], float]) -> Misses:
    """Return how far the forecasts with these constants are from what was measured."""
    signed = [forecast(constants, each.case) / each.seconds - 1 for each in measured]
    sizes = [abs(each) for each in signed]
    return Misses(len(signed), median(signed), median(sizes), max(sizes))


def _percent(share: float, digits: int) -> str:
    """Write a share, of a forecast that is far off in few digits.

    >>> _percent(0.123, 1), _percent(2.5e9, 1)
    ('12.3%', '2.5e+11%')
    """
    return f"{share:.{digits}%}" if share < 1e4 else f"{100 * share:.2g}%"


def _fitted(kind: type[Constants], shipped: Mapping[str, Bounds], only: tuple[str, ...]) -> tuple[str, ...]:
    """Name the constants to fit, in the order of their class."""
    for name in only:
        if name not in known(kind):
            raise UnknownNameError.of("constant", name, known(kind))
    return tuple(name for name in known(kind) if shipped[name].low < shipped[name].high and name in (only or shipped))


def _refuse(measured: Sequence[Measured], names: Sequence[str], engine: str) -> None:
    for each in measured:
        refuse_no_seconds(each.label, each.seconds)
    if len(measured) < max(1, len(names)):
        hint = f"measure more, or fit only some of {', '.join(names)}"
        few = "1 measurement is" if len(measured) == 1 else f"{len(measured)} measurements are"
        what = f"{few} too few to fit {many(len(names), 'constant')}"
        raise DataError.unusable(f"constants of {engine}", what, hint)


def refuse_no_seconds(label: str, value: Any) -> None:
    """Raise DataError for a value that is no number of seconds; `label` says of what."""
    if not _is_seconds(value):
        raise DataError.out_of_range(label, "seconds", _shown(value), "any number above 0")


def _is_seconds(value: Any) -> bool:
    """Say whether a value from a file is a number of seconds.

    >>> [_is_seconds(each) for each in (0.5, 3, 0, float("nan"), True, "3", None, 10**400)]
    [True, True, False, False, False, False, False, False]
    """
    try:
        return not isinstance(value, bool) and isinstance(value, int | float) and isfinite(value) and value > 0
    except OverflowError:
        return False


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _least(
    start: C,
    names: Sequence[str],
    shipped: Mapping[str, Bounds],
    measured: Sequence[Measured],
    forecast: Callable[[C, Any], float],
) -> dict[str, float]:
    """Return the constants that miss least, each as a place between its bounds: 0 to 1 while it is fitted."""
    import numpy as np
    from scipy.optimize import least_squares

    lows = np.array([shipped[name].low for name in names])
    ranges = np.array([shipped[name].high - shipped[name].low for name in names])
    wanted, stays = np.log([each.seconds for each in measured]), PRIOR * sqrt(len(measured))
    first = (np.array([shipped[name].value for name in names]) - lows) / ranges

    def missed(places: NDArray[np.float64]) -> NDArray[np.float64]:
        moved = start.moved(dict(zip(names, (lows + places * ranges).tolist(), strict=True)))
        told = np.array([log(forecast(moved, each.case)) for each in measured])
        return np.concatenate([told - wanted, stays * (places - first)])

    if not names:
        return {}
    inside = np.clip(first, 2 * STEP, 1 - 2 * STEP)
    found = least_squares(missed, inside, bounds=(0.0, 1.0), loss="soft_l1", f_scale=OUTLIER, diff_step=STEP)
    fitted = np.clip(lows + found.x * ranges, lows, lows + ranges)
    return dict(zip(names, fitted.tolist(), strict=True))


def scale_of(measured: Sequence[Measured], forecast: Callable[[Any], float]) -> float:
    """Return the one factor for all forecasts with which their median miss is none.

    >>> scale_of([Measured("", 2.0, 1.0), Measured("", 3.0, 1.0), Measured("", 9.0, 1.0)], lambda case: case)
    3.0
    """
    return round(exp(median(log(each.seconds / forecast(each.case)) for each in measured)), 12)


# ---------------------------------------------------------------------------------------------------- a profile file


def read_profile(text: str, where: str = "profile") -> dict[str, dict[str, float]]:
    """Read the constants of a profile, by engine and name; `where` is the file's name.

    Raises DataError for text that is no profile and for a value out of bounds; UnknownNameError for an engine or a
    constant that is not known.
    """
    try:
        tables = parse_toml(text)
    except ValueError as error:
        raise DataError.failed(where, "no TOML", error) from None
    return {engine: constants_in(engine, table, where) for engine, table in tables.items()}


def constants_in(engine: str, table: Any, where: str) -> dict[str, float]:
    """Read the constants of one engine from a table of a file, each within its bounds; raises as `read_profile`."""
    if engine not in engines():
        raise UnknownNameError.of("engine", engine, engines(), where)
    shipped = bounds(engine)
    if not isinstance(table, dict):
        raise DataError.unusable(where, f"`{engine}` is no table of constants")
    return {name: _value(f"{engine}.{name}", one, shipped.get(name), shipped, where) for name, one in table.items()}


def _value(name: str, one: Any, limits: Bounds | None, shipped: Iterable[str], where: str) -> float:
    if limits is None:
        raise UnknownNameError.of("constant", name.partition(".")[2], shipped, where)
    value = one.get("value") if isinstance(one, dict) else one
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError.unusable(where, f"`{name}` is no number")
    if not limits.low <= value <= limits.high:
        raise DataError.out_of_range(where, name, value, f"{limits.low:g} to {limits.high:g}")
    return float(value)
