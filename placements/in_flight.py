"""Rollouts that continue across steps: how many batches an engine generates at a time, and what each sync costs it.

A staleness is spent on two things. Each batch in flight beside the first is trained on one update later, and so is each
update for which weights are not synced. More batches fill the places of an engine, as far as it has any; rarer syncs
save the seconds of a sync, after which the caches of all that is in flight are computed again.
Source: admission in AReaL, Fu et al. 2025, arXiv 2505.24298, section 5.1: with a staleness of k, rows that run or wait
are at most k batches beside the one that is trained on; section 4.1 for caches that new weights make void.

Not here: the seconds of a batch (`generation`), and of a sync itself (`transitions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from placements.decode import Replica, prefill_seconds

if TYPE_CHECKING:
    from placements.lengths import Lengths


@dataclass(frozen=True)
class InFlight:
    """Batches that are generated at a time, and updates from one weight sync to the next."""

    batches: int = 1
    sync_every: int = 1


def ways_in_flight(lag: int, *, streamed: bool, ahead: int = 1) -> tuple[InFlight, ...]:
    """Return the ways to spend a staleness of `lag` updates, the fewest batches first.

    Generation is `ahead` steps of updates already. Only rollouts that are `streamed` have several batches in flight.

    >>> [(each.batches, each.sync_every) for each in ways_in_flight(3, streamed=True)]
    [(1, 3), (2, 2), (3, 1)]
    >>> ways_in_flight(3, streamed=False)
    (InFlight(batches=1, sync_every=3),)
    """
    left = max(1, lag - ahead + 1)
    most = left if streamed else 1
    return tuple(InFlight(batches, left - batches + 1) for batches in range(1, most + 1))


def resumed_seconds(
    replica: Replica, rows: float, prompt: Lengths, response: Lengths, *, cache_tokens: float, shared_prompts: int = 1
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
