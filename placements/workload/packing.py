"""How full micro-batches are, since no row is cut: the share of their budget that whole rows fill.

Not here: how rows are dealt out to ranks when they are trained on, and the seconds of a pass (`time.training`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placements.workload.lengths import LengthDistribution

ROWS = 64
"""How many rows stand for all: 256 would fill 1 to 2 % more."""


def rows_tokens(prompt: LengthDistribution, response: LengthDistribution, rows: int) -> list[float]:
    """Return the tokens of at most `ROWS` rows that stand for so many, the longest first."""
    count = max(1, min(rows, ROWS))
    return [prompt.mean + response.quantile((count - place - 0.5) / count) for place in range(count)]


def filled_share(rows: Sequence[float], budget_tokens: float) -> float:
    """Return the share of the budgets that rows fill, each put into the first micro-batch that has room for it.

    The rows come longest first. One that exceeds a budget has a micro-batch of its own. The emptiest micro-batch does
    not count: these rows stand for more, which would fill it. Source: Johnson 1973, first fit decreasing.

    >>> filled_share([6.0, 5.0, 4.0, 3.0], 9.0), filled_share([6.0, 6.0], 9.0), filled_share([1.0], 9.0)
    (1.0, 0.6666666666666666, 1.0)
    """
    room = list[float]()
    for tokens in rows:
        place = next((place for place, left in enumerate(room) if left >= tokens), None)
        if place is None:
            room.append(budget_tokens - tokens)
        else:
            room[place] -= tokens
    if len(room) < 2:
        return 1.0
    filled = sum(rows) - (budget_tokens - max(room))
    return min(1.0, filled / ((len(room) - 1) * budget_tokens))
