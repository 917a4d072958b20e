"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
GAP = " "


def sparkline(values: Sequence[float | None], width: int = 24) -> str:
    """Draw values as blocks, lowest to highest, in at most `width` characters; a missing value is a gap.

    More values than characters are averaged. Infinities and NaN count as missing; a constant is a line at mid-height.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7])
    '▁▂▃▄▅▆▇█'
    >>> sparkline([5, 5, 5]), sparkline([1, float("nan"), 2]), sparkline([]), sparkline([None])
    ('▄▄▄', '▁ █', '', ' ')
    >>> sparkline(range(100), 4)
    '▁▃▆█'
    """
    count, parts = len(values), max(0, min(len(values), width))
    means = [_mean(values[count * part // parts : count * (part + 1) // parts]) for part in range(parts)]
    finite = [mean for mean in means if mean is not None]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    return "".join(GAP if mean is None else _block(mean, low, high) for mean in means)


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value / len(values) for value in values if value is not None and math.isfinite(value)]
    return sum(finite) * (len(values) / len(finite)) if finite else None


def _block(value: float, low: float, high: float) -> str:
    spread = high / 2 - low / 2  # halves, so that the widest range of floats does not overflow
    if not spread:
        return BLOCKS[3]
    return BLOCKS[min(len(BLOCKS) - 1, int((value / 2 - low / 2) / spread * len(BLOCKS)))]
