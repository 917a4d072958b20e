"""Rollouts that continue across steps: how many batches an engine generates at a time, and what each sync costs it.

Rows are admitted as AReaL does it: with a staleness of k, those that run or wait are at most k batches beside the one
that is trained on. Admitted at each update, a row is under way for its own latency. As many rows end as begin, so that
of rows of a mean latency L, beside a trainer that is busy for T of each period P, (L + T) / P = k + 1/2, and L / P
batches are in flight: between k - 1/2 (the trainer always busy) and k + 1/2 (never). A staleness is spent on this and
on syncs that come rarer: after each sync the caches of all that is in flight are computed again.
Source: Fu et al. 2025 (AReaL), arXiv 2505.24298, sections 4.1 and 5.1; Little 1961; the sum over updates of the rows
that are still under way, by the trapezoidal rule. The simulation in the tests is within a fifth of it.

Not here: the seconds of a batch (`generation`), and of a sync itself (`transitions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING

from placements.time.decode import ServingReplica, prefill_seconds

if TYPE_CHECKING:
    from placements.workload.lengths import LengthDistribution

MOST_ADMITTED = 16  # batches: more of them only age, and a staleness beyond is spent on rarer syncs
GRAINS = 8  # into which a batch is cut when it is asked how many are in flight


@dataclass(frozen=True)
class InFlight:
    """Batches that are generated at a time, of `admitted` ones, and updates from one weight sync to the next."""

    batches: float = 1.0
    admitted: int = 1
    sync_every: int = 1

    def period_s(self, training_s: float) -> float:
        """Return the least seconds of a step that leave so many batches in flight, beside so many of training.

        >>> InFlight(0.5, 1).period_s(30.0), InFlight(1.0, 1).period_s(30.0), InFlight(1.5, 1).period_s(0.0)
        (30.0, 60.0, 0.0)
        """
        left = self.admitted + 0.5 - self.batches
        return training_s / left if left > 0 else inf if training_s else 0.0


def ways_in_flight(lag: int, *, streamed: bool, ahead: int = 1) -> tuple[InFlight, ...]:
    """Return the ways to spend a staleness of `lag` updates, the fewest batches first.

    Generation is `ahead` steps of updates already. Only rollouts that are `streamed` have several batches in flight.

    >>> found = ways_in_flight(2, streamed=True)
    >>> [(each.batches, each.sync_every) for each in found if each.batches in (0.5, 1.0, 1.5, 2.5)]
    [(0.5, 2), (1.0, 2), (1.5, 2), (1.5, 1), (2.5, 1)]
    >>> ways_in_flight(3, streamed=False)
    (InFlight(batches=1.0, admitted=1, sync_every=3),)
    """
    left = max(1, lag - ahead + 1)
    if not streamed:
        return (InFlight(sync_every=left),)
    return tuple(
        InFlight(admitted - 0.5 + grain / GRAINS, admitted, left - admitted + 1)
        for admitted in range(1, min(left, MOST_ADMITTED) + 1)
        for grain in range(GRAINS + 1)
    )


def resumed_seconds(
    replica: ServingReplica,
    rows: float,
    prompt: LengthDistribution,
    response: LengthDistribution,
    *,
    cache_tokens: float,
    shared_prompts: int = 1,
) -> float:
    """Return the seconds in which a replica computes the caches of what is in flight again.

    Of `rows` sequences as many are in flight as the replica's `cache_tokens` have place for. Each has its prompt, which
    `shared_prompts` have in common, and the tokens that a response has when it is met under way.
    """
    read, drawn = prompt.mean / shared_prompts, response.remaining  # as much is drawn, on average, as remains
    constants = replica.constants
    running = max(1.0, min(ceil(rows), cache_tokens / (read + response.age), constants.most_rows))
    squares = read**2 + 2 * read * response.age + drawn.square_mean
    return running * (prefill_seconds(replica, read + response.age, squares) + constants.request_s)
