"""How long prompts and responses are: a distribution of lengths in tokens, from a text, a column, or one number.

Not here: how long it takes to read or to draw them (`time.generation`), and fitting a text's quantities
(`length_fits`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from flowgraph.errors import SettingError
from placements.workload.length_fits import POINTS, fitted, quantities, quantity, refuse_lengths, stretched

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray


@dataclass(frozen=True)
class LengthDistribution:
    """Equally likely lengths in tokens, ascending: all properties and draws are of exactly these points.

    `said` are the quantities of the text that it was read from, if it was.

    >>> mixed = LengthDistribution((100.0, 300.0))
    >>> LengthDistribution.fixed(512).mean, mixed.mean, mixed.square_mean
    (512.0, 200.0, 50000.0)
    """

    points: tuple[float, ...]
    said: tuple[tuple[str, float], ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def fixed(cls, tokens: float) -> LengthDistribution:
        """Return lengths that are all the same."""
        return cls((float(tokens),))

    @classmethod
    def parse(cls, text: str, where: str = "lengths") -> LengthDistribution:
        """Read `1024`, or a lognormal by two of mean, percentiles and sigma, cut at `max`: `mean=2k,p99=16k,max=20k`.

        `k` is a thousand and `m` a million. What is said holds of the lengths as they are cut. One quantity alone has a
        sigma of 0.7 beside it.

        >>> LengthDistribution.parse("2k").points, str(LengthDistribution.parse("mean=2k,p99=16k,max=20k"))
        ((2000.0,), 'mean=2000,p99=16000,max=20000')

        Raises SettingError if the text is no number and names no such lengths.
        """
        asked = quantities(text, where)
        return cls.fixed(asked["tokens"]) if "tokens" in asked else cls(fitted(asked, where), tuple(asked.items()))

    @classmethod
    def of_column(cls, values: Any, where: str = "lengths") -> LengthDistribution:
        """Read the lengths of a column: whole numbers, or lists of token ids; missing ones are left out.

        `values` is an array or a column of pyarrow, or what pyarrow.array takes. Of more rows than points, neighbours
        are put together at their mean.

        >>> LengthDistribution.of_column([[7, 8, 9], [7], None]).points, LengthDistribution.of_column([5, 3]).points
        ((1.0, 3.0), (3.0, 5.0))

        Raises SettingError if there is nothing to count.
        """
        import numpy
        import pyarrow
        from pyarrow import types

        column = values.combine_chunks() if isinstance(values, pyarrow.ChunkedArray) else pyarrow.array(values)
        if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
            column = column.value_lengths()
        if not types.is_integer(column.type):
            raise SettingError.refused(where, "column", str(column.type), "it has neither whole numbers nor lists")
        known = numpy.sort(numpy.asarray(column.drop_null().to_pylist(), dtype=float))
        if not len(known) or known[0] < 0 or not known[-1]:
            raise SettingError.refused(where, "column", f"{len(known)} rows", "it has no lengths above 0")
        refuse_lengths("column", f"{known[-1]:,.0f}", float(known[-1]), where)
        parts = numpy.array_split(known, min(POINTS, len(known)))
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
        """Return the mean of the squared length."""
        return float((self._array**2).mean())

    @cached_property
    def _array(self) -> NDArray[float64]:
        import numpy

        return numpy.asarray(self.points)

    @property
    def age(self) -> float:
        """Return the mean tokens drawn so far of a response that is met under way: long ones are met more often."""
        return self.square_mean / self.mean / 2

    @property
    def most(self) -> float:
        """Return the longest length in tokens."""
        return self.points[-1]

    def quantile(self, share: float) -> float:
        """Return the length that `share` of all do not exceed, on the line between the middles of two points.

        >>> [LengthDistribution((100.0, 200.0, 300.0)).quantile(share) for share in (0.0, 0.5, 1.0)]
        [100.0, 200.0, 300.0]
        """
        place = min(max(share * len(self.points) - 0.5, 0.0), len(self.points) - 1.0)
        below = int(place)
        above = min(below + 1, len(self.points) - 1)
        return self.points[below] + (place - below) * (self.points[above] - self.points[below])

    def longest_of(self, count: float) -> float:
        """Return the mean of the longest of `count` independent draws: each point times its chance to be the longest.

        >>> LengthDistribution((100.0, 300.0)).longest_of(1), LengthDistribution((100.0, 300.0)).longest_of(2)
        (200.0, 250.0)
        """
        import numpy

        return float(numpy.dot(self._array, _longest_shares(len(self.points), max(1.0, count))))

    @cached_property
    def remaining(self) -> LengthDistribution:
        """Return what those that are being drawn at a random moment still have to go.

        Long ones are met more often: the chance of more than x to go is the mean of what is above x, over the mean.
        Source: the residual life of a renewal process, Cox 1962, Renewal Theory, chapter 5.

        >>> LengthDistribution.fixed(100).remaining.mean, round(LengthDistribution((100.0, 300.0)).remaining.mean)
        (50.0, 125)
        """
        import numpy

        points = numpy.concatenate(([0.0], self._array))
        alive = 1 - numpy.arange(len(self.points)) / len(self.points)
        gone = numpy.concatenate(([0.0], numpy.cumsum(numpy.diff(points) * alive))) / self.mean
        middles = (numpy.arange(POINTS) + 0.5) / POINTS
        return LengthDistribution(tuple(numpy.interp(middles, gone, points).tolist()))

    def cut(self, most_tokens: float) -> LengthDistribution:
        """Return the lengths where none exceeds so many tokens."""
        return LengthDistribution(tuple(min(point, most_tokens) for point in self.points))

    def with_changes(self, changes: Mapping[str, str], where: str = "lengths") -> LengthDistribution:
        """Return the lengths that other quantities would make, as {"p99": "16k"}.

        Lengths that were read from a text are fitted anew, the rest of it as said. Those of a column are scaled to a
        new mean or median, and stretched to a new percentile or sigma at the same mean: each length to some power,
        which makes of a lognormal a lognormal. `max` cuts them last. Of lengths that were all the same, the mean stays.

        >>> str(LengthDistribution.parse("mean=2k,p99=16k,max=20k").with_changes({"p99": "12k"}))
        'mean=2000,p99=12000,max=20000'
        >>> str(LengthDistribution.of_column([1000, 2000, 3000]).with_changes({"mean": "4k"}))
        'mean=4000,p99=6000,max=6000'

        Raises SettingError as `parse` does, and for a quantity that no such lengths have.
        """
        asked = {name: quantity(name, text, where) for name, text in changes.items()}
        if self.said or (self.points[0] == self.most and set(asked) - {"mean", "p50", "max"}):
            said = {**(dict(self.said) or {"mean": self.mean}), **asked}
            return LengthDistribution(fitted(said, where), tuple(said.items()))
        return LengthDistribution(stretched(self.points, asked, where))


@lru_cache(maxsize=64)
def _longest_shares(points: int, count: float) -> NDArray[float64]:
    """Return the chance of each of so many points to be the longest of `count` draws."""
    import numpy

    upto = (numpy.arange(points + 1) / points) ** count
    return numpy.asarray(numpy.diff(upto))
