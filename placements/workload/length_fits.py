"""Lengths by a few quantities: reading `mean=2k,p99=16k,max=20k`, and fitting the lognormal that has them.

Not here: the distribution itself (`lengths`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from statistics import NormalDist
from typing import TYPE_CHECKING

from flowgraph.errors import SettingError

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    Points = NDArray[float64]

POINTS = 4096
"""How many points represent a distribution; rarer lengths are not represented."""

SPREAD = 0.7
"""The sigma of lengths with only one given quantity.

Source: lengths of responses as published for reasoning runs look lognormal, with sigma 0.5 to 0.9.
"""

MIN_TOKENS, MAX_TOKENS = 1, 100_000_000  # of a row: more than any model reads
MAX_SPREAD = 3.0  # at sigma 3 one in a hundred is a thousand times the median
_SUFFIXES = {"": 1, "k": 1_000, "m": 1_000_000}
_HALVINGS = 50
_QUANTITIES = ("mean", "p50", "p99", "sigma", "max")


def quantities(text: str, where: str) -> dict[str, float]:
    """Return the quantities of a text; a plain number is `tokens`.

    >>> quantities("mean=1.5k, p99=16k", "lengths"), quantities("1024", "lengths")
    ({'mean': 1500.0, 'p99': 16000.0}, {'tokens': 1024.0})

    Raises SettingError for an unknown quantity, or one that is given twice.
    """
    if "=" not in text:
        return {"tokens": _tokens("tokens", text, where)}
    values = dict[str, float]()
    for part in text.split(","):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        if not sign:
            raise SettingError.refused(
                where, "lengths", text, f"{part.strip()!r} needs a name: {', '.join(_QUANTITIES)}"
            )
        if name in values:
            raise SettingError.refused(where, "lengths", text, f"{name} is given twice")
        values[name] = quantity(name, value, where)
    return values


def quantity(name: str, text: str, where: str) -> float:
    """Return one quantity by its name: mean, sigma, max, or a percentile such as p50 or p99.9.

    Raises SettingError for an unknown name, or a value that it cannot have.
    """
    if name == "sigma":
        spread = _number(name, text, where)
        if not 0 < spread <= MAX_SPREAD:
            raise SettingError.refused(where, name, text, f"a spread of logarithms is above 0, at most {MAX_SPREAD:g}")
        return spread
    if name not in _QUANTITIES and _share(name) is None:
        raise SettingError.unknown(where, "a distribution of lengths", name, _QUANTITIES)
    return _tokens(name, text, where)


def fitted(wanted: Mapping[str, float], where: str) -> tuple[float, ...]:
    """Return the points of the lognormal with these quantities, cut at `max`; sigma is `SPREAD` by default.

    Raises SettingError if they are too many or too few, or if no lognormal has them.
    """
    import numpy

    shape = {name: value for name, value in wanted.items() if name != "max"}
    if not set(shape) - {"sigma"}:
        raise SettingError.refused(where, "lengths", _text(wanted), "add a mean or a p50")
    if len(shape) == 1:
        shape["sigma"] = SPREAD
    normal = NormalDist()
    deviates = numpy.asarray([normal.inv_cdf((place + 0.5) / POINTS) for place in range(POINTS)])
    return _solved(shape, wanted, lambda sigma: numpy.exp(sigma * deviates), where)


def stretched(points: tuple[float, ...], wanted: Mapping[str, float], where: str) -> tuple[float, ...]:
    """Return points raised to a power and scaled so that they have the quantities wanted, cut at `max`.

    A mean or a median alone only scales them; with only a spread, the mean stays.

    Raises SettingError as `fitted` does.
    """
    import numpy

    array = numpy.asarray(points)
    shape = {name: value for name, value in wanted.items() if name != "max"}
    limit = wanted.get("max", float("inf"))
    if not shape:
        return tuple(numpy.minimum(array, limit).tolist())
    if len(shape) == 1 and set(shape) <= {"mean", "p50"}:
        return tuple(_scaled(array, *next(iter(shape.items())), limit).tolist())
    logs = numpy.log(numpy.maximum(array, 1.0))
    logs -= logs.mean()
    spread = float(logs.std()) or 1.0
    if not {"mean", "p50"} & set(shape):
        shape = {"mean": float(array.mean()), **shape}
    return _solved(shape, wanted, lambda sigma: numpy.exp(sigma / spread * logs), where)


def _solved(
    shape: Mapping[str, float], wanted: Mapping[str, float], family: Callable[[float], Points], where: str
) -> tuple[float, ...]:
    """Return the points of a family, with one member for each spread, that have the two quantities of `shape`."""
    text = _text(wanted)
    if len(shape) > 2:
        raise SettingError.refused(where, "lengths", text, "two of these define a lognormal, and max cuts it")
    limit = wanted.get("max", float("inf"))
    over = [name for name, value in shape.items() if name != "sigma" and value > limit]
    if over:
        raise SettingError.refused(where, "lengths", text, f"{over[0]} exceeds max={limit:.0f}")
    first = "mean" if "mean" in shape else next(name for name in shape if name != "sigma")
    second = next(name for name in shape if name != first)
    spread = shape[second]
    if second != "sigma":

        def second_of(sigma: float) -> float:
            return _measured(_scaled(family(sigma), first, shape[first], limit), second)

        spread = _spread(second_of, spread)
        nearest = second_of(spread)
        if abs(nearest / shape[second] - 1) > 0.01:
            why = f"with that {first}, the nearest {second} of a lognormal is {nearest:.0f}"
            raise SettingError.refused(where, "lengths", text, why)
    points: tuple[float, ...] = tuple(_scaled(family(spread), first, shape[first], limit).tolist())
    if points[-1] > MAX_TOKENS:
        why = f"the longest would have {points[-1]:,.0f} tokens, and {MAX_TOKENS:,} are the maximum: max=N cuts them"
        raise SettingError.refused(where, "lengths", text, why)
    return points


def _spread(measure: Callable[[float], float], target: float) -> float:
    """Return the smallest spread at which a quantity has its target, or else the one at which it is nearest."""
    steps = 60
    spreads = [MAX_SPREAD * step / steps for step in range(steps + 1)]
    values = [measure(spread) for spread in spreads]
    for place in range(steps):
        if (values[place] - target) * (values[place + 1] - target) <= 0:
            return _halved(measure, target, spreads[place], spreads[place + 1])
    return min(zip(spreads, values, strict=True), key=lambda pair: abs(pair[1] - target))[0]


def _halved(measure: Callable[[float], float], target: float, low: float, high: float) -> float:
    rising = measure(high) >= measure(low)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if (measure(middle) < target) == rising else (low, middle)
    return (low + high) / 2


def _scaled(points: Points, name: str, target: float, limit: float) -> Points:
    """Scale points and cut them at `limit`, so that one quantity has its target."""
    import numpy

    factor = target / _measured(points, name)
    if name == "mean" and points[-1] * factor > limit:  # what is cut is missing from the mean
        factor = _halved(
            lambda scale: float(numpy.minimum(points * scale, limit).mean()), target, 0.0, limit / points[0]
        )
    return numpy.minimum(points * factor, limit)


def _measured(points: Points, name: str) -> float:
    if name == "mean":
        return float(points.mean())
    place = (_share(name) or 0.5) * len(points) - 0.5
    below = min(max(int(place), 0), len(points) - 1)
    above = min(below + 1, len(points) - 1)
    return float(points[below] + min(max(place - below, 0.0), 1.0) * (points[above] - points[below]))


def _share(name: str) -> float | None:
    """Return the share of a percentile: 0.999 of p99.9; None for another name."""
    try:
        share = float(name[1:]) / 100 if name[:1] == "p" else 0.0
    except ValueError:
        return None
    return share if 0 < share < 1 else None


def _tokens(name: str, text: str, where: str) -> float:
    tokens = _number(name, text, where)
    refuse_lengths(name, text, tokens, where)
    return tokens


def refuse_lengths(name: str, text: str, tokens: float, where: str) -> None:
    """Raise SettingError for lengths that no row has."""
    if not MIN_TOKENS <= tokens <= MAX_TOKENS:
        raise SettingError.refused(where, name, text, f"lengths are {MIN_TOKENS} to {MAX_TOKENS:,} tokens")


def _number(name: str, text: str, where: str) -> float:
    plain = text.strip().lower().replace("_", "")
    digits = plain.rstrip("km")
    factor = _SUFFIXES.get(plain[len(digits) :])
    try:
        number = float(digits) * factor if factor is not None else float("nan")
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        raise SettingError.refused(where, name, text, "write tokens as 1024, 16k or 1.5k")
    return number


def _text(quantities: Mapping[str, float]) -> str:
    return ",".join(f"{name}={value:g}" for name, value in quantities.items())
