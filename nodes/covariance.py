"""Losses that treat apart the tokens whose log-prob and advantage vary together, and the choice of those tokens.

The choice reads the whole batch, so it is a node of its own, outside the loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from flowgraph import By, Corrects, Key, Loss, Metric, Parts, node
from flowgraph.language.loss import How
from flowgraph.language.values import Mask
from nodes.terms import APPROX_KL, CLIPPED, MEAN, gains, log_ratio, masked, mean_of, surrogates, weighed
from nodes.values import Advantages, Chosen, ImportanceWeights, LogProbs, Responses

if TYPE_CHECKING:
    from torch import Tensor

CHOICE = (
    Metric(
        "covariance", headline=True, about="of log-prob and advantage, over the batch's tokens; entropy falls by it"
    ),
    Metric("chosen_fraction", about="share of tokens that are treated apart"),
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
) -> Chosen:
    """Choose at random among the tokens whose covariance lies between `low` and `high`: [B, T] of 0 and 1.

    A token's covariance is (A - mean A)·(log p - mean log p), means over the batch's tokens. Of those between, at most
    max(1, `fraction` of all tokens, rounded down) are chosen, by draws that each row's identity `ids` and the key
    name; nothing between, nothing chosen.
    Source: Cui et al. 2025 (Clip-Cov), arXiv 2505.22617. Deviation: the covariance is taken once, at the log-probs that
    drew the batch, not in each micro-batch at the newest: so the loss does not depend on how the batch is cut.
    """
    covariance = _covariance(old, advantages, mask)
    between = (covariance > low) & (covariance < high) & (mask.data > 0)
    return _first(_draws(ids, mask, key), between, covariance, old, mask, fraction)


@node(separable=False, metrics=CHOICE)
def top_covariance(
    old: Annotated[LogProbs, By.SAMPLER],
    advantages: Advantages,
    mask: Mask,
    *,
    fraction: Annotated[float, Field(gt=0, le=1)] = 2e-4,
) -> Chosen:
    """Choose the tokens of the largest covariance: max(1, `fraction` of all tokens, rounded down), [B, T] of 0 and 1.

    A token's covariance is (A - mean A)·(log p - mean log p), means over the batch's tokens. Of equal ones those of
    earlier rows are chosen; in a batch without a token, none.
    Source: Cui et al. 2025 (KL-Cov), arXiv 2505.22617. Deviation: the covariance is taken once, at the log-probs that
    drew the batch, not in each micro-batch at the newest: so the loss does not depend on how the batch is cut.
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
) -> Loss:
    """Give the clipped surrogate, 0 at the chosen tokens: they give no gradient, but are counted.

    The surrogate is max(-A·r, -A·clip(r, 1 - eps, 1 + eps_high)), r = exp(new - old), its log within ±20; `eps_high` is
    `eps` unless set; `weights` [B, T] multiply the terms. Tokens are chosen by `high_covariance`.
    Source: Cui et al. 2025 (Clip-Cov), arXiv 2505.22617.
    """
    import torch

    gain, difference = gains(advantages, mask), log_ratio(new, old, mask)
    plain, bounded = surrogates(difference.exp(), gain, eps, eps_high)
    terms = torch.maximum(plain, bounded).masked_fill(masked(chosen.data, mask) > 0, 0.0)
    measures = [
        mean_of("clip_fraction", (bounded > plain).float(), mask),
        mean_of("approx_kl", -difference, mask),
    ]
    return Loss.of(weighed(terms, weights, mask), mask, aggregation, measures)


@node(metrics=(Metric("approx_kl", "nats", headline=True, about="mean of old - new log-prob"),))
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
) -> Loss:
    """Give the surrogate without a clip, -A·r, and `weight`·|new - old| more at the chosen tokens.

    r = exp(new - old), its log within ±20. Where new is old the penalty has no gradient; in the first optimizer step,
    where they differ by rounding alone, its slope is the sign of that. `weights` [B, T] multiply the terms, the penalty
    too. Tokens are chosen by `top_covariance`.
    Source: Cui et al. 2025 (KL-Cov), arXiv 2505.22617.
    """
    difference = log_ratio(new, old, mask)
    penalty = masked(new.data - old.data, mask).abs() * masked(chosen.data, mask)
    terms = -gains(advantages, mask) * difference.exp() + weight * penalty
    measures = [mean_of("approx_kl", -difference, mask)]
    return Loss.of(weighed(terms, weights, mask), mask, aggregation, measures)


def _covariance(old: LogProbs, advantages: Advantages, mask: Mask) -> Tensor:
    """Give each token's share of the covariance of log-prob and advantage, 0 where the mask is 0: [B, T] float64."""
    logprobs, gain = masked(old.data, mask).double(), gains(advantages, mask).double()
    count = mask.data.sum().clamp(min=1)
    return masked((gain - gain.sum() / count) * (logprobs - logprobs.sum() / count), mask)


def _draws(ids: Responses, mask: Mask, key: Key) -> Tensor:
    """Draw a number for each token, the same for a row wherever it stands, and however far it is padded: [B, T]."""
    import torch

    draws = torch.zeros(mask.data.shape, dtype=torch.float64)
    identity = (ids.group.data.tolist(), ids.sample.data.tolist(), ids.trajectory.data.tolist())
    for row, names in zip(draws, zip(*identity, strict=True), strict=True):
        row[:] = torch.from_numpy(key.generator(*names).random(len(row)))
    return draws.to(mask.data.device)


def _first(score: Tensor, allowed: Tensor, covariance: Tensor, old: LogProbs, mask: Mask, fraction: float) -> Chosen:
    """Choose those of the lowest score among the allowed, at most max(1, `fraction` of all tokens)."""
    import torch

    most = max(1, int(fraction * float(mask.data.sum())))
    order = torch.where(allowed, score, torch.inf).flatten().argsort(stable=True)[:most]
    chosen = torch.zeros_like(old.data).flatten()
    chosen[order] = 1.0
    chosen = chosen.view_as(old.data) * allowed
    return Chosen(chosen, [mean_of("covariance", covariance, mask), mean_of("chosen_fraction", chosen, mask)])
