"""Losses of tokens: terms [B, T] under a mask; `update` divides their sum by the global count of that mask.

Losses with one ratio for each response are in `sequence.py`, those that choose tokens in `covariance.py`, KL is in
`nodes/kl.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from flowgraph import Loss, Metric, node
from flowgraph.language import By, Corrects, NodeName
from flowgraph.language.loss import How
from flowgraph.language.values import Mask
from nodes.losses.terms import APPROX_KL, CLIPPED, MEAN, gains, log_ratio, masked, mean_of, surrogates, weighed
from nodes.values import Advantages, Entropy, ImportanceWeights, LogProbs, Returns, Values

LOW = Metric("clip_fraction_low", about="share of tokens where the dual clip bounds the term")


@node(metrics=(CLIPPED, LOW, APPROX_KL))
def clipped(
    new: Annotated[LogProbs, By.TRAINED],
    advantages: Advantages,
    mask: Mask,
    *,
    old: Annotated[LogProbs, By.SAMPLER],
    weights: Annotated[ImportanceWeights | None, Corrects("old")] = None,
    eps: Annotated[float, Field(gt=0)] = 0.2,
    eps_high: Annotated[float | None, Field(gt=0)] = None,
    dual: Annotated[float | None, Field(gt=1)] = None,
    aggregation: How = MEAN,
    name: NodeName = "",
) -> Loss:
    """Return the clipped surrogate: max(-A·r, -A·clip(r, 1 - eps, 1 + eps_high)) with r = exp(new - old).

    `eps_high` is `eps` unless set (clip-higher). `dual` (None: off; 3 in the paper) bounds the term at -A·dual where A
    is negative. Log-ratios are clamped to ±20; `weights` [B, T] multiply the terms.
    Source: Schulman et al. 2017 (PPO), arXiv 1707.06347, equation 7; Yu et al. 2025 (DAPO), arXiv 2503.14476,
    equation 10; Ye et al. 2020 (dual clip), arXiv 1912.09729.
    """
    import torch

    gain, difference = gains(advantages, mask), log_ratio(new, old, mask)
    plain, bounded = surrogates(difference.exp(), gain, eps, eps_high)
    terms = torch.maximum(plain, bounded)
    bound = torch.where(gain < 0, -gain * (torch.inf if dual is None else dual), torch.inf)
    measures = [
        mean_of("clip_fraction", (bounded > plain).float(), mask),
        mean_of("clip_fraction_low", (terms > bound).float(), mask),
        mean_of("approx_kl", -difference, mask),
    ]
    return Loss.of(weighed(torch.minimum(terms, bound), weights, mask), mask, aggregation, measures)


@node(on_policy=True)
def policy_gradient(
    new: Annotated[LogProbs, By.TRAINED],
    advantages: Advantages,
    mask: Mask,
    *,
    weights: Annotated[ImportanceWeights | None, Corrects()] = None,
    aggregation: How = MEAN,
    name: NodeName = "",
) -> Loss:
    """Return the loss of the plain policy gradient: -A·log p, without a ratio or a clip.

    `weights` [B, T] multiply the terms.
    Source: Chu et al. 2025 (GPG), arXiv 2504.02546, equation 4; Williams 1992 (REINFORCE).
    """
    terms = -gains(advantages, mask) * masked(new.data, mask)
    return Loss.of(weighed(terms, weights, mask), mask, aggregation)


@node(metrics=(Metric("clip_fraction", headline=True, about="share of tokens whose ratio is clipped"), APPROX_KL))
def cispo_loss(
    new: Annotated[LogProbs, By.TRAINED],
    advantages: Advantages,
    mask: Mask,
    *,
    old: Annotated[LogProbs, By.SAMPLER],
    weights: Annotated[ImportanceWeights | None, Corrects("old")] = None,
    eps: Annotated[float, Field(gt=0)] = 1.0,
    eps_high: Annotated[float, Field(gt=0)] = 0.2,
    aggregation: How = MEAN,
    name: NodeName = "",
) -> Loss:
    """Return the policy gradient weighted by the clipped ratio: -sg(clip(r, 1 - eps, 1 + eps_high))·A·log p.

    r = exp(new - old), with its log clamped to ±20; sg stops the gradient, so a clipped token still learns. With `eps`
    1 the ratio has no lower bound, as in the paper's runs. `weights` [B, T] multiply the terms.
    Source: MiniMax 2025 (MiniMax-M1), arXiv 2506.13585, section 3.1.
    """
    difference = log_ratio(new, old, mask).detach()
    ratio = difference.exp()
    bounded = ratio.clamp(1 - eps, 1 + eps_high)
    terms = -bounded * gains(advantages, mask) * masked(new.data, mask)
    measures = [mean_of("clip_fraction", (bounded != ratio).float(), mask), mean_of("approx_kl", -difference, mask)]
    return Loss.of(weighed(terms, weights, mask), mask, aggregation, measures)


@node(
    metrics=(Metric("clip_fraction", headline=True, about="share of tokens whose probability moved too far"), APPROX_KL)
)
def dppo_loss(
    new: Annotated[LogProbs, By.TRAINED],
    advantages: Advantages,
    mask: Mask,
    *,
    old: Annotated[LogProbs, By.SAMPLER],
    weights: Annotated[ImportanceWeights | None, Corrects("old")] = None,
    divergence: Literal["tv", "kl"] = "tv",
    eps: Annotated[float, Field(gt=0)] = 0.15,
    most: Annotated[float, Field(ge=1)] = 20.0,
    aggregation: How = MEAN,
    name: NodeName = "",
) -> Loss:
    """Return the loss -A·sg(min(r, most))·log p, with 0 for tokens whose probability moved too far already.

    r = exp(new - old), with its log clamped to ±20; sg stops the gradient. The term of a token is 0 if its probability
    moved by more than `eps` in the direction of its advantage: up where A > 0, down elsewhere. The distance is the
    difference of probabilities ("tv"), or the KL(old, new), in nats, of sampling this token or any other ("kl", with
    0.05 in the paper's runs). `weights` [B, T] multiply the terms.
    Source: Qi et al. 2026 (DPPO), arXiv 2602.04879, the binary divergences. Deviation: 1 - p is at least 1e-8.
    """
    import torch

    gain, difference = gains(advantages, mask), log_ratio(new, old, mask).detach()
    after, before = masked(new.data.detach(), mask), masked(old.data, mask)
    moved = after.exp() - before.exp()
    if divergence == "kl":
        rest_after, rest_before = (-torch.expm1(logprobs).clamp(max=-1e-8) for logprobs in (after, before))
        kl = before.exp() * (before - after) + rest_before * (rest_before / rest_after).log()
        moved = torch.sign(after - before) * kl
    within = torch.where(gain > 0, moved <= eps, moved >= -eps)
    terms = -gain * difference.exp().clamp(max=most) * masked(new.data, mask) * within
    measures = [mean_of("clip_fraction", (~within).float(), mask), mean_of("approx_kl", -difference, mask)]
    return Loss.of(weighed(terms, weights, mask), mask, aggregation, measures)


@node(
    metrics=(
        Metric("value_clip_fraction", about="share of tokens where the clipped error is larger"),
        Metric("value_error", headline=True, about="mean squared error of the estimates, without the clip"),
    )
)
def value_loss(
    new: Annotated[Values, By.TRAINED],
    returns: Returns,
    mask: Mask,
    *,
    old: Values,
    clip: Annotated[float | None, Field(gt=0)] = 0.2,
    aggregation: How = MEAN,
    name: NodeName = "",
) -> Loss:
    """Return half the larger of a critic's two errors: max((V - R)², (old + clip(V - old, ±clip) - R)²)/2.

    `old` is the critic's estimate before the update; it is not used if `clip` is None.
    Source: Schulman et al. 2016 (GAE), arXiv 1506.02438; the clip comes from the code of PPO, described by Engstrom et
    al. 2020, arXiv 2005.12729.
    """
    import torch

    value, target, before = (masked(value.data, mask) for value in (new, returns, old))
    plain = (value - target) ** 2
    bounded = plain if clip is None else (before + (value - before).clamp(-clip, clip) - target) ** 2
    clips = bounded > plain
    if clip is not None:
        clips &= (value - before).abs() > clip  # else the clipped error is larger only by rounding
    measures = [mean_of("value_clip_fraction", clips.float(), mask), mean_of("value_error", plain, mask)]
    return Loss.of(0.5 * torch.maximum(plain, bounded), mask, aggregation, measures)


@node(metrics=(Metric("nll", "nats", headline=True, about="mean of -log p over tokens; exp of it is the perplexity"),))
def cross_entropy(
    new: Annotated[LogProbs, By.TRAINED], mask: Mask, *, aggregation: How = MEAN, name: NodeName = ""
) -> Loss:
    """Return the negative log-likelihood loss of supervised fine-tuning: minus the log-prob of each response token."""
    terms = -masked(new.data, mask)
    return Loss.of(terms, mask, aggregation, [mean_of("nll", terms, mask)])


@node(metrics=(Metric("policy_entropy", "nats", about="mean entropy of the policy being trained"),))
def entropy_bonus(
    entropy: Annotated[Entropy, By.TRAINED], mask: Mask, *, aggregation: How = MEAN, name: NodeName = ""
) -> Loss:
    """Return minus the entropy as a loss, so that a positive factor raises the entropy.

    For example: `loss + 0.01 * entropy_bonus(entropy(pi, r), mask)`.
    """
    terms = -masked(entropy.data, mask)
    return Loss.of(terms, mask, aggregation, [mean_of("policy_entropy", -terms, mask)])
