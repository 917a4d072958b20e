"""Parts of losses: tokens under a mask, log-ratios that stay finite, weights, and measures of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowgraph import Metric
from flowgraph.language import Aggregation, Measure
from flowgraph.language.values import Mask
from nodes.values import Advantages, ImportanceWeights, LogProbs

if TYPE_CHECKING:
    from torch import Tensor

LIMIT = 20.0  # log-ratios beyond this carry no information and overflow: exp(20) is 5e8
MEAN = Aggregation.TOKEN_MEAN

CLIPPED = Metric("clip_fraction", headline=True, about="share of tokens where the clipped branch is larger")
APPROX_KL = Metric("approx_kl", "nats", about="mean of old - new log-prob over tokens")


def masked(values: Tensor, mask: Mask) -> Tensor:
    """Return values [B, T] with 0 where the mask is 0, so that NaN there reaches neither the loss nor its gradient.

    >>> import torch
    >>> masked(torch.tensor([[1.0, float("nan")]]), Mask(torch.tensor([[1.0, 0.0]])))
    tensor([[1., 0.]])
    """
    return values.masked_fill(mask.data == 0, 0.0)


def gains(advantages: Advantages, mask: Mask) -> Tensor:
    """Return the advantage of each token, 0 where the mask is 0: [B, T]."""
    return masked(advantages.per_token(), mask)


def log_ratio(new: LogProbs, old: LogProbs, mask: Mask) -> Tensor:
    """Return new - old of each token: [B, T], clamped to ±20, without a gradient beyond, and 0 where the mask is 0."""
    return masked(new.data - old.data, mask).clamp(-LIMIT, LIMIT)


def weighed(terms: Tensor, weights: ImportanceWeights | None, mask: Mask) -> Tensor:
    """Return terms [B, T] times the importance weights, if there are any; no gradient flows through the weights."""
    return terms if weights is None else terms * masked(weights.data.detach(), mask)


def row_means(values: Tensor, mask: Mask) -> Tensor:
    """Return the mean [B] of each row of [B, T] over the tokens that the mask keeps; 0 for a row without such tokens.

    >>> import torch
    >>> row_means(torch.tensor([[1.0, 3, 9], [9, 9, 9]]), Mask(torch.tensor([[1.0, 1, 0], [0, 0, 0]])))
    tensor([2., 0.])
    """
    tokens: Tensor = mask.data.sum(1).clamp(min=1)
    return masked(values, mask).sum(1) / tokens


def surrogates(ratio: Tensor, gain: Tensor, eps: float, eps_high: float | None) -> tuple[Tensor, Tensor]:
    """Return both branches of the clipped surrogate: -A·r and -A·clip(r, 1 - eps, 1 + eps_high), [B, T] each.

    r is `ratio` and A is `gain`, both [B, T]; None for `eps_high` means `eps`.
    """
    return -gain * ratio, -gain * ratio.clamp(1 - eps, 1 + (eps if eps_high is None else eps_high))


def mean_of(name: str, values: Tensor, mask: Mask) -> Measure:
    """Return a measure called `name`: the mean of values [B, T] over the tokens that the mask keeps."""
    return Measure(name, float(masked(values.detach(), mask).sum()), float(mask.data.sum()))
