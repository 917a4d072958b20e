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
    means = [_mean(values[start:stop]) for start, stop in _cuts(len(values), width)]
    known = [mean for mean in means if mean is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    return "".join(GAP if mean is None else _block(mean, low, high) for mean in means)


def _cuts(count: int, width: int) -> list[tuple[int, int]]:
    """Cut `count` places into at most `width` runs, as even as they divide."""
    parts = max(0, min(count, width))
    return [(count * part // parts, count * (part + 1) // parts) for part in range(parts)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value / len(values) for value in values if value is not None and math.isfinite(value)]
    return sum(known) * (len(values) / len(known)) if known else None


def _block(value: float, low: float, high: float) -> str:
    spread = high / 2 - low / 2  # halves, so that the widest range of floats is none too wide
    if not spread:
        return BLOCKS[3]
    return BLOCKS[min(len(BLOCKS) - 1, int((value / 2 - low / 2) / spread * len(BLOCKS)))]
