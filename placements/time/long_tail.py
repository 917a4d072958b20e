"""How a batch ends: seconds until the last of many sequences is done, as fewer and fewer run, on the slowest replica.

Not here: how long one step takes (`decode`), and how a batch gets there (`generation`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placements.workload.lengths import LengthDistribution

LEVELS = 24  # pieces in which a batch of any size shrinks to one


def drained_seconds(
    left: LengthDistribution, rows: float, longest_tokens: float, step_s: Callable[[float, float], float]
) -> float:
    """Return the seconds until all of `rows` sequences end, which run at once and have so many tokens `left` each.

    None starts in the place of one that ends. `longest_tokens` is what the longest has left, of these or of another
    replica's. `step_s` gives the seconds of a step by how many sequences run, and how many tokens they have drawn.

    >>> from placements.workload.lengths import LengthDistribution
    >>> drained_seconds(LengthDistribution((100.0, 300.0)), 2, 300.0, lambda rows, drawn: 1.0)
    300.0
    """
    drawn = min(longest_tokens, left.quantile(0.0))
    total_s, running = drawn * step_s(rows, drawn / 2), float(rows)
    for level in range(1, LEVELS + 1):
        after = rows ** (1 - level / LEVELS)
        until = min(longest_tokens, left.quantile(1 - after / rows))
        total_s += (until - drawn) * step_s((running * after) ** 0.5, (drawn + until) / 2)
        running, drawn = after, until
    return total_s + (longest_tokens - drawn) * step_s(1.0, (drawn + longest_tokens) / 2)


def uneven_tokens(lengths: LengthDistribution, rows: int, replicas: int) -> float:
    """Return by how many tokens the replica with the most exceeds the mean, where each has so many rows dealt to it.

    A sum of many lengths is about normal. Source: Blom 1958, for the largest of n normal deviates.

    >>> from placements.workload.lengths import LengthDistribution
    >>> mixed = LengthDistribution((100.0, 300.0))
    >>> uneven_tokens(LengthDistribution.fixed(100), 64, 8), round(uneven_tokens(mixed, 64, 8))
    (0.0, 1147)
    """
    if replicas < 2:
        return 0.0
    spread = sqrt(rows * max(0.0, lengths.square_mean - lengths.mean**2))
    return spread * NormalDist().inv_cdf((replicas - 0.375) / (replicas + 0.25))
