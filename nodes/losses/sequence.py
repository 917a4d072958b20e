"""Losses that are means over responses, with one ratio for each response or one gate for each token.

Each has terms [B, T]; their mean over rows of token means is the paper's mean over responses.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flowgraph import Loss, Metric, node
from flowgraph.language import Aggregation, By, Corrects, NodeName
from flowgraph.language.values import Mask
from nodes.losses.terms import APPROX_KL, CLIPPED, gains, log_ratio, masked, mean_of, row_means, surrogates, weighed
from nodes.values import Advantages, ImportanceWeights, LogProbs

ROWS = Aggregation.SEQUENCE_MEAN
MAX_LOG_RATIO = 10.0  # of a response; exp(10) is 2e4


@node(metrics=(CLIPPED, APPROX_KL))
def gspo_loss(
    new: Annotated[LogProbs, By.TRAINED],
    advantages: Advantages,
    mask: Mask,
    *,
    old: Annotated[LogProbs, By.SAMPLER],
    weights: Annotated[ImportanceWeights | None, Corrects("old")] = None,
    eps: Annotated[float, Field(gt=0)] = 3e-4,
    eps_high: Annotated[float | None, Field(gt=0)] = 4e-4,
    name: NodeName = "",
) -> Loss:
    """Return the clipped surrogate loss of each response's ratio s = exp(mean over its tokens of new - old).

    The ratio of each token has the value of its row's s and the gradient of the token's log-prob, so advantages may
    differ between tokens. The default bounds are the paper's, much tighter than those of token ratios; `eps_high` None
    is `eps`. log s is clamped to at most 10, without a gradient beyond. `weights` [B, T] multiply the terms. The loss
    is the mean over rows of token means.
    Source: Zheng et al. 2025 (GSPO), arXiv 2507.18071, sections 4.1 and 4.3 (GSPO-token).
    """
    import torch

    gain, token, difference = gains(advantages, mask), masked(new.data, mask), masked(new.data - old.data, mask)
    row = row_means(difference, mask).detach()[:, None]
    ratio = (token - token.detach() + row).clamp(max=MAX_LOG_RATIO).exp()
    plain, bounded = surrogates(ratio, gain, eps, eps_high)
    measures = [mean_of("clip_fraction", (bounded > plain).float(), mask), mean_of("approx_kl", -difference, mask)]
    return Loss.of(weighed(torch.maximum(plain, bounded), weights, mask), mask, ROWS, measures)


@node(metrics=(Metric("clip_fraction", headline=True, about="share of tokens whose log-ratio is clipped"), APPROX_KL))
def gmpo_loss(
    new: Annotated[LogProbs, By.TRAINED],
    advantages: Advantages,
    mask: Mask,
    *,
    old: Annotated[LogProbs, By.SAMPLER],
    weights: Annotated[ImportanceWeights | None, Corrects("old")] = None,
    eps: Annotated[float, Field(gt=0)] = 0.4,
    eps_high: Annotated[float | None, Field(gt=0)] = None,
    name: NodeName = "",
) -> Loss:
    """Return the loss -A·g of each response, where g is the geometric mean of its clipped token ratios.

    Log-ratios new - old are clamped to ±20, and clipped in the direction of the advantage: to at most `eps_high` (`eps`
    unless set) where A > 0, and to at least -`eps` where A < 0. The loss is the mean over rows with a token. With token
    advantages, each token's own advantage decides how the token is clipped (0 counts as ratio 1), and A is the row's
    mean. The geometric mean of a row's `weights` [B, T] multiplies its term.
    Source: Zhao et al. 2025 (GMPO), arXiv 2507.20673, with its clip at (e^-0.4, e^0.4).
    """
    import torch

    gain, difference = gains(advantages, mask), log_ratio(new, old, mask)
    above = difference.clamp(max=eps if eps_high is None else eps_high)
    clipped = torch.where(gain > 0, above, torch.where(gain < 0, difference.clamp(min=-eps), 0.0))
    rows = -row_means(gain, mask) * row_means(clipped, mask).exp()
    if weights is not None:
        rows = rows * row_means(masked(weights.data.detach(), mask).log(), mask).exp()
    measures = [
        mean_of("clip_fraction", ((clipped != difference) & (gain != 0)).float(), mask),
        mean_of("approx_kl", -difference, mask),
    ]
    return Loss.of(rows[:, None] * torch.ones_like(difference), mask, ROWS, measures)


@node(metrics=(Metric("approx_kl", "nats", headline=True, about="mean of old - new log-prob over tokens"),))
def sapo_loss(
    new: Annotated[LogProbs, By.TRAINED],
    advantages: Advantages,
    mask: Mask,
    *,
    old: Annotated[LogProbs, By.SAMPLER],
    weights: Annotated[ImportanceWeights | None, Corrects("old")] = None,
    tau_pos: Annotated[float, Field(gt=0)] = 1.0,
    tau_neg: Annotated[float, Field(gt=0)] = 1.05,
    name: NodeName = "",
) -> Loss:
    """Return the softly gated surrogate: -A·sigmoid(tau·(r - 1))·4/tau with r = exp(new - old).

    tau is `tau_pos` where A > 0, else `tau_neg`; a larger tau closes the gate sooner. At r = 1 the gradient is the
    policy gradient for any tau. Log-ratios are clamped to ±20; `weights` [B, T] multiply the terms. The loss is the
    mean over rows of token means.
    Source: Gao et al. 2025 (SAPO), arXiv 2511.20347.
    """
    import torch

    gain, difference = gains(advantages, mask), log_ratio(new, old, mask)
    tau = torch.full_like(gain, tau_neg).masked_fill(gain > 0, tau_pos)
    terms = -gain * torch.sigmoid(tau * (difference.exp() - 1)) * 4 / tau
    return Loss.of(weighed(terms, weights, mask), mask, ROWS, [mean_of("approx_kl", -difference, mask)])
