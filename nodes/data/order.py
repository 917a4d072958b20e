"""The order of prompts as a function of the step, so that an exact resume needs only the step's number."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flowgraph.errors import DataError

Indices = NDArray[np.int64]
_WORD = 2**64


@lru_cache(maxsize=4)
def permutation(seed: int, stream: int, count: int) -> Indices:
    """Return a permutation of 0 … count - 1, determined by (seed, stream) and read-only.

    It sorts raw Philox words, which are the same in all versions of numpy; shuffles may differ between versions.
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

    Each epoch is a new permutation of all `count` rows. A batch that reaches the end of an epoch continues into the
    next one; there it skips the rows that it already has, and the next batch starts with these.
    Raises DataError if batch > count or batch < 1.

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
    """Return the order in which an epoch reads its rows: a permutation, int64 [count].

    It depends on the epoch before only through the rows of the batch that both share.
    """
    # Start at an earlier epoch whose last rows are those of its plain permutation. Skipping moves rows only within the
    # first `batch` positions, and an epoch shares fewer than `batch` of its last rows. So these never move in an epoch
    # of two batches or more; else take the last epoch that began with a new batch.
    first = max(epoch - 1, 0) if count >= 2 * batch else epoch - epoch % (batch // int(np.gcd(batch, count)))
    order = permutation(seed, first, count)
    for later in range(first + 1, epoch + 1):
        shared = later * count % batch
        before, order = order[count - shared :], permutation(seed, later, count)
        if shared:  # these rows move out of the rest of the shared batch, to just after it
            head = np.flatnonzero(~np.isin(order, before))[: batch - shared]
            order = np.concatenate([order[head], np.delete(order, head)])
    return order
