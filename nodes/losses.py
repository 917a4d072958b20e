"""Losses: per-token terms [B, T] under a mask; `update` divides by the global count of that mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from flowgraph import Aggregation, By, Loss, Measure, Metric, node
from flowgraph.values import Mask
from nodes.values import Advantages, Entropy, LogProbs

if TYPE_CHECKING:
    from torch import Tensor

LIMIT = 20.0  # log-ratios beyond this carry no information and overflow: exp(20) is 5e8
MEAN = Aggregation.TOKEN_MEAN


@node(
    metrics=(
        Metric("clip_fraction", headline=True, about="share of tokens where the clipped branch is the larger"),
        Metric("approx_kl", "nats", about="mean of old - new log-prob"),
    )
)
def clipped(
    new: Annotated[LogProbs, By.TRAINED],
    advantages: Advantages,
    mask: Mask,
    *,
    old: Annotated[LogProbs, By.SAMPLER],
    eps: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    eps_high: Annotated[float | None, Field(gt=0)] = None,
    aggregation: Aggregation = MEAN,
) -> Loss:
    """Give the clipped surrogate: max(-A·r, -A·clip(r, 1 - eps, 1 + eps_high)) with r = exp(new - old).

    `eps_high` is `eps` unless set (clip-higher). Log-ratios are held within ±20.
    Source: Schulman et al. 2017 (PPO), arXiv 1707.06347, equation 7; Yu et al. 2025 (DAPO), arXiv 2503.14476,
    equation 10.
    """
    import torch

    advantage = advantages.per_token()
    difference = _finite(new.data - old.data, mask).clamp(-LIMIT, LIMIT)
    ratio = difference.exp()
    plain = -advantage * ratio
    bounded = -advantage * ratio.clamp(1 - eps, 1 + (eps if eps_high is None else eps_high))
    measures = [
        _mean("clip_fraction", (bounded > plain).float(), mask),
        _mean("approx_kl", -difference, mask),
    ]
    return Loss.of(torch.maximum(plain, bounded), mask, aggregation, measures)


@node(on_policy=True)
def policy_gradient(
    new: Annotated[LogProbs, By.TRAINED], advantages: Advantages, mask: Mask, *, aggregation: Aggregation = MEAN
) -> Loss:
    """Give the plain policy gradient: -A·log p, with no ratio and no clip.

    Source: Chu et al. 2025 (GPG), arXiv 2504.02546, equation 4; Williams 1992 (REINFORCE).
    """
    return Loss.of(-advantages.per_token() * _finite(new.data, mask), mask, aggregation)


@node(metrics=(Metric("kl", "nats", headline=True, about="k3 estimate of KL(policy, reference)"),))
def kl_k3(
    new: Annotated[LogProbs, By.TRAINED],
    mask: Mask,
    *,
    ref: Annotated[LogProbs, By.FIXED],
    aggregation: Aggregation = MEAN,
) -> Loss:
    """Give the k3 estimate of KL(policy, reference): e^d - d - 1 with d = ref - new, never negative.

    d is held within ±20 and the estimate at 10. Source: Schulman 2020, "Approximating KL divergence"; Shao et al. 2024
    (GRPO), arXiv 2402.03300, equation 4.
    """
    import torch

    difference = _finite(ref.data - new.data, mask).clamp(-LIMIT, LIMIT)
    estimate = (torch.expm1(difference) - difference).clamp(0.0, 10.0)
    return Loss.of(estimate, mask, aggregation, [_mean("kl", estimate, mask)])


@node(metrics=(Metric("policy_entropy", "nats", about="mean entropy of the policy being trained"),))
def entropy_bonus(entropy: Annotated[Entropy, By.TRAINED], mask: Mask, *, aggregation: Aggregation = MEAN) -> Loss:
    """Give minus the entropy, so that a positive factor rewards it: `+ 0.01 * entropy_bonus(entropy(pi, r), mask)`."""
    return Loss.of(-entropy.data, mask, aggregation, [_mean("policy_entropy", entropy.data, mask)])


def _finite(values: Tensor, mask: Mask) -> Tensor:
    """Zero what the mask leaves out, so that NaN there reaches neither value nor gradient."""
    return values.masked_fill(mask.data == 0, 0.0)


def _mean(name: str, values: Tensor, mask: Mask) -> Measure:
    kept = mask.data
    return Measure(name, float((_finite(values.detach(), mask) * kept).sum()), float(kept.sum()))
