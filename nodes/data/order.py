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
    """Return a permutation of 0 … count - 1 that (seed, stream) determines: int64 [count], read-only and cached.

    It does not depend on numpy's version, because it sorts raw Philox words instead of using a shuffle.
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

    `extra[i]` is how many of the first i steps of a period read one more; a period has `len(extra)` - 1 steps.
    """

    whole: int
    extra: tuple[int, ...] = (0, 0)

    @property
    def most(self) -> int:
        """Return the largest number of rows that one step reads."""
        return self.whole + (self.extra[-1] > 0)

    def start(self, step: int) -> int:
        """Return the number of rows that all steps before `step` read together.

        >>> thirds = StepRows(1, (0, 0, 1, 1))
        >>> [thirds.start(step) for step in range(5)]
        [0, 1, 3, 4, 5]
        """
        periods, rest = divmod(step, len(self.extra) - 1)
        return step * self.whole + periods * self.extra[-1] + self.extra[rest]

    def batch_start(self, position: int) -> tuple[int, int]:
        """Return the position of the first row, and the number of rows, of the step that reads the row `position`."""
        steps = range((position + 1) * (1 if self.whole else len(self.extra)) + 1)
        step = bisect_right(steps, position, key=self.start) - 1
        return self.start(step), self.start(step + 1) - self.start(step)


def batch_indices(*, seed: int, step: int, batch: int | StepRows, count: int, stream: int = 0) -> Indices:
    """Return the indices of the rows that step `step` (from 0) reads: int64 [batch], all different.

    Each epoch is a new permutation of all `count` rows. A batch that reaches the end of an epoch continues into the
    next epoch; there it skips the rows that it already has, and the next batch starts with the skipped rows. `stream`
    selects other permutations; with a `StepRows`, the size of a batch varies from step to step. Raises DataError if the
    largest batch is more than `count` or less than 1.

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
    """Return the order in which an epoch reads all rows: a permutation of 0 … count - 1, int64 [count].

    The order differs from a plain permutation only for the batch that this epoch shares with the epoch before: no row
    comes twice in that batch.
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
