"""KL to a reference: as a loss, as tokens for a reward, and the weight that follows it from step to step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from flowgraph import By, Loss, Measure, Metric, node
from flowgraph.errors import SettingError
from flowgraph.language.loss import How
from flowgraph.language.values import Mask
from nodes.terms import LIMIT, MEAN, masked, mean_of, row_means
from nodes.values import KLWeight, LogProbs, TokenKL

if TYPE_CHECKING:
    from torch import Tensor

Estimator = Literal["k1", "k2", "k3", "abs"]
AT_MOST = 10.0  # of one token's k3, which grows as the ratio does
STEP = 0.2  # the largest share of the target that one step answers to
KL = (Metric("kl", "nats", headline=True, about="mean over tokens of the estimate of KL(policy, reference)"),)
ROW_KL = (
    Metric("kl", "nats", headline=True, about="mean over responses of their token mean of KL(policy, reference)"),
)


@node(metrics=KL)
def kl_k1(
    new: Annotated[LogProbs, By.TRAINED],
    mask: Mask,
    *,
    ref: Annotated[LogProbs, By.FIXED],
    straight_through: bool = False,
    aggregation: How = MEAN,
) -> Loss:
    """Give the k1 estimate of KL(policy, reference): new - ref, right on average, negative at times.

    Its own gradient, 1 a token, is 0 on average and pulls to no reference: as a loss it wants `straight_through`, the
    value of k1 with the gradient of k2, new - ref.
    Source: Schulman 2020, "Approximating KL divergence".
    """
    return _kl_loss("k1", new, mask, ref, straight_through, aggregation)


@node(metrics=KL)
def kl_k2(
    new: Annotated[LogProbs, By.TRAINED],
    mask: Mask,
    *,
    ref: Annotated[LogProbs, By.FIXED],
    aggregation: How = MEAN,
) -> Loss:
    """Give the k2 estimate of KL(policy, reference): (new - ref)²/2, whose gradient is right on average.

    Source: Schulman 2020, "Approximating KL divergence".
    """
    return _kl_loss("k2", new, mask, ref, False, aggregation)


@node(metrics=KL)
def kl_k3(
    new: Annotated[LogProbs, By.TRAINED],
    mask: Mask,
    *,
    ref: Annotated[LogProbs, By.FIXED],
    straight_through: bool = False,
    aggregation: How = MEAN,
) -> Loss:
    """Give the k3 estimate of KL(policy, reference): e^d - d - 1 with d = ref - new, never negative.

    d is held within ±20 and the estimate at 10, beyond which it has no gradient. `straight_through` gives it the
    gradient of k2, new - ref, which is held by neither.
    Source: Schulman 2020, "Approximating KL divergence"; Shao et al. 2024 (GRPO), arXiv 2402.03300, equation 4.
    """
    return _kl_loss("k3", new, mask, ref, straight_through, aggregation)


@node(metrics=KL)
def kl_abs(
    new: Annotated[LogProbs, By.TRAINED],
    mask: Mask,
    *,
    ref: Annotated[LogProbs, By.FIXED],
    straight_through: bool = False,
    aggregation: How = MEAN,
) -> Loss:
    """Give |new - ref|: no estimate of KL(policy, reference), but 0 with it and of its scale where they are far apart.

    `straight_through` gives it the gradient of k2, new - ref.
    """
    return _kl_loss("abs", new, mask, ref, straight_through, aggregation)


@node(metrics=ROW_KL)
def kl_estimate(
    old: LogProbs, mask: Mask, *, ref: Annotated[LogProbs, By.FIXED], estimator: Estimator = "k1"
) -> TokenKL:
    """Give the estimate of KL(policy, reference) at each token, to take from a reward: [B, T], 0 where the mask is 0.

    `old` are the policy's log-probs, outside its loss: no gradient flows. The metric is the mean over rows with a token
    of each row's token mean. Estimates are those of `kl_k1`, `kl_k2`, `kl_k3` and `kl_abs`.
    """
    tokens = masked(_estimate(estimator, masked((old.data - ref.data).detach(), mask)), mask)
    rows = mask.data.sum(1) > 0
    return TokenKL(tokens, [Measure("kl", float(row_means(tokens, mask).sum()), float(rows.sum()))])


@node(carries="beta", separable=False, metrics=(Metric("kl_weight", about="factor of the KL in the next step"),))
def adaptive_kl(
    beta: KLWeight,
    kl: TokenKL,
    mask: Mask,
    *,
    target: Annotated[float, Field(gt=0)] = 0.1,
    horizon: Annotated[int, Field(ge=1)] = 10000,
) -> KLWeight:
    """Give the next step's KL weight: beta·(1 + e·rows/horizon), e = KL/target - 1 held within ±0.2.

    KL in nats is the mean over rows of each row's token mean; rows without a token count nowhere, and a batch without
    any leaves beta as it is. Raises `SettingError` for a `horizon` so short that beta could fall to 0 in one step.
    Source: Ziegler et al. 2019, arXiv 1909.08593, section 2.2; its constant 0.1 is rows/horizon, as in its code.
    """
    rows = int((mask.data.sum(1) > 0).sum())
    if STEP * rows >= horizon:
        why = f"a step of {rows} rows could take the weight to 0 or below; it is more than {STEP} of the rows"
        raise SettingError.refused("", "horizon", horizon, why)
    mean = float(row_means(kl.data, mask).sum()) / max(rows, 1)
    error = min(max(mean / target - 1, -STEP), STEP)
    weight = float(beta.data) * (1 + error * rows / horizon)
    return KLWeight(weight, [Measure("kl_weight", weight, 1)])


@node
def weighted(loss: Loss, beta: KLWeight) -> Loss:
    """Scale a loss by a carried weight: `surrogate + weighted(kl_k3(…), beta)`."""
    return loss.times(float(beta.data))


def _kl_loss(
    estimator: Estimator, new: LogProbs, mask: Mask, ref: LogProbs, straight_through: bool, aggregation: How
) -> Loss:
    difference = masked(new.data - ref.data, mask)
    terms = _estimate(estimator, difference)
    measures = [mean_of("kl", terms, mask)]
    if straight_through:
        square = _estimate("k2", difference)
        terms = square - square.detach() + terms.detach()
    return Loss.of(terms, mask, aggregation, measures)


def _estimate(estimator: Estimator, difference: Tensor) -> Tensor:
    """Estimate KL(policy, reference) at each token [B, T] from policy - reference log-probs."""
    import torch

    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference**2 / 2
    if estimator == "abs":
        return difference.abs()
    held = difference.clamp(-LIMIT, LIMIT)
    return (torch.expm1(-held) + held).clamp(0.0, AT_MOST)
