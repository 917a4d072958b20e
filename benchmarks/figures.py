"""The arithmetic of the benchmark: what a step costs, ratios, medians, and the tables that say them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Spread:
    """The middle of some figures, and how far they lie apart."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        """Summarise at least one figure.

        >>> Spread.of([3.0, 1.0, 2.0])
        Spread(median=2.0, least=1.0, most=3.0)
        """
        return cls(median(figures), min(figures), max(figures))

    def text(self, digits: int) -> str:
        """Write it as `median (least … most)`.

        >>> Spread(2.0, 1.0, 3.0).text(1)
        '2.0 (1.0 … 3.0)'
        """
        return f"{self.median:.{digits}f} ({self.least:.{digits}f} … {self.most:.{digits}f})"


def per_step(short: float, long: float, short_steps: int, long_steps: int) -> float:
    """Return the cost of one step from a short and a long run, so that what does not depend on steps drops out.

    >>> per_step(7.0, 27.0, 10, 110)
    0.2
    """
    return (long - short) / (long_steps - short_steps)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Divide ours by theirs, round by round: what slows the machine down for a while slows both.

    >>> ratios([1.0, 3.0], [2.0, 2.0])
    [0.5, 1.5]
    """
    return [our / their for our, their in zip(ours, theirs, strict=True)]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out cells in columns, the first to the left and the others to the right.

    >>> print(table(["way", "s"], [["TRL", "1.0"]]))
    way    s
    TRL  1.0
    """
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(_laid_out(line, widths)) for line in lines)


def _laid_out(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *others = zip(line, widths, strict=True)
    return [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]


def step_table(costs: Mapping[str, Sequence[float]], baseline: str) -> str:
    """Write the CPU seconds of a step of each way, by rounds, and their ratio to the baseline of the same round."""
    rows = [
        [way, Spread.of(figures).text(3), Spread.of(ratios(figures, costs[baseline])).text(2)]
        for way, figures in costs.items()
    ]
    return table(["", "CPU s a step", f"ratio to {baseline}"], rows)


def ray_table(steps: Mapping[str, Sequence[float]], starts: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Write wall seconds of a step under Ray beside those in process, the first row, and what starting took."""
    base = next(iter(steps.values()))
    rows = [
        [
            way,
            Spread.of(figures).text(3),
            Spread.of(ratios(figures, base)).text(2),
            *(Spread.of(starts[way][name]).text(1) if starts.get(way, {}).get(name) else "-" for name in STARTS),
        ]
        for way, figures in steps.items()
    ]
    return table(["", "seconds a step", "to in process", *STARTS.values()], rows)


STARTS = {"ray_init_s": "ray.init s", "actors_s": "actor start s"}
