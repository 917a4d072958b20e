"""Lengths by a few quantities: reading `mean=2k,p99=16k,max=20k`, and the lognormal of which that is true.

Not here: what is asked of a distribution (`lengths`).
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
"""How many points tell a distribution; what happens only once in more draws than these is not told."""


SPREAD = 0.7
"""The sigma of lengths of which only one quantity is said.

Source: lengths of responses as published for reasoning runs look lognormal, with sigma 0.5 to 0.9.
"""

LEAST_TOKENS, MOST_TOKENS = 1, 100_000_000  # of a row: more than any model reads
MOST_SPREAD = 3.0  # at sigma 3 one in a hundred is a thousand times the median
_SUFFIXES = {"": 1, "k": 1_000, "m": 1_000_000}
_HALVINGS = 50
_KNOWN = ("mean", "p50", "p99", "sigma", "max")


def quantities(text: str, where: str) -> dict[str, float]:
    """Read the quantities of a text; a plain number is `tokens`.

    >>> quantities("mean=1.5k, p99=16k", "lengths"), quantities("1024", "lengths")
    ({'mean': 1500.0, 'p99': 16000.0}, {'tokens': 1024.0})

    Raises SettingError for what is no quantity, or is said twice.
    """
    if "=" not in text:
        return {"tokens": _tokens("tokens", text, where)}
    found = dict[str, float]()
    for part in text.split(","):
        name, sign, value = (each.strip() for each in part.partition("="))
        if not sign:
            raise SettingError.refused(where, "lengths", text, f"say of what {part.strip()!r} is: {', '.join(_KNOWN)}")
        if name in found:
            raise SettingError.refused(where, "lengths", text, f"{name} is said twice")
        found[name] = quantity(name, value, where)
    return found


def quantity(name: str, text: str, where: str) -> float:
    """Read one quantity by its name: mean, sigma, max, or a percentile such as p50 or p99.9.

    Raises SettingError if there is none of the name, or if it cannot be so.
    """
    if name == "sigma":
        spread = _number(name, text, where)
        if not 0 < spread <= MOST_SPREAD:
            raise SettingError.refused(where, name, text, f"a spread of logarithms is above 0, at most {MOST_SPREAD:g}")
        return spread
    if name not in _KNOWN and _share(name) is None:
        raise SettingError.unknown(where, "a distribution of lengths", name, _KNOWN)
    return _tokens(name, text, where)


def fitted(asked: Mapping[str, float], where: str) -> tuple[float, ...]:
    """Return the points of the lognormal of these quantities, cut at `max`; a spread that is not said is `SPREAD`.

    Raises SettingError if they are too many or too few, or if no lognormal has them.
    """
    named = {name: value for name, value in asked.items() if name != "max"}
    if not set(named) - {"sigma"}:
        raise SettingError.refused(where, "lengths", _text(asked), "a mean or a p50 is to be said too")
    if len(named) == 1:
        named["sigma"] = SPREAD
    deviates = _deviates()
    return _solved(named, asked, lambda sigma: _exp(sigma * deviates), where)


def stretched(points: tuple[float, ...], asked: Mapping[str, float], where: str) -> tuple[float, ...]:
    """Return points raised to a power and scaled, so that they have the quantities asked, cut at `max`.

    At most one quantity that says nothing of the spread is a matter of scale alone; of a spread alone, the mean stays.

    Raises SettingError as `fitted` does.
    """
    import numpy

    array = numpy.asarray(points)
    named = {name: value for name, value in asked.items() if name != "max"}
    most = asked.get("max", float("inf"))
    if not named:
        return tuple(numpy.minimum(array, most).tolist())
    if len(named) == 1 and set(named) <= {"mean", "p50"}:
        return tuple(_scaled(array, *next(iter(named.items())), most).tolist())
    logs = numpy.log(numpy.maximum(array, 1.0))
    logs -= logs.mean()
    spread = float(logs.std()) or 1.0
    if not {"mean", "p50"} & set(named):
        named = {"mean": float(array.mean()), **named}
    return _solved(named, asked, lambda sigma: _exp(sigma / spread * logs), where)


def _solved(
    named: Mapping[str, float], said: Mapping[str, float], of: Callable[[float], Points], where: str
) -> tuple[float, ...]:
    """Return the points of a family, of which `of` gives those of each spread, with two quantities as asked."""
    asked = _text(said)
    if len(named) > 2:
        raise SettingError.refused(where, "lengths", asked, "two of these say which lognormal it is, and max cuts it")
    limit = said.get("max", float("inf"))
    over = [name for name, value in named.items() if name != "sigma" and value > limit]
    if over:
        raise SettingError.refused(where, "lengths", asked, f"{over[0]} exceeds max={limit:.0f}")
    first = "mean" if "mean" in named else next(name for name in named if name != "sigma")
    second = next(name for name in named if name != first)
    spread = named[second]
    if second != "sigma":
        spread = _spread(lambda sigma: _told(_scaled(of(sigma), first, named[first], limit), second), spread)
        told = _told(_scaled(of(spread), first, named[first], limit), second)
        if abs(told / named[second] - 1) > 0.01:
            why = f"with that {first}, the nearest {second} of a lognormal is {told:.0f}"
            raise SettingError.refused(where, "lengths", asked, why)
    points: tuple[float, ...] = tuple(_scaled(of(spread), first, named[first], limit).tolist())
    if points[-1] > MOST_TOKENS:
        why = f"the longest would have {points[-1]:,.0f} tokens, and {MOST_TOKENS:,} are the most: max=N cuts them"
        raise SettingError.refused(where, "lengths", asked, why)
    return points


def _spread(told: Callable[[float], float], target: float) -> float:
    """Return the least spread at which a quantity is as wanted, or else the one at which it is nearest."""
    steps = 60
    spreads = [MOST_SPREAD * step / steps for step in range(steps + 1)]
    values = [told(each) for each in spreads]
    for place in range(steps):
        if (values[place] - target) * (values[place + 1] - target) <= 0:
            return _halved(told, target, spreads[place], spreads[place + 1])
    return min(zip(spreads, values, strict=True), key=lambda pair: abs(pair[1] - target))[0]


def _halved(told: Callable[[float], float], target: float, low: float, high: float) -> float:
    rising = told(high) >= told(low)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if (told(middle) < target) == rising else (low, middle)
    return (low + high) / 2


def _scaled(points: Points, name: str, wanted: float, most: float) -> Points:
    """Scale points and cut them at `most`, so that one quantity is as wanted."""
    import numpy

    factor = wanted / _told(points, name)
    if name == "mean" and points[-1] * factor > most:  # what is cut is missing from the mean
        factor = _halved(lambda each: float(numpy.minimum(points * each, most).mean()), wanted, 0.0, most / points[0])
    return numpy.minimum(points * factor, most)


def _told(points: Points, name: str) -> float:
    if name == "mean":
        return float(points.mean())
    place = (_share(name) or 0.5) * len(points) - 0.5
    below = min(max(int(place), 0), len(points) - 1)
    above = min(below + 1, len(points) - 1)
    return float(points[below] + min(max(place - below, 0.0), 1.0) * (points[above] - points[below]))


def _deviates() -> Points:
    """Return the middles of equal shares of a normal distribution."""
    import numpy

    normal = NormalDist()
    return numpy.asarray([normal.inv_cdf((place + 0.5) / POINTS) for place in range(POINTS)])


def _exp(logs: Points) -> Points:
    import numpy

    return numpy.exp(logs)


def _share(name: str) -> float | None:
    """Return the share that a percentile names: 0.999 of p99.9; None if it names none."""
    try:
        share = float(name[1:]) / 100 if name[:1] == "p" else 0.0
    except ValueError:
        return None
    return share if 0 < share < 1 else None


def _tokens(name: str, text: str, where: str) -> float:
    tokens = _number(name, text, where)
    refuse_lengths(name, text, tokens, where)
    return tokens


def refuse_lengths(name: str, shown: str, tokens: float, where: str) -> None:
    """Raise SettingError for lengths that no row has."""
    if not LEAST_TOKENS <= tokens <= MOST_TOKENS:
        raise SettingError.refused(where, name, shown, f"lengths are {LEAST_TOKENS} to {MOST_TOKENS:,} tokens")


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


def _text(named: Mapping[str, float]) -> str:
    return ",".join(f"{name}={value:g}" for name, value in named.items())
