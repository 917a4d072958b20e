"""The order of prompts as a function of the step, so that an exact resume needs only the step's number."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flowgraph.errors import DataError

Indices = NDArray[np.int64]
_WORD = 2**64


@lru_cache(maxsize=32)  # two epochs of each of a few sets
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


PERIOD = 1024
"""The steps after which fractional rows of a step repeat; a share is exact to a `PERIOD`-th of a row in a step."""


@dataclass(frozen=True)
class StepRows:
    """The number of rows of a data set that each step reads: `whole`, and one more in some steps of each period.

    `extra[i]` is the number of those steps among the first i of a period.
    """

    whole: int
    extra: tuple[int, ...] = (0, 0)

    @property
    def most(self) -> int:
        """Return the most rows that one step reads."""
        return self.whole + (self.extra[-1] > 0)

    def start(self, step: int) -> int:
        """Return the number of rows that are read before a step.

        >>> thirds = StepRows(1, (0, 0, 1, 1))
        >>> [thirds.start(step) for step in range(5)]
        [0, 1, 3, 4, 5]
        """
        periods, rest = divmod(step, len(self.extra) - 1)
        return step * self.whole + periods * self.extra[-1] + self.extra[rest]

    def batch_start(self, position: int) -> tuple[int, int]:
        """Return the first position and the number of rows of the step that reads `position`."""
        steps = range((position + 1) * (1 if self.whole else len(self.extra)) + 1)
        step = bisect_right(steps, position, key=self.start) - 1
        return self.start(step), self.start(step + 1) - self.start(step)


def batch_indices(*, seed: int, step: int, batch: int | StepRows, count: int, stream: int = 0) -> Indices:
    """Return the rows that step `step` (from 0) reads: int64 [batch], all different.

    Each epoch is a new permutation of all `count` rows. A batch that reaches the end of an epoch continues into the
    next one; there it skips the rows that it already has, and the next batch starts with these. `stream` selects other
    permutations; a `StepRows` varies from step to step. Raises DataError if batch > count or batch < 1.

    >>> epoch = [batch_indices(seed=0, step=step, batch=2, count=4).tolist() for step in (0, 1)]
    >>> sorted(epoch[0] + epoch[1])
    [0, 1, 2, 3]
    """
    rows_of = batch if isinstance(batch, StepRows) else StepRows(batch)
    if rows_of.most < 1:
        raise DataError.out_of_range("a step", "batch", rows_of.most, "1 or more")
    if rows_of.most > count:
        raise DataError.batch_exceeds_rows(rows_of.most, count)
    first = rows_of.start(step)
    size = rows_of.start(step + 1) - first
    epoch, start = divmod(first, count)
    rows = epoch_order(seed=seed, epoch=epoch, batch=rows_of, count=count, stream=stream)[start : start + size]
    if len(rows) == size:
        return rows.copy()
    following = epoch_order(seed=seed, epoch=epoch + 1, batch=rows_of, count=count, stream=stream)
    return np.concatenate([rows, following[: size - len(rows)]])


def epoch_order(*, seed: int, epoch: int, batch: int | StepRows, count: int, stream: int = 0) -> Indices:
    """Return the order in which an epoch reads its rows: a permutation, int64 [count].

    It depends on the epoch before only through the rows of the batch that both share.
    """
    rows_of = batch if isinstance(batch, StepRows) else StepRows(batch)
    # Start at an earlier epoch whose last rows are those of its plain permutation. Skipping moves rows only within the
    # first `most` positions, and an epoch shares fewer than `most` of its last rows. So these never move in an epoch
    # of twice as many rows or more; else take the last epoch that began with a new batch.
    first = max(epoch - 1, 0)
    if count < 2 * rows_of.most:
        first = epoch
        while first and rows_of.batch_start(first * count)[0] != first * count:
            first -= 1
    order = permutation(seed, stream + first, count)
    for later in range(first + 1, epoch + 1):
        start, size = rows_of.batch_start(later * count)
        shared = later * count - start
        before, order = order[count - shared :], permutation(seed, stream + later, count)
        if shared:  # these rows move out of the rest of the shared batch, to just after it
            head = np.flatnonzero(~np.isin(order, before))[: size - shared]
            order = np.concatenate([order[head], np.delete(order, head)])
    return order
