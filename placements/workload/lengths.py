"""The lengths of prompts and responses: a distribution in tokens, from a text, a column, or one number.

A text such as `mean=2k,p99=16k,max=20k` denotes the lognormal distribution with these quantities. Not here: the seconds
to read or to generate tokens (`time.generation`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import isfinite
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

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
_QUANTITIES = ("mean", "p50", "p99", "sigma", "max")


@dataclass(frozen=True)
class LengthDistribution:
    """Equally likely lengths in tokens, in ascending order; all properties are computed from exactly these points.

    `quantities` are those of the text that described the lengths; () without a text.

    >>> mixed = LengthDistribution((100.0, 300.0))
    >>> LengthDistribution.fixed(512).mean, mixed.mean, mixed.square_mean
    (512.0, 200.0, 50000.0)
    """

    points: tuple[float, ...]
    quantities: tuple[tuple[str, float], ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def fixed(cls, tokens: float) -> LengthDistribution:
        """Return the distribution in which every length is `tokens`."""
        return cls((float(tokens),))

    @classmethod
    def parse(cls, text: str, where: str = "lengths") -> LengthDistribution:
        """Return the lengths that a text describes: one number, or a lognormal such as `mean=2k,p99=16k,max=20k`.

        `k` is a thousand and `m` a million. One or two of `mean`, percentiles (`p50`, `p99`) and `sigma` (of the
        logarithm) define the lognormal; with one, which must not be `sigma`, sigma is 0.7. `max` cuts longer lengths; a
        mean or percentile is the value after the cut. `where` names the text's place in errors.

        >>> LengthDistribution.parse("2k").points, str(LengthDistribution.parse("mean=2k,p99=16k,max=20k"))
        ((2000.0,), 'mean=2000,p99=16000,max=20000')

        Raises SettingError for any other text, for lengths below 1 or above 100 million tokens, for a sigma of 0 or
        less or above 3, and for quantities that no lognormal has.
        """
        targets = _quantities(text, where)
        if "tokens" in targets:
            return cls.fixed(targets["tokens"])
        return cls(_fitted(targets, where), tuple(targets.items()))

    @classmethod
    def of_column(cls, values: Any, where: str = "lengths") -> LengthDistribution:
        """Return the lengths of a column of integers or of lists of token ids; missing values are left out.

        `values` is an array or a column of pyarrow, or what pyarrow.array takes. More than 4096 lengths are merged into
        4096 means of neighbours.

        >>> LengthDistribution.of_column([[7, 8, 9], [7], None]).points, LengthDistribution.of_column([5, 3]).points
        ((1.0, 3.0), (3.0, 5.0))

        Raises SettingError if the column has neither integers nor lists, no length above 0, a negative length, or one
        above 100 million tokens.
        """
        import numpy
        import pyarrow
        from pyarrow import types

        column = values.combine_chunks() if isinstance(values, pyarrow.ChunkedArray) else pyarrow.array(values)
        if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
            column = column.value_lengths()
        if not types.is_integer(column.type):
            raise SettingError.refused(where, "column", str(column.type), "it has neither whole numbers nor lists")
        lengths = numpy.sort(numpy.asarray(column.drop_null().to_pylist(), dtype=float))
        if not len(lengths) or lengths[0] < 0 or not lengths[-1]:
            raise SettingError.refused(where, "column", f"{len(lengths)} rows", "it has no lengths above 0")
        _tokens("column", f"{lengths[-1]:,.0f}", float(lengths[-1]), where)
        parts = numpy.array_split(lengths, min(POINTS, len(lengths)))
        return cls(tuple(float(part.mean()) for part in parts))

    def __str__(self) -> str:
        if self.points[0] == self.most:
            return f"{self.most:.0f}"
        return f"mean={self.mean:.0f},p99={self.quantile(0.99):.0f},max={self.most:.0f}"

    @cached_property
    def mean(self) -> float:
        """Return the mean length in tokens."""
        return float(self._array.mean())

    @cached_property
    def square_mean(self) -> float:
        """Return the mean of the squared length, in tokens²."""
        return float((self._array**2).mean())

    @cached_property
    def _array(self) -> Points:
        import numpy

        return numpy.asarray(self.points)

    @property
    def age(self) -> float:
        """Return the mean number of tokens already generated, over responses in progress at a random moment.

        Long responses weigh more, since they are in progress for longer. Source: as `remaining`.
        """
        return self.square_mean / self.mean / 2

    @property
    def most(self) -> float:
        """Return the maximum length in tokens."""
        return self.points[-1]

    def quantile(self, share: float) -> float:
        """Return the length in tokens that a `share` (0 to 1) of all lengths does not exceed.

        Lengths between two points are interpolated; no result is outside the points.

        >>> [LengthDistribution((100.0, 200.0, 300.0)).quantile(share) for share in (0.0, 0.5, 1.0)]
        [100.0, 200.0, 300.0]
        """
        return _quantile(self.points, share)

    def longest_of(self, count: float) -> float:
        """Return the expected maximum of `count` independent lengths, in tokens; a `count` below 1 counts as 1."""
        import numpy

        return float(numpy.dot(self._array, _longest_shares(len(self.points), max(1.0, count))))

    @cached_property
    def remaining(self) -> LengthDistribution:
        """Return the distribution of tokens still to be generated, over responses in progress at a random moment.

        Long responses are met more often: the probability that more than x remain is the mean excess over x, divided by
        the mean. Source: the residual life of a renewal process, Cox 1962, Renewal Theory, chapter 5.

        >>> LengthDistribution.fixed(100).remaining.mean, round(LengthDistribution((100.0, 300.0)).remaining.mean)
        (50.0, 125)
        """
        import numpy

        points = numpy.concatenate(([0.0], self._array))
        alive = 1 - numpy.arange(len(self.points)) / len(self.points)
        gone = numpy.concatenate(([0.0], numpy.cumsum(numpy.diff(points) * alive))) / self.mean
        middles = (numpy.arange(POINTS) + 0.5) / POINTS
        return LengthDistribution(tuple(numpy.interp(middles, gone, points).tolist()))

    def cut(self, max_tokens: float) -> LengthDistribution:
        """Return the distribution with every length limited to `max_tokens`."""
        return LengthDistribution(tuple(min(point, max_tokens) for point in self.points))

    def with_changes(self, changes: Mapping[str, str], where: str = "lengths") -> LengthDistribution:
        """Return the lengths with some quantities changed, such as {"p99": "16k"}.

        Lengths from a text with quantities are fitted again, together with their other quantities. Others are scaled to
        a new mean or median, and stretched to a new percentile or sigma at the same mean: each length is raised to a
        power, which makes a lognormal of a lognormal. `max` cuts them last. A fixed length that gets a sigma, or a
        percentile other than `p50`, becomes a lognormal with the same mean, unless the mean is changed, too.

        >>> str(LengthDistribution.of_column([1000, 2000, 3000]).with_changes({"mean": "4k"}))
        'mean=4000,p99=6000,max=6000'

        Raises SettingError as `parse` does, and for a quantity that no such lengths can have.
        """
        changed = {name: _quantity(name, text, where) for name, text in changes.items()}
        if self.quantities or (self.points[0] == self.most and set(changed) - {"mean", "p50", "max"}):
            targets = {**(dict(self.quantities) or {"mean": self.mean}), **changed}
            return LengthDistribution(_fitted(targets, where), tuple(targets.items()))
        return LengthDistribution(_stretched(self.points, changed, where))


@lru_cache(maxsize=64)
def _longest_shares(points: int, count: float) -> Points:
    import numpy

    upto = (numpy.arange(points + 1) / points) ** count
    return numpy.asarray(numpy.diff(upto))


def _quantities(text: str, where: str) -> dict[str, float]:
    if "=" not in text:
        return {"tokens": _tokens("tokens", text, _number("tokens", text, where), where)}
    values = dict[str, float]()
    for part in text.split(","):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        if not sign:
            why = f"{part.strip()!r} needs a name: {', '.join(_QUANTITIES)}"
            raise SettingError.refused(where, "lengths", text, why)
        if name in values:
            raise SettingError.refused(where, "lengths", text, f"{name} is given twice")
        values[name] = _quantity(name, value, where)
    return values


def _quantity(name: str, text: str, where: str) -> float:
    if name == "sigma":
        spread = _number(name, text, where)
        if not 0 < spread <= MAX_SPREAD:
            raise SettingError.refused(where, name, text, f"a spread of logarithms is above 0, at most {MAX_SPREAD:g}")
        return spread
    if name not in _QUANTITIES and _share(name) is None:
        raise SettingError.unknown(where, "a distribution of lengths", name, _QUANTITIES)
    return _tokens(name, text, _number(name, text, where), where)


def _fitted(targets: Mapping[str, float], where: str) -> tuple[float, ...]:
    """Return the points of the lognormal with these quantities, cut at `max`; sigma is `SPREAD` by default."""
    import numpy

    shape = {name: value for name, value in targets.items() if name != "max"}
    if not set(shape) - {"sigma"}:
        raise SettingError.refused(where, "lengths", _text(targets), "add a mean or a p50")
    if len(shape) == 1:
        shape["sigma"] = SPREAD
    normal = NormalDist()
    deviates = numpy.asarray([normal.inv_cdf((place + 0.5) / POINTS) for place in range(POINTS)])
    return _solved(shape, targets, lambda sigma: numpy.exp(sigma * deviates), where)


def _stretched(points: tuple[float, ...], targets: Mapping[str, float], where: str) -> tuple[float, ...]:
    """Return points raised to a power and scaled to these quantities, cut at `max`; a spread keeps the mean."""
    import numpy

    array = numpy.asarray(points)
    shape = {name: value for name, value in targets.items() if name != "max"}
    limit = targets.get("max", float("inf"))
    if not shape:
        return tuple(numpy.minimum(array, limit).tolist())
    if len(shape) == 1 and set(shape) <= {"mean", "p50"}:
        return tuple(_scaled(array, *next(iter(shape.items())), limit).tolist())
    logs = numpy.log(numpy.maximum(array, 1.0))
    logs -= logs.mean()
    spread = float(logs.std()) or 1.0
    if not {"mean", "p50"} & set(shape):
        shape = {"mean": float(array.mean()), **shape}
    return _solved(shape, targets, lambda sigma: numpy.exp(sigma / spread * logs), where)


def _solved(
    shape: Mapping[str, float], targets: Mapping[str, float], family: Callable[[float], Points], where: str
) -> tuple[float, ...]:
    """Return the points of a family, with one member for each spread, that have the two quantities of `shape`."""
    text = _text(targets)
    if len(shape) > 2:
        raise SettingError.refused(where, "lengths", text, "two of these define a lognormal, and max cuts it")
    limit = targets.get("max", float("inf"))
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
    steps = 60
    spreads = [MAX_SPREAD * step / steps for step in range(steps + 1)]
    values = [measure(spread) for spread in spreads]
    for place in range(steps):
        if (values[place] - target) * (values[place + 1] - target) <= 0:
            return _halved(measure, target, spreads[place], spreads[place + 1])
    return min(zip(spreads, values, strict=True), key=lambda pair: abs(pair[1] - target))[0]


def _halved(measure: Callable[[float], float], target: float, low: float, high: float) -> float:
    rising = measure(high) >= measure(low)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if (measure(middle) < target) == rising else (low, middle)
    return (low + high) / 2


def _scaled(points: Points, name: str, target: float, limit: float) -> Points:
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
    return float(_quantile(points, _share(name) or 0.5))


def _quantile(points: Sequence[float] | Points, share: float) -> float:
    place = min(max(share * len(points) - 0.5, 0.0), len(points) - 1.0)
    below = int(place)
    above = min(below + 1, len(points) - 1)
    return points[below] + (place - below) * (points[above] - points[below])


def _share(name: str) -> float | None:
    try:
        share = float(name[1:]) / 100 if name[:1] == "p" else 0.0
    except ValueError:
        return None
    return share if 0 < share < 1 else None


def _tokens(name: str, text: str, tokens: float, where: str) -> float:
    if not MIN_TOKENS <= tokens <= MAX_TOKENS:
        raise SettingError.refused(where, name, text, f"lengths are {MIN_TOKENS} to {MAX_TOKENS:,} tokens")
    return tokens


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
