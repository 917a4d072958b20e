"""Rollouts that continue across steps: how many batches an engine generates at a time, and what each sync costs it.

**In flight**, as a run does it: rows of a step are sent when the weights of its schedule have come, d updates before
their own, and their update waits for the longest of them. So a longest response, which takes r times as long as a mean
one, and the training of T seconds after it have d + 1 periods P. With b batches in flight a mean response takes b P, so
r b P + T <= (d + 1) P: between d / r (the trainer is always busy) and (d + 1) / r batches (never) are in flight.
Source: Little 1961; ADR 34 for the order. The simulation in the tests is within a tenth of it.

**Ready**, as other systems do it: rows are admitted as in AReaL, and a step takes those that have finished. With a
staleness of k, at most k batches run or wait in addition to the one that is trained on. Rows are admitted at each
update; each is in flight for its own latency. As many rows end as begin. With a mean latency of L, and a trainer that
is busy for T of each period P, (L + T) / P = k + 1/2, and L / P batches are in flight: between k - 1/2 (the trainer is
always busy) and k + 1/2 (never). Staleness buys batches in flight or rarer syncs: after each sync the caches of all
rows in flight are computed again.
Source: Fu et al. 2025 (AReaL), arXiv 2505.24298, sections 4.1 and 5.1; Little 1961; the sum over updates of the rows
that are still in flight, by the trapezoidal rule. The simulation in the tests is within a fifth of it.

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
GRAINS = 8  # parts of a batch in which the batches in flight are counted


@dataclass(frozen=True)
class InFlight:
    """How rollouts use staleness: `batches` are generated at a time, and weights are synced every `sync_every` updates.

    Up to `admitted` batches run or wait in addition to the one that is trained on; this one still runs for the share
    `own` of a period. A step waits for a response that takes `stretch` times as long as a mean one.
    """

    batches: float = 1.0
    admitted: int = 1
    sync_every: int = 1
    own: float = 0.5
    stretch: float = 1.0

    def period_s(self, training_s: float) -> float:
        """Return the minimum seconds of a step with these batches in flight; its training takes `training_s` seconds.

        The result is infinity if the batches leave no time for training, and 0 if training takes none. Source: that of
        the module.

        >>> InFlight(0.5, 1).period_s(30.0), InFlight(1.0, 1).period_s(30.0), InFlight(1.5, 1).period_s(0.0)
        (30.0, 60.0, 0.0)
        """
        left = self.admitted + self.own - self.stretch * self.batches
        return training_s / left if left > 0 else inf if training_s else 0.0


def ways_across_syncs(ahead: int, sync_every: int, stretch: float) -> tuple[InFlight, ...]:
    """Return nine choices of how many batches to generate at a time, fewest first, if responses go on across syncs.

    Sampling works `ahead` steps ahead of training, weights are synced every `sync_every` steps, and a longest response
    takes `stretch` times as long as a mean one. With the fewest batches, `ahead / stretch`, the trainer may always be
    busy; the most, `(ahead + 1) / stretch`, leave no time to train. Source: that of the module.

    >>> [(way.batches, way.period_s(30.0)) for way in ways_across_syncs(1, 1, 4.0)][::4]
    [(0.25, 30.0), (0.375, 60.0), (0.5, inf)]
    """
    return tuple(
        InFlight(
            batches=(ahead + grain / GRAINS) / stretch, admitted=ahead, sync_every=sync_every, own=1.0, stretch=stretch
        )
        for grain in range(GRAINS + 1)
    )


def ways_in_flight(lag: int, *, streamed: bool, ahead: int = 1) -> tuple[InFlight, ...]:
    """Return the ways in which rollouts can use a staleness of `lag` updates, fewest batches in flight first.

    Generation already runs `ahead` steps ahead of training, which leaves `lag - ahead + 1` updates to use, at least 1.
    `streamed` rollouts, those under the contract `ready`, divide these between several batches in flight (up to 16 are
    admitted) and rarer syncs; others use all of them for rarer syncs.

    >>> ways = ways_in_flight(2, streamed=True)
    >>> [(way.batches, way.sync_every) for way in ways if way.batches in (0.5, 1.0, 1.5, 2.5)]
    [(0.5, 2), (1.0, 2), (1.5, 2), (1.5, 1), (2.5, 1)]
    >>> [way.sync_every for way in ways_in_flight(3, streamed=False)]
    [3]
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
    """Return the seconds in which a replica recomputes the caches of its responses in flight after a weight sync.

    Of `rows` responses, as many are in flight as fit in a cache of `cache_tokens` tokens, but at least one and at most
    the engine's maximum. Each has the mean tokens of a response in progress, and a prompt that `shared_prompts`
    responses share. Raises ValueError if the devices' peak is unknown.
    """
    read, distribution = prompt.mean / shared_prompts, response.remaining  # on average, as much is generated as remains
    constants = replica.constants
    running = max(1.0, min(ceil(rows), cache_tokens / (read + response.age), constants.most_rows))
    squares = read**2 + 2 * read * response.age + distribution.square_mean
    return running * (prefill_seconds(replica, read + response.age, squares) + constants.request_s)
