"""Which rows make a loss or a gradient that is not finite: what a step tells when it refuses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from flowgraph.language.handle import WHOLE, Ranks, TokenStats

if TYPE_CHECKING:
    from torch import Tensor

_SHIFT = 2**20  # more micro-batches than a step has, and more rows than a micro-batch


@dataclass(eq=False)
class FiniteWatch:
    """What passes with gradients read in one step, and what flows back there: [rows] each, true where not finite."""

    part: int = 0
    _read: list[tuple[int, Tensor]] = field(default_factory=list[tuple[int, "Tensor"]])
    _back: list[tuple[int, Tensor]] = field(default_factory=list[tuple[int, "Tensor"]])

    def clear(self) -> None:
        """Forget what was seen, before the next step."""
        self.part = 0
        self._read.clear()
        self._back.clear()

    def see(self, stats: TokenStats) -> TokenStats:
        """Note which rows of these statistics are not finite, and, once it comes, of their gradient; give them back."""
        for tensor in vars(stats).values():
            if tensor is not None and tensor.requires_grad:
                self._read.append((self.part, _bad_rows(tensor.detach())))
                tensor.register_hook(self._hook(self.part))
        return stats

    def _hook(self, part: int) -> Any:
        return lambda gradient: self._back.append((part, _bad_rows(gradient)))

    def found(self, losses: Sequence[float], ranks: Ranks) -> list[tuple[int, int, int]]:
        """Give the rows at fault on all ranks: by their gradient, else by what was read, else by the loss.

        A gradient comes first, since a loss may leave out tokens whose statistics are not finite.
        """
        of_loss = [(part, WHOLE) for part, loss in enumerate(losses) if not math.isfinite(loss)]
        for own in (_places(self._back), _places(self._read), of_loss):
            coded = [(ranks.rank * _SHIFT + part) * _SHIFT + row + 1 for part, row in own]
            every = ranks.union(torch.tensor(coded, dtype=torch.int64)).tolist()
            if every:
                return [(code // _SHIFT // _SHIFT, code // _SHIFT % _SHIFT, code % _SHIFT - 1) for code in every]
        return []


def _bad_rows(tensor: Tensor) -> Tensor:
    finite = tensor.isfinite()
    return ~(finite if finite.dim() == 1 else finite.all(-1))


def _places(seen: Sequence[tuple[int, Tensor]]) -> list[tuple[int, int]]:
    return sorted({(part, row) for part, bad in seen for row in bad.nonzero()[:, 0].tolist()})
