"""Which rows cause a loss or a gradient that is not finite: what a step reports when it refuses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from flowgraph.language.handle import WHOLE, Ranks, TokenStats

if TYPE_CHECKING:
    from torch import Tensor

_SHIFT = 2**20  # more than the micro-batches of a step, and than the rows of a micro-batch

Marks = list[tuple[int, "Tensor"]]
"""Micro-batches, each with its rows [B], true where a number is not finite."""


@dataclass(eq=False)
class FiniteWatch:
    """What passes with gradients read in one step, and the gradients of it; `part` is the current micro-batch."""

    part: int = 0
    _stats: Marks = field(default_factory=Marks)
    _gradients: Marks = field(default_factory=Marks)

    def clear(self) -> None:
        """Forget the last step."""
        self.part = 0
        self._stats.clear()
        self._gradients.clear()

    def see(self, stats: TokenStats) -> TokenStats:
        """Record which rows of these statistics are not finite, and later of their gradient; return them."""
        part = self.part
        for tensor in vars(stats).values():
            if tensor is not None and tensor.requires_grad:
                self._stats.append((part, _nonfinite_rows(tensor.detach())))
                tensor.register_hook(lambda grad: self._gradients.append((part, _nonfinite_rows(grad))))
        return stats

    def faults(self, losses: Sequence[float], ranks: Ranks) -> list[tuple[int, int, int]]:
        """Return the rows at fault on all ranks as (rank, micro-batch, row): by their gradient, statistics or loss.

        A gradient comes first, since a loss may leave out tokens whose statistics are not finite.
        """
        by_loss = [(part, WHOLE) for part, loss in enumerate(losses) if not math.isfinite(loss)]
        for rows in (_marked(self._gradients), _marked(self._stats), by_loss):
            codes = [(ranks.rank * _SHIFT + part) * _SHIFT + row + 1 for part, row in rows]
            union = ranks.union(torch.tensor(codes, dtype=torch.int64)).tolist()
            if union:
                return [(code // _SHIFT // _SHIFT, code // _SHIFT % _SHIFT, code % _SHIFT - 1) for code in union]
        return []


def _nonfinite_rows(tensor: Tensor) -> Tensor:
    finite = tensor.isfinite()
    return ~(finite if finite.dim() == 1 else finite.all(-1))


def _marked(marks: Marks) -> list[tuple[int, int]]:
    return sorted({(part, row) for part, rows in marks for row in rows.nonzero()[:, 0].tolist()})
