"""The order of prompts as a function of the step: an exact resume needs the step's number and nothing else."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flowgraph.errors import DataError

Indices = NDArray[np.int64]
_WORD = 2**64


@lru_cache(maxsize=4)
def permutation(seed: int, stream: int, count: int) -> Indices:
    """Shuffle 0 … count - 1, keyed by (seed, stream), and by nothing else. Read-only.

    Sorts raw Philox words: numpy keeps those the same over versions, which it does not promise of its shuffles.
    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".

    >>> permutation(0, 1, 5).tolist() == permutation(0, 1, 5).tolist() != permutation(0, 2, 5).tolist()
    True
    """
    key = np.array([seed % _WORD, stream % _WORD], dtype=np.uint64)
    order = np.argsort(np.random.Philox(key=key).random_raw(count), kind="stable").astype(np.int64)
    order.setflags(write=False)
    return order


def batch_indices(*, seed: int, step: int, batch: int, count: int) -> Indices:
    """Return the rows that step `step` (from 0) reads: int64 [batch], all different.

    Steps run through epoch after epoch, each a fresh permutation of all `count` rows, and no row is left out: a
    batch that reaches the end of an epoch goes on into the next. There it passes over the rows that it already
    holds, and the next batch begins with these.
    Raises DataError where batch > count or batch < 1.

    >>> epoch = [batch_indices(seed=0, step=step, batch=2, count=4).tolist() for step in (0, 1)]
    >>> sorted(epoch[0] + epoch[1])
    [0, 1, 2, 3]
    """
    if batch < 1:
        raise DataError.out_of_range("a step", "batch", batch, "1 or more")
    if batch > count:
        raise DataError.batch_exceeds_rows(batch, count)
    epoch, start = divmod(step * batch, count)
    rows = epoch_order(seed=seed, epoch=epoch, batch=batch, count=count)[start : start + batch]
    if len(rows) == batch:
        return rows.copy()
    following = epoch_order(seed=seed, epoch=epoch + 1, batch=batch, count=count)
    return np.concatenate([rows, following[: batch - len(rows)]])


def epoch_order(*, seed: int, epoch: int, batch: int, count: int) -> Indices:
    """Return the order in which one epoch reads its rows: a permutation, int64 [count].

    It depends on the epoch before only through the rows of the batch that the two share.
    """
    first = _first_needed(epoch, batch, count)
    order = permutation(seed, first, count)
    for each in range(first + 1, epoch + 1):
        shared = each * count % batch
        order = _passing_over(order[count - shared :], permutation(seed, each, count), batch - shared)
    return order


def _first_needed(epoch: int, batch: int, count: int) -> int:
    """Find an epoch before this one whose end is sure to be that of its plain permutation.

    Passing over moves rows only within the first `batch` places, and the end is shorter than `batch`. So with
    two batches in an epoch its end never moves; else go back to the last epoch that began with a batch of its own.
    """
    if count >= 2 * batch:
        return max(epoch - 1, 0)
    return epoch - epoch % (batch // int(np.gcd(batch, count)))


def _passing_over(held: Indices, fresh: Indices, places: int) -> Indices:
    """Move the rows in `held` out of the first `places` of `fresh`, to just behind them; keep all else in order."""
    if not len(held):
        return fresh
    head = np.flatnonzero(~np.isin(fresh, held))[:places]
    return np.concatenate([fresh[head], np.delete(fresh, head)])
