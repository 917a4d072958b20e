"""Rows of a data set as the prompts of a flow: which rows is a pure function of seed and step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nodes.data.order import batch_indices
from nodes.values import Columns, Prompts


@dataclass(frozen=True)
class PromptSource:
    """Give `rows_per_step` prompts of `table` a step, epoch after epoch, each in a fresh order of `seed`."""

    table: Any
    rows_per_step: int
    seed: int = 0

    def batch(self, step: int) -> Prompts:
        """Give the prompts of one step."""
        count = self.table.num_rows
        return prompts_at(
            self.table, batch_indices(seed=self.seed, step=step, batch=self.rows_per_step, count=count).tolist()
        )


@dataclass(frozen=True)
class FixedPrompts:
    """Give the same rows of `table` every step: what a check reads."""

    table: Any
    rows: tuple[int, ...]

    def batch(self, step: int) -> Prompts:
        """Give the prompts."""
        return prompts_at(self.table, self.rows)


def prompts_at(table: Any, rows: Sequence[int]) -> Prompts:
    """Give the rows of a data set at these indices; each row's index is its prompt's identity."""
    import pyarrow as pa
    import torch

    from flowgraph.language.values import Group

    indices = torch.as_tensor(list(rows), dtype=torch.int64)
    return Prompts(group=Group(indices), columns=Columns(table.take(pa.array(list(rows), pa.int64()))))
