"""How long prompts and responses are: a distribution of lengths in tokens, from a text, a column, or one number.

Not here: how long it takes to read or to generate them (`time.generation`), and fitting a text's quantities
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
    """Equally likely lengths in tokens, ascending: all properties are of exactly these points.

    `quantities` are those of the text that it was read from, if it was.

    >>> mixed = LengthDistribution((100.0, 300.0))
    >>> LengthDistribution.fixed(512).mean, mixed.mean, mixed.square_mean
    (512.0, 200.0, 50000.0)
    """

    points: tuple[float, ...]
    quantities: tuple[tuple[str, float], ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def fixed(cls, tokens: float) -> LengthDistribution:
        """Return lengths that are all the same."""
        return cls((float(tokens),))

    @classmethod
    def parse(cls, text: str, where: str = "lengths") -> LengthDistribution:
        """Read `1024`, or a lognormal by two of mean, percentiles and sigma, cut at `max`: `mean=2k,p99=16k,max=20k`.

        `k` is a thousand and `m` a million. The quantities are those of the lengths after the cut. One quantity alone
        comes with a sigma of 0.7.

        >>> LengthDistribution.parse("2k").points, str(LengthDistribution.parse("mean=2k,p99=16k,max=20k"))
        ((2000.0,), 'mean=2000,p99=16000,max=20000')

        Raises SettingError for any other text.
        """
        wanted = quantities(text, where)
        return cls.fixed(wanted["tokens"]) if "tokens" in wanted else cls(fitted(wanted, where), tuple(wanted.items()))

    @classmethod
    def of_column(cls, values: Any, where: str = "lengths") -> LengthDistribution:
        """Return the lengths of a column: whole numbers, or lists of token ids; missing ones are left out.

        `values` is an array or a column of pyarrow, or what pyarrow.array takes. If there are more rows than points,
        neighbours are merged at their mean.

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
        lengths = numpy.sort(numpy.asarray(column.drop_null().to_pylist(), dtype=float))
        if not len(lengths) or lengths[0] < 0 or not lengths[-1]:
            raise SettingError.refused(where, "column", f"{len(lengths)} rows", "it has no lengths above 0")
        refuse_lengths("column", f"{lengths[-1]:,.0f}", float(lengths[-1]), where)
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
        """Return the mean of the squared length."""
        return float((self._array**2).mean())

    @cached_property
    def _array(self) -> NDArray[float64]:
        import numpy

        return numpy.asarray(self.points)

    @property
    def age(self) -> float:
        """Return the mean tokens so far of a response at a random moment of its generation: long ones weigh more."""
        return self.square_mean / self.mean / 2

    @property
    def most(self) -> float:
        """Return the longest length in tokens."""
        return self.points[-1]

    def quantile(self, share: float) -> float:
        """Return the length that `share` of all do not exceed, interpolated between the middles of points.

        >>> [LengthDistribution((100.0, 200.0, 300.0)).quantile(share) for share in (0.0, 0.5, 1.0)]
        [100.0, 200.0, 300.0]
        """
        place = min(max(share * len(self.points) - 0.5, 0.0), len(self.points) - 1.0)
        below = int(place)
        above = min(below + 1, len(self.points) - 1)
        return self.points[below] + (place - below) * (self.points[above] - self.points[below])

    def longest_of(self, count: float) -> float:
        """Return the mean of the longest of `count` independent lengths.

        >>> LengthDistribution((100.0, 300.0)).longest_of(1), LengthDistribution((100.0, 300.0)).longest_of(2)
        (200.0, 250.0)
        """
        import numpy

        return float(numpy.dot(self._array, _longest_shares(len(self.points), max(1.0, count))))

    @cached_property
    def remaining(self) -> LengthDistribution:
        """Return the tokens that responses in generation at a random moment still lack.

        Long ones are met more often: the chance to lack more than x is the mean of what is above x, over the mean.
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

    def cut(self, max_tokens: float) -> LengthDistribution:
        """Return the lengths cut at a maximum of tokens."""
        return LengthDistribution(tuple(min(point, max_tokens) for point in self.points))

    def with_changes(self, changes: Mapping[str, str], where: str = "lengths") -> LengthDistribution:
        """Return the lengths with other quantities, such as {"p99": "16k"}.

        Lengths that were read from a text are fitted anew with its other quantities. Those of a column are scaled to a
        new mean or median, and stretched to a new percentile or sigma at the same mean: each length is raised to a
        power, which makes a lognormal of a lognormal. `max` cuts them last. Of equal lengths the mean stays.

        >>> str(LengthDistribution.parse("mean=2k,p99=16k,max=20k").with_changes({"p99": "12k"}))
        'mean=2000,p99=12000,max=20000'
        >>> str(LengthDistribution.of_column([1000, 2000, 3000]).with_changes({"mean": "4k"}))
        'mean=4000,p99=6000,max=6000'

        Raises SettingError as `parse` does, and for a quantity that no such lengths can have.
        """
        changed = {name: quantity(name, text, where) for name, text in changes.items()}
        if self.quantities or (self.points[0] == self.most and set(changed) - {"mean", "p50", "max"}):
            wanted = {**(dict(self.quantities) or {"mean": self.mean}), **changed}
            return LengthDistribution(fitted(wanted, where), tuple(wanted.items()))
        return LengthDistribution(stretched(self.points, changed, where))


@lru_cache(maxsize=64)
def _longest_shares(points: int, count: float) -> NDArray[float64]:
    """Return the probability [points] of each point to be the longest of `count` samples."""
    import numpy

    upto = (numpy.arange(points + 1) / points) ** count
    return numpy.asarray(numpy.diff(upto))
