"""The KL from a reference: as a loss, as a penalty for rewards, and with a weight that adapts from step to step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from flowgraph import Loss, Metric, node
from flowgraph.errors import SettingError
from flowgraph.language import By, Measure, NodeName
from flowgraph.language.loss import How
from flowgraph.language.values import Mask
from nodes.losses.terms import LIMIT, MEAN, masked, mean_of, row_means
from nodes.values import KLWeight, LogProbs, TokenKL

if TYPE_CHECKING:
    from torch import Tensor

Estimator = Literal["k1", "k2", "k3", "abs"]
MAX_K3 = 10.0  # of one token, since k3 grows as the ratio does
MAX_ERROR = 0.2  # the largest relative error of the KL to which one step responds
KL, ROW_KL = (
    (Metric("kl", "nats", headline=True, about=f"{mean} of the estimate of KL(policy, reference)"),)
    for mean in ("mean over tokens", "mean over responses of token means")
)


@node(metrics=KL)
def kl_k1(
    new: Annotated[LogProbs, By.TRAINED],
    mask: Mask,
    *,
    ref: Annotated[LogProbs, By.FIXED],
    straight_through: bool = False,
    aggregation: How = MEAN,
    name: NodeName = "",
) -> Loss:
    """Return a loss: the k1 estimate of KL(policy, reference), new - ref, which is unbiased but may be negative.

    The derivative of k1 with respect to `new` is 1 at each token, so the gradient is 0 in expectation over samples of
    the policy, and k1 alone does not pull the policy to the reference. As a loss, use `straight_through`: the value of
    k1 with the gradient of k2, new - ref.
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
    name: NodeName = "",
) -> Loss:
    """Return a loss: the k2 estimate of KL(policy, reference), (new - ref)²/2, whose gradient is unbiased.

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
    name: NodeName = "",
) -> Loss:
    """Return a loss: the k3 estimate of KL(policy, reference), e^d - d - 1 with d = ref - new, never negative.

    d is clamped to ±20 and the estimate to 10, without a gradient beyond. With `straight_through` the loss has the
    gradient of k2, new - ref, to which neither limit applies.
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
    name: NodeName = "",
) -> Loss:
    """Return a loss: |new - ref|, the absolute difference of log-probs, which does not estimate KL(policy, reference).

    The difference is 0 where the two models agree. With `straight_through` the loss has the gradient of k2, new - ref.
    """
    return _kl_loss("abs", new, mask, ref, straight_through, aggregation)


@node(metrics=ROW_KL)
def kl_estimate(
    old: LogProbs, mask: Mask, *, ref: Annotated[LogProbs, By.FIXED], estimator: Estimator = "k1", name: NodeName = ""
) -> TokenKL:
    """Return an estimate of KL(policy, reference) at each token, in nats, as a penalty for rewards: [B, T].

    `old` are the policy's log-probs; no gradient flows. The estimators are those of `kl_k1`, `kl_k2`, `kl_k3` and
    `kl_abs`. The result is 0 where the mask is 0. The metric averages token means over rows that have a token.
    """
    tokens = _estimate(estimator, masked((old.data - ref.data).detach(), mask))
    rows = (mask.data.sum(1) > 0).sum()
    return TokenKL(tokens, [Measure("kl", float(row_means(tokens, mask).sum()), float(rows))])


@node(carries="beta", separable=False, metrics=(Metric("kl_weight", about="factor of the KL in the next step"),))
def adaptive_kl(
    beta: KLWeight,
    kl: TokenKL,
    mask: Mask,
    *,
    target: Annotated[float, Field(gt=0)] = 0.1,
    horizon: Annotated[int, Field(ge=1)] = 10000,
    name: NodeName = "",
) -> KLWeight:
    """Return the next step's KL weight: beta·(1 + e·rows/horizon), with e = KL/target - 1 clamped to ±0.2.

    KL, in nats, is the mean over rows of token means. Rows without a token do not count; a batch without tokens leaves
    beta unchanged. Raises `SettingError` if `horizon` is at most 0.2 · rows, because beta could then fall to 0 in one
    step.
    Source: Ziegler et al. 2019, arXiv 1909.08593, section 2.2; its constant 0.1 is rows/horizon here, as in the
    authors' code.
    """
    rows = int((mask.data.sum(1) > 0).sum())
    if MAX_ERROR * rows >= horizon:
        why = f"a step of {rows} rows could take the weight to 0 or below; it must be more than {MAX_ERROR * rows:g}"
        raise SettingError.refused("", "horizon", horizon, why)
    mean = float(row_means(kl.data, mask).sum()) / max(rows, 1)
    error = min(max(mean / target - 1, -MAX_ERROR), MAX_ERROR)
    weight = float(beta.data) * (1 + error * rows / horizon)
    return KLWeight(weight, [Measure("kl_weight", weight, 1)])


@node
def weighted(loss: Loss, beta: KLWeight, *, name: NodeName = "") -> Loss:
    """Return a loss multiplied by a KL weight that is carried between steps: `surrogate + weighted(kl_k3(…), beta)`."""
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
    import torch

    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference**2 / 2
    if estimator == "abs":
        return difference.abs()
    clamped = difference.clamp(-LIMIT, LIMIT)
    return (torch.expm1(-clamped) + clamped).clamp(0.0, MAX_K3)
