"""Rows of a data set as the prompts of a flow: a step's rows are a pure function of seed and step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from nodes.data.order import Indices, StepRows, batch_indices, permutation
from nodes.values import Columns, Prompts

_STREAMS = 2**40
"""The streams of permutations of one data set: more than a run has epochs. Those below 0 order the rows of a step."""


@dataclass(frozen=True)
class PromptSource:
    """A source of `rows_per_step` prompts of `table` for each step, in an order that `seed` and the step determine.

    `mixed` has, for each set with a share, its number of rows and the rows that a step reads, in the order of `table`.
    """

    table: Any
    rows_per_step: int
    seed: int = 0
    mixed: tuple[tuple[int, StepRows], ...] = ()

    def batch(self, step: int) -> Prompts:
        """Return the prompts of step `step` (from 0), in the order of `rows`. Raises DataError as `rows` does."""
        return prompts_at(self.table, self.rows(step).tolist())

    def rows(self, step: int) -> Indices:
        """Return the indices in `table` of the rows of step `step` (from 0): int64 [rows_per_step], all different.

        Raises DataError if a step reads more rows than the table, or a set, has.
        """
        if not self.mixed:
            count = self.table.num_rows
            return batch_indices(seed=self.seed, step=step, batch=self.rows_per_step, count=count)
        firsts = accumulate((count for count, _ in self.mixed), initial=0)
        parts = [
            first + batch_indices(seed=self.seed, step=step, batch=share, count=count, stream=place * _STREAMS)
            for place, (first, (count, share)) in enumerate(zip(firsts, self.mixed, strict=False))
        ]
        rows = np.concatenate(parts)
        return rows[permutation(self.seed, -2 - step, len(rows))]  # so that each minibatch has rows of all sets


@dataclass(frozen=True)
class FixedPrompts:
    """A source of the same rows of `table` in every step, for checks on held-out prompts."""

    table: Any
    rows: tuple[int, ...]

    def batch(self, step: int) -> Prompts:
        """Return the prompts at `rows`, which are the same in every step."""
        return prompts_at(self.table, self.rows)


def prompts_at(table: Any, rows: Sequence[int]) -> Prompts:
    """Return the prompts at these row indices of a data set, in the same order; an index is the prompt's `group`."""
    import pyarrow as pa
    import torch

    from flowgraph.language.values import Group

    indices = list(rows)
    return Prompts(
        group=Group(torch.tensor(indices, dtype=torch.int64)),
        columns=Columns(table.take(pa.array(indices, pa.int64()))),
    )
