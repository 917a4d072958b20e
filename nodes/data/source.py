"""Rows of a data set as the prompts of a flow: a step's rows are a pure function of seed and step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nodes.data.order import batch_indices
from nodes.values import Columns, Prompts


@dataclass(frozen=True)
class PromptSource:
    """A source of `rows_per_step` prompts of `table` for each step, in an order that `seed` and the epoch determine."""

    table: Any
    rows_per_step: int
    seed: int = 0

    def batch(self, step: int) -> Prompts:
        """Return the prompts of one step."""
        rows = batch_indices(seed=self.seed, step=step, batch=self.rows_per_step, count=self.table.num_rows)
        return prompts_at(self.table, rows.tolist())


@dataclass(frozen=True)
class FixedPrompts:
    """A source of the same rows of `table` in every step, for checks on held-out prompts."""

    table: Any
    rows: tuple[int, ...]

    def batch(self, step: int) -> Prompts:
        """Return the prompts."""
        return prompts_at(self.table, self.rows)


def prompts_at(table: Any, rows: Sequence[int]) -> Prompts:
    """Return the rows of a data set at these indices; a row's index is the identity of its prompt."""
    import pyarrow as pa
    import torch

    from flowgraph.language.values import Group

    indices = list(rows)
    return Prompts(
        group=Group(torch.tensor(indices, dtype=torch.int64)),
        columns=Columns(table.take(pa.array(indices, pa.int64()))),
    )
