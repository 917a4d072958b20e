"""Losses that are means over responses: one ratio a response, or one gate a token, with no other aggregation.

Each is written as terms [B, T] whose mean over rows of token means is the paper's mean over responses.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flowgraph import Aggregation, By, Corrects, Loss, Metric, node
from flowgraph.language.values import Mask
from nodes.terms import (
    APPROX_KL,
    CLIPPED,
    gains,
    log_ratio,
    masked,
    mean_of,
    row_means,
    surrogates,
    weighed,
)
from nodes.values import Advantages, ImportanceWeights, LogProbs

ROWS = Aggregation.SEQUENCE_MEAN
LOG_RATIO_AT_MOST = 10.0  # of a whole response; exp(10) is 2e4


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
) -> Loss:
    """Give the clipped surrogate of the response's ratio: s = exp(mean over its tokens of new - old).

    Each token has the value of its row's s and the gradient of its own log-prob, so advantages may be a token's. The
    bounds are the paper's, far closer than a token's ratio needs; `eps_high` None is `eps`. log s is held below 10,
    without a gradient there. `weights` [B, T] multiply the terms. Aggregated as the mean over rows of token means.
    Source: Zheng et al. 2025 (GSPO), arXiv 2507.18071, sections 4.1 and 4.3 (GSPO-token).
    """
    import torch

    gain, own, difference = gains(advantages, mask), masked(new.data, mask), masked(new.data - old.data, mask)
    row = row_means(difference, mask).detach()[:, None]
    ratio = (own - own.detach() + row).clamp(max=LOG_RATIO_AT_MOST).exp()
    plain, bounded = surrogates(ratio, gain, eps, eps_high)
    measures = [
        mean_of("clip_fraction", (bounded > plain).float(), mask),
        mean_of("approx_kl", -difference, mask),
    ]
    return Loss.of(weighed(torch.maximum(plain, bounded), weights, mask), mask, ROWS, measures)


@node(metrics=(Metric("clip_fraction", headline=True, about="share of tokens whose log-ratio is held"), APPROX_KL))
def gmpo_loss(
    new: Annotated[LogProbs, By.TRAINED],
    advantages: Advantages,
    mask: Mask,
    *,
    old: Annotated[LogProbs, By.SAMPLER],
    weights: Annotated[ImportanceWeights | None, Corrects("old")] = None,
    eps: Annotated[float, Field(gt=0)] = 0.4,
    eps_high: Annotated[float | None, Field(gt=0)] = None,
) -> Loss:
    """Give -A·g, g the geometric mean of the row's token ratios, each held on the side that its advantage pushes to.

    Log-ratios new - old are held below `eps_high` (`eps` unless set) where A > 0 and above -`eps` where A < 0, and
    within ±20. The loss is the mean over rows with a token. Token advantages: their signs hold the tokens (0 counts
    as ratio 1), and A is their mean. A row's `weights` [B, T] multiply it by their geometric mean.
    Source: Zhao et al. 2025 (GMPO), arXiv 2507.20673, with its clip at (e^-0.4, e^0.4).
    """
    import torch

    gain, difference = gains(advantages, mask), log_ratio(new, old, mask)
    above = difference.clamp(max=eps if eps_high is None else eps_high)
    held = torch.where(gain > 0, above, torch.where(gain < 0, difference.clamp(min=-eps), 0.0))
    rows = -row_means(gain, mask) * row_means(held, mask).exp()
    if weights is not None:
        rows = rows * row_means(masked(weights.data.detach(), mask).log(), mask).exp()
    measures = [
        mean_of("clip_fraction", ((held != difference) & (gain != 0)).float(), mask),
        mean_of("approx_kl", -difference, mask),
    ]
    return Loss.of(rows[:, None] * torch.ones_like(difference), mask, ROWS, measures)


@node(metrics=(Metric("approx_kl", "nats", headline=True, about="mean of old - new log-prob"),))
def sapo_loss(
    new: Annotated[LogProbs, By.TRAINED],
    advantages: Advantages,
    mask: Mask,
    *,
    old: Annotated[LogProbs, By.SAMPLER],
    weights: Annotated[ImportanceWeights | None, Corrects("old")] = None,
    tau_pos: Annotated[float, Field(gt=0)] = 1.0,
    tau_neg: Annotated[float, Field(gt=0)] = 1.05,
) -> Loss:
    """Give the softly gated surrogate: -A·sigmoid(tau·(r - 1))·4/tau with r = exp(new - old).

    tau is `tau_pos` where A > 0, else `tau_neg`: the larger, the sooner the gate closes; at r = 1 the gradient is the
    policy gradient whatever it is. Log-ratios are held within ±20; `weights` [B, T] multiply the terms. Aggregated as
    the mean over rows of token means.
    Source: Gao et al. 2025 (SAPO), arXiv 2511.20347.
    """
    import torch

    gain, difference = gains(advantages, mask), log_ratio(new, old, mask)
    tau = torch.full_like(gain, tau_neg).masked_fill(gain > 0, tau_pos)
    terms = -gain * torch.sigmoid(tau * (difference.exp() - 1)) * 4 / tau
    return Loss.of(weighed(terms, weights, mask), mask, ROWS, [mean_of("approx_kl", -difference, mask)])
