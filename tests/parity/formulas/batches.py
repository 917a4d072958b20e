"""Random ragged batches in float64: uneven groups anywhere, masks with holes, empty rows, NaN where masked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

from flowgraph.language.values import Group, Lengths, Mask

Array = np.ndarray


@dataclass(frozen=True)
class Batch:
    """One ragged batch: `mask` [B, T] of 0 and 1, `lengths` [B], `group` [B], and a source of columns."""

    mask: Array
    lengths: Array
    group: Array
    seed: int

    @property
    def shape(self) -> tuple[int, int]:
        rows, tokens = self.mask.shape
        return rows, tokens

    def column(self, name: str, low: float = -2.0, high: float = 2.0, *, planted: float = np.nan) -> Array:
        """Draw a token column [B, T]; the same name gives the same numbers. `planted` stands where the mask is 0."""
        drawn = self._noise(name).uniform(low, high, self.shape)
        return np.where(self.mask > 0, drawn, planted)

    def row(self, name: str, low: float = -2.0, high: float = 2.0) -> Array:
        """Draw a row column [B]."""
        return self._noise(name).uniform(low, high, len(self.mask))

    def scores(self, name: str = "scores") -> Array:
        """Draw scores [B] as tasks give them: often 0 or 1, often equal within a group."""
        return self._noise(name).choice([0.0, 0.0, 1.0, 1.0, 0.1, -1.0, 2.5], len(self.mask))

    def masks(self) -> Mask:
        return Mask(torch.from_numpy(self.mask.copy()))

    def groups(self) -> Group:
        return Group(torch.from_numpy(self.group.copy()))

    def row_lengths(self) -> Lengths:
        return Lengths(torch.from_numpy(self.lengths.copy()))

    def _noise(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, *name.encode()])


@st.composite
def batches(draw: st.DrawFn, rows: int = 8, tokens: int = 6, *, holes: bool = True) -> Batch:
    """Draw a batch of 1 to `rows` rows of up to `tokens` tokens."""
    count, width = draw(st.integers(1, rows)), draw(st.integers(1, tokens))
    lengths = np.array(draw(st.lists(st.integers(0, width), min_size=count, max_size=count)), dtype=np.int64)
    mask = (np.arange(width)[None] < lengths[:, None]).astype(np.float64)
    seed = draw(st.integers(0, 2**16))
    if holes and draw(st.booleans()):
        mask *= np.random.default_rng([seed, 7]).uniform(size=mask.shape) > 0.3
    group = np.array(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), dtype=np.int64)
    return Batch(mask, lengths, group, seed)


def leaf(column: Array) -> torch.Tensor:
    """Give a column as a tensor that takes a gradient."""
    return torch.from_numpy(column.copy()).requires_grad_()
