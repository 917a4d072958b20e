"""One comparison with verl: our nodes, verl's function and its settings, the batches; and what our nodes take of these.

Functions of verl are named as in `verl_side.py`, kinds of batches as in `verl_batches.py`. Where the two differ on
purpose is in `verl_reasons.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from flowgraph import Aggregation, Loss
from flowgraph.language.values import Group, Mask
from nodes.values import Advantages, LogProbs, Scores, TokenAdvantages

Columns = Mapping[str, Tensor]
Results = Mapping[str, Any]
Ours = Callable[[Columns], Results]
Given = dict[str, Any]

SHAPES = ("ragged", "no holes", "hidden rows", "one token")
GROUPS = (*SHAPES, "groups of one", "no signal")
TOKENS = (*SHAPES, "NaN")
POLICIES = (*TOKENS, "far")
WEIGHTED = (*POLICIES, "zero weights")

FLOAT64 = 1e-7  # verl adds 1e-8 to counts
FLOAT32 = 1e-5  # of what verl computes in float32 whatever it is given


@dataclass(frozen=True)
class Case:
    """One comparison: results of the same name must be equal, and gradients by the column `by` if it is named.

    `tolerance` is relative where a number is above 1; `dtype` is that of the numbers that both are given. Variants of
    a case stand in one line of the table.
    """

    name: str
    ours: Ours
    function: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    by: str = ""
    kinds: Sequence[str] = SHAPES
    tolerance: float = FLOAT64
    variant: str = ""
    dtype: str = "float64"

    @property
    def key(self) -> str:
        """Give the name that no other case has."""
        return f"{self.name}, {self.variant}" if self.variant else self.name


HOW: Mapping[str, Aggregation | float] = {
    "token-mean": Aggregation.TOKEN_MEAN,
    "seq-mean-token-mean": Aggregation.SEQUENCE_MEAN,
    "seq-mean-token-sum": Aggregation.SEQUENCE_SUM,
    "seq-mean-token-sum-norm": 40.0,
}
"""verl's aggregations; of the last the constant is also told to verl, as its `loss_scale_factor`."""

TOLD = {
    "clip_fraction": "pg_clipfrac",
    "clip_fraction_low": "pg_clipfrac_lower",
    "approx_kl": "ppo_kl",
    "value_clip_fraction": "clipfrac",
    "kl": "kl",
}
"""Our metrics that are verl's, by its names."""


def scores(columns: Columns, name: str = "scores") -> Scores:
    """Give a row column as scores."""
    return Scores(columns[name])


def groups(columns: Columns) -> Group:
    """Give the groups."""
    return Group(columns["group"])


def mask(columns: Columns) -> Mask:
    """Give the mask."""
    return Mask(columns["mask"])


def lps(columns: Columns, name: str) -> LogProbs:
    """Give a column as log-probs."""
    return LogProbs(columns[name])


def gain(columns: Columns, name: str) -> Advantages:
    """Give advantages, one a row or one a token as the column has them."""
    return Advantages(columns[name]) if columns[name].ndim == 1 else TokenAdvantages(columns[name])


def told(value: Any, *names: str) -> dict[str, float]:
    """Give the means of some measures, under verl's names for them."""
    means = {each.name: each.total / max(1, each.count) for each in value.measures}
    return {TOLD.get(name, name): means[name] for name in names}


def reduced(loss: Loss, *names: str) -> Results:
    """Give a loss over its batch, and measures."""
    return {"loss": loss.total([each.counts() for each in loss.terms]), **told(loss, *names)}


def clip(low: float, high: float, dual: float = 1e9) -> Given:
    """Give verl's settings of clips; a `dual` that no ratio reaches is no dual clip."""
    return {"clip_ratio": low, "clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": dual}
