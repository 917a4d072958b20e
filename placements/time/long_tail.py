"""How a batch ends: seconds until the last of many sequences ends, as fewer and fewer run, on the slowest replica.

Not here: the seconds of one step (`decode`), and of a batch before its tail (`generation`).
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
    """Return the seconds until all of `rows` sequences end, which run at once and have `left` tokens to generate.

    No other sequence starts when one ends. `longest_tokens` is what the longest sequence of any replica has left.
    `step_s` returns the seconds of a step from the number of sequences and the tokens that they have generated.

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
    """Return by how many tokens the replica with the most exceeds the mean, where each is assigned `rows` rows.

    A sum of many lengths is nearly normal. Source: Blom 1958, for the largest of n normal deviates.

    >>> from placements.workload.lengths import LengthDistribution
    >>> mixed = LengthDistribution((100.0, 300.0))
    >>> uneven_tokens(LengthDistribution.fixed(100), 64, 8), round(uneven_tokens(mixed, 64, 8))
    (0.0, 1147)
    """
    if replicas < 2:
        return 0.0
    spread = sqrt(rows * max(0.0, lengths.square_mean - lengths.mean**2))
    return spread * NormalDist().inv_cdf((replicas - 0.375) / (replicas + 0.25))
