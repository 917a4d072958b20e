"""Losses that treat tokens of high covariance between log-prob and advantage differently, and the choice of tokens.

The choice depends on the whole batch, so a separate node makes it outside the loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from flowgraph import Loss, Metric, node
from flowgraph.language import By, Corrects, Key, NodeName, Parts
from flowgraph.language.loss import How
from flowgraph.language.values import Mask
from nodes.losses.terms import APPROX_KL, CLIPPED, MEAN, gains, log_ratio, masked, mean_of, surrogates, weighed
from nodes.values import Advantages, Chosen, ImportanceWeights, LogProbs, Responses

if TYPE_CHECKING:
    from torch import Tensor

CHOICE = (
    Metric(
        "covariance", headline=True, about="covariance of log-prob and advantage over tokens, which lowers the entropy"
    ),
    Metric("chosen_fraction", about="share of tokens that are chosen"),
)


@node(separable=False, metrics=CHOICE)
def high_covariance(
    old: Annotated[LogProbs, By.SAMPLER],
    advantages: Advantages,
    mask: Mask,
    *,
    ids: Annotated[Responses, Parts("group", "sample", "trajectory")],
    fraction: Annotated[float, Field(gt=0, le=1)] = 2e-4,
    low: Annotated[float, Field(allow_inf_nan=False)] = 1.0,
    high: Annotated[float, Field(allow_inf_nan=False)] = 5.0,
    key: Key = Key(),
    name: NodeName = "",
) -> Chosen:
    """Return a random choice of tokens whose covariance is between `low` and `high`: [B, T], 1 where chosen, else 0.

    A token's covariance is (A - mean A)·(log p - mean log p), with means over the batch's tokens. At most
    max(1, `fraction` of all tokens, rounded down) are chosen, by random numbers that the key and the rows' identities
    `ids` determine.
    Source: Cui et al. 2025 (Clip-Cov), arXiv 2505.22617. Deviation: the covariance is computed once, from the log-probs
    at sampling, not from the newest ones in each micro-batch, so the loss does not depend on how the batch is split.
    """
    covariance = _covariance(old, advantages, mask)
    between = (covariance > low) & (covariance < high) & (mask.data > 0)
    return _first(_random_numbers(ids, mask, key), between, covariance, old, mask, fraction)


@node(separable=False, metrics=CHOICE)
def top_covariance(
    old: Annotated[LogProbs, By.SAMPLER],
    advantages: Advantages,
    mask: Mask,
    *,
    fraction: Annotated[float, Field(gt=0, le=1)] = 2e-4,
    name: NodeName = "",
) -> Chosen:
    """Return a choice of the tokens with the largest covariance: [B, T], 1 where chosen, else 0.

    A token's covariance is (A - mean A)·(log p - mean log p), with means over the batch's tokens. The number of chosen
    tokens is max(1, `fraction` of all tokens, rounded down). Among equal covariances, earlier tokens are chosen.
    Source: Cui et al. 2025 (KL-Cov), arXiv 2505.22617. Deviation: the covariance is computed once, from the log-probs
    at sampling, not from the newest ones in each micro-batch, so the loss does not depend on how the batch is split.
    """
    covariance = _covariance(old, advantages, mask)
    return _first(-covariance, mask.data > 0, covariance, old, mask, fraction)


@node(metrics=(CLIPPED, APPROX_KL))
def clip_cov_loss(
    new: Annotated[LogProbs, By.TRAINED],
    advantages: Advantages,
    mask: Mask,
    *,
    old: Annotated[LogProbs, By.SAMPLER],
    chosen: Chosen,
    weights: Annotated[ImportanceWeights | None, Corrects("old")] = None,
    eps: Annotated[float, Field(gt=0)] = 0.2,
    eps_high: Annotated[float | None, Field(gt=0)] = None,
    aggregation: How = MEAN,
    name: NodeName = "",
) -> Loss:
    """Return the clipped surrogate loss with 0 at the chosen tokens, which have no gradient but count in the mean.

    The surrogate is max(-A·r, -A·clip(r, 1 - eps, 1 + eps_high)) with r = exp(new - old), its log clamped to ±20;
    `eps_high` is `eps` unless set. `weights` [B, T] multiply the terms. `high_covariance` chooses the tokens.
    Source: Cui et al. 2025 (Clip-Cov), arXiv 2505.22617.
    """
    import torch

    gain, difference = gains(advantages, mask), log_ratio(new, old, mask)
    plain, bounded = surrogates(difference.exp(), gain, eps, eps_high)
    terms = torch.maximum(plain, bounded).masked_fill(masked(chosen.data, mask) > 0, 0.0)
    measures = [mean_of("clip_fraction", (bounded > plain).float(), mask), mean_of("approx_kl", -difference, mask)]
    return Loss.of(weighed(terms, weights, mask), mask, aggregation, measures)


@node(metrics=(Metric("approx_kl", "nats", headline=True, about="mean of old - new log-prob over tokens"),))
def kl_cov_loss(
    new: Annotated[LogProbs, By.TRAINED],
    advantages: Advantages,
    mask: Mask,
    *,
    old: Annotated[LogProbs, By.SAMPLER],
    chosen: Chosen,
    weights: Annotated[ImportanceWeights | None, Corrects("old")] = None,
    weight: Annotated[float, Field(ge=0)] = 1.0,
    aggregation: How = MEAN,
    name: NodeName = "",
) -> Loss:
    """Return the surrogate without a clip, -A·r, plus the penalty `weight`·|new - old| at the chosen tokens.

    r = exp(new - old), with its log clamped to ±20. The penalty has no gradient where new equals old; in the first
    optimizer step, where the two differ only by rounding, its slope is the sign of that difference. `weights` [B, T]
    multiply the terms with the penalty. `top_covariance` chooses the tokens.
    Source: Cui et al. 2025 (KL-Cov), arXiv 2505.22617.
    """
    difference = log_ratio(new, old, mask)
    penalty = masked(new.data - old.data, mask).abs() * masked(chosen.data, mask)
    terms = -gains(advantages, mask) * difference.exp() + weight * penalty
    measures = [mean_of("approx_kl", -difference, mask)]
    return Loss.of(weighed(terms, weights, mask), mask, aggregation, measures)


def _covariance(old: LogProbs, advantages: Advantages, mask: Mask) -> Tensor:
    """Return each token's share of the covariance of log-prob and advantage, 0 where the mask is 0: [B, T] float64."""
    logprobs, gain = masked(old.data, mask).double(), gains(advantages, mask).double()
    count = mask.data.sum().clamp(min=1)
    return masked((gain - gain.sum() / count) * (logprobs - logprobs.sum() / count), mask)


def _random_numbers(ids: Responses, mask: Mask, key: Key) -> Tensor:
    """Return a random number for each token, independent of the row's place in the batch and its padding: [B, T]."""
    import torch

    numbers = torch.zeros(mask.data.shape, dtype=torch.float64)
    identities = zip(ids.group.data.tolist(), ids.sample.data.tolist(), ids.trajectory.data.tolist(), strict=True)
    for row, identity in zip(numbers, identities, strict=True):
        row[:] = torch.from_numpy(key.generator(*identity).random(len(row)))
    return numbers.to(mask.data.device)


def _first(score: Tensor, allowed: Tensor, covariance: Tensor, old: LogProbs, mask: Mask, fraction: float) -> Chosen:
    import torch

    count = max(1, int(fraction * float(mask.data.sum())))
    order = torch.where(allowed, score, torch.inf).flatten().argsort(stable=True)[:count]
    chosen = torch.zeros_like(old.data).flatten()
    chosen[order] = 1.0
    chosen = chosen.view_as(old.data) * allowed
    return Chosen(chosen, [mean_of("covariance", covariance, mask), mean_of("chosen_fraction", chosen, mask)])
