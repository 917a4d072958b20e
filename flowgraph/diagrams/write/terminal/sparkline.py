"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
GAP = " "


def sparkline(values: Sequence[float | None], width: int = 24) -> str:
    """Return values as at most `width` block characters: a higher block is a higher value, a space is a gap.

    If there are more values than characters, each character is the mean of neighbouring values. None, infinities and
    NaN are gaps; a constant is a line at mid-height.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7])
    '▁▂▃▄▅▆▇█'
    >>> sparkline([5, 5, 5]), sparkline([1, float("nan"), 2]), sparkline([]), sparkline([None])
    ('▄▄▄', '▁ █', '', ' ')
    >>> sparkline(range(100), 4)
    '▁▃▆█'
    """
    count, parts = len(values), max(0, min(len(values), width))
    means = list[float | None]()
    for part in range(parts):
        run = values[count * part // parts : count * (part + 1) // parts]
        finite = [value / len(run) for value in run if value is not None and math.isfinite(value)]
        means.append(sum(finite) * (len(run) / len(finite)) if finite else None)
    drawable = [mean for mean in means if mean is not None]
    low, high = (min(drawable), max(drawable)) if drawable else (0.0, 0.0)
    spread = high / 2 - low / 2  # halves, so that the widest range of floats does not overflow
    heights = ((mean / 2 - low / 2) / spread if spread else 3 / len(BLOCKS) for mean in drawable)
    blocks = (BLOCKS[min(len(BLOCKS) - 1, int(height * len(BLOCKS)))] for height in heights)
    return "".join(GAP if mean is None else next(blocks) for mean in means)
