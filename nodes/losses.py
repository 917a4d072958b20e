"""Losses token by token: terms [B, T] under a mask; `update` divides by the global count of that mask.

Losses of one ratio a row are in `sequence_losses.py`, those that choose tokens in `covariance.py`, KL in `kl.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from flowgraph import By, Corrects, Loss, Metric, node
from flowgraph.language.loss import How
from flowgraph.language.values import Mask
from nodes.terms import APPROX_KL, CLIPPED, MEAN, gains, log_ratio, masked, mean_of, surrogates, weighed
from nodes.values import Advantages, Entropy, ImportanceWeights, LogProbs, Returns, Values

if TYPE_CHECKING:
    from torch import Tensor

LOW = Metric("clip_fraction_low", about="share of tokens that the bound on negative advantages holds")


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
) -> Loss:
    """Give the clipped surrogate: max(-A·r, -A·clip(r, 1 - eps, 1 + eps_high)) with r = exp(new - old).

    `eps_high` is `eps` unless set (clip-higher). `dual` (None: off; its paper's value is 3) bounds the term at -A·dual
    where A is negative. Log-ratios are held within ±20; `weights` [B, T] multiply the terms.
    Source: Schulman et al. 2017 (PPO), arXiv 1707.06347, equation 7; Yu et al. 2025 (DAPO), arXiv 2503.14476,
    equation 10; Ye et al. 2020 (dual clip), arXiv 1912.09729.
    """
    import torch

    gain, difference = gains(advantages, mask), log_ratio(new, old, mask)
    plain, bounded = surrogates(difference.exp(), gain, eps, eps_high)
    terms = torch.maximum(plain, bounded)
    most = torch.where(gain < 0, -gain * (torch.inf if dual is None else dual), torch.inf)
    measures = [
        mean_of("clip_fraction", (bounded > plain).float(), mask),
        mean_of("clip_fraction_low", (terms > most).float(), mask),
        mean_of("approx_kl", -difference, mask),
    ]
    return Loss.of(weighed(torch.minimum(terms, most), weights, mask), mask, aggregation, measures)


@node(on_policy=True)
def policy_gradient(
    new: Annotated[LogProbs, By.TRAINED],
    advantages: Advantages,
    mask: Mask,
    *,
    weights: Annotated[ImportanceWeights | None, Corrects()] = None,
    aggregation: How = MEAN,
) -> Loss:
    """Give the plain policy gradient: -A·log p, with no ratio and no clip; `weights` [B, T] multiply the terms.

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
) -> Loss:
    """Give the policy gradient weighed by the clipped ratio: -sg(clip(r, 1 - eps, 1 + eps_high))·A·log p.

    r = exp(new - old), its log within ±20; sg lets no gradient through, so a clipped token still learns. At `eps` 1
    there is no lower bound, as in the paper's runs. `weights` [B, T] multiply the terms.
    Source: MiniMax 2025 (MiniMax-M1), arXiv 2506.13585, section 3.1.
    """
    difference = log_ratio(new, old, mask).detach()
    ratio = difference.exp()
    bounded = ratio.clamp(1 - eps, 1 + eps_high)
    terms = -bounded * gains(advantages, mask) * masked(new.data, mask)
    measures = [mean_of("clip_fraction", (bounded != ratio).float(), mask), mean_of("approx_kl", -difference, mask)]
    return Loss.of(weighed(terms, weights, mask), mask, aggregation, measures)


@node(metrics=(Metric("clip_fraction", headline=True, about="share of tokens that moved too far to learn"), APPROX_KL))
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
) -> Loss:
    """Give the policy gradient -A·sg(min(r, most))·log p of tokens whose probability did not move far with A.

    r = exp(new - old), its log within ±20. A token moved with its advantage, up where A > 0 and down where not, further
    than `eps`, is 0. How far: the difference of probabilities ("tv"), or in nats the KL(old, new) of drawing this token
    or another ("kl", for which the paper's runs take 0.05). `weights` [B, T] multiply the terms.
    Source: Qi et al. 2026 (DPPO), arXiv 2602.04879, the binary divergences. Deviation: 1 - p is held above 1e-8.
    """
    import torch

    gain, difference = gains(advantages, mask), log_ratio(new, old, mask).detach()
    moved = _moved(masked(new.data.detach(), mask), masked(old.data, mask), divergence)
    kept = torch.where(gain > 0, moved <= eps, moved >= -eps)
    terms = -gain * difference.exp().clamp(max=most) * masked(new.data, mask) * kept
    measures = [mean_of("clip_fraction", (~kept).float(), mask), mean_of("approx_kl", -difference, mask)]
    return Loss.of(weighed(terms, weights, mask), mask, aggregation, measures)


def _moved(after: Tensor, before: Tensor, divergence: str) -> Tensor:
    """Give how far each token's probability moved, from two log-probs [B, T]; what went down is negative."""
    import torch

    if divergence == "tv":
        return after.exp() - before.exp()
    others_after, others_before = (-torch.expm1(each).clamp(max=-1e-8) for each in (after, before))
    far = before.exp() * (before - after) + others_before * (others_before / others_after).log()
    return torch.sign(after - before) * far


@node(
    metrics=(
        Metric("value_clip_fraction", about="share of tokens where the clipped error is the larger"),
        Metric("value_error", headline=True, about="mean squared error of the estimates, not clipped"),
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
) -> Loss:
    """Give half the squared error of a critic, the larger of two: max((V - R)², (old + clip(V - old, ±clip) - R)²)/2.

    `old` is what the critic estimated before the update; with `clip` None it is not read.
    Source: Schulman et al. 2016 (GAE), arXiv 1506.02438; the clip is of the code of PPO, described by Engstrom et al.
    2020, arXiv 2005.12729.
    """
    import torch

    value, target, before = (masked(each.data, mask) for each in (new, returns, old))
    plain = (value - target) ** 2
    bounded = plain if clip is None else (before + (value - before).clamp(-clip, clip) - target) ** 2
    held = bounded > plain if clip is None else (bounded > plain) & ((value - before).abs() > clip)  # not by rounding
    measures = [
        mean_of("value_clip_fraction", held.float(), mask),
        mean_of("value_error", plain, mask),
    ]
    return Loss.of(0.5 * torch.maximum(plain, bounded), mask, aggregation, measures)


@node(
    metrics=(Metric("nll", "nats", headline=True, about="mean of -log p of the tokens; its exponential: perplexity"),)
)
def cross_entropy(new: Annotated[LogProbs, By.TRAINED], mask: Mask, *, aggregation: How = MEAN) -> Loss:
    """Give minus the log-prob of each token, to learn given responses by heart (supervised fine-tuning)."""
    terms = -masked(new.data, mask)
    return Loss.of(terms, mask, aggregation, [mean_of("nll", terms, mask)])


@node(metrics=(Metric("policy_entropy", "nats", about="mean entropy of the policy being trained"),))
def entropy_bonus(entropy: Annotated[Entropy, By.TRAINED], mask: Mask, *, aggregation: How = MEAN) -> Loss:
    """Give minus the entropy, so that a positive factor rewards it: `+ 0.01 * entropy_bonus(entropy(pi, r), mask)`."""
    terms = -masked(entropy.data, mask)
    return Loss.of(terms, mask, aggregation, [mean_of("policy_entropy", -terms, mask)])
