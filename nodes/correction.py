"""Off-policy correction outside the loss: importance weights, and masks without what was drawn too differently.

The losses that take such weights are in `losses.py`; how far two engines are apart is told by `mismatch.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from flowgraph import By, Measure, Metric, node
from flowgraph.errors import LawError
from flowgraph.language.values import Mask
from nodes.terms import LIMIT, mean_of
from nodes.values import ImportanceWeights, LogProbs

if TYPE_CHECKING:
    from torch import Tensor

Level = Literal["token", "sequence"]
Test = Literal[
    "token_k1",
    "token_k2",
    "token_k3",
    "seq_sum_k1",
    "seq_sum_k2",
    "seq_sum_k3",
    "seq_mean_k1",
    "seq_mean_k2",
    "seq_mean_k3",
    "seq_max_k2",
    "seq_max_k3",
]


def _one_form(bound: float | None, info: ValidationInfo) -> float | None:
    """Refuse a bound beside a cap, and an upper one that is not above the lower one."""
    if bound is not None and info.data.get("cap") is not None:
        raise ValueError("a cap truncates, bounds leave out: set cap=None beside low and high")
    return _above_low(bound, info)


def _above_low(bound: float | None, info: ValidationInfo) -> float | None:
    low = info.data.get("low")
    if bound is not None and low is not None and bound <= low:
        raise ValueError(f"should be greater than low={low}")
    return bound


def _of_a_ratio(low: float | None, info: ValidationInfo) -> float | None:
    """Refuse a lower bound of what is never negative, and best at 0."""
    test = str(info.data.get("test", "k1"))
    if low is not None and not test.endswith("k1"):
        raise ValueError(f"{test} has an upper bound only")
    return low


def _both_ways(high: float, info: ValidationInfo) -> float:
    """Refuse an upper bound of a ratio that is below the lower one, or below 1 where the lower one is 1 / high."""
    if info.data.get("low") is None and str(info.data.get("test")).endswith("k1") and high <= 1:
        raise ValueError("should be greater than 1, for low is 1 / high unless it is set")
    _above_low(high, info)
    return high


POSITIVE = Field(gt=0, allow_inf_nan=False)
WEIGHTS = (
    Metric("weight", about="mean of the weights that the loss sees"),
    Metric(
        "weight_squared", about="mean of their squares: weight² / weight_squared is the effective sample size, of 1"
    ),
    Metric("weight_high", about="share above cap or high, before"),
    Metric("weight_low", about="share below 1 / cap or low, before"),
)


@node(metrics=WEIGHTS)
def importance_weights(
    old: LogProbs,
    mask: Mask,
    *,
    behaviour: Annotated[LogProbs, By.SAMPLER],
    level: Level = "token",
    cap: Annotated[float | None, POSITIVE] = 2.0,
    low: Annotated[float | None, POSITIVE, AfterValidator(_one_form)] = None,
    high: Annotated[float | None, POSITIVE, AfterValidator(_one_form)] = None,
) -> ImportanceWeights:
    """Weigh tokens by how much likelier they are than when they were drawn: exp(old - behaviour), [B, T].

    At level "sequence" all tokens of a row have its weight: the exponential of the sum over its mask. `cap` truncates
    weights; with `cap` None and `low`, `high` or both, weights outside of these bounds are 0. The log of a weight is
    held within ±20. Weights are 0 where the mask is 0, and no gradient flows through them. Metrics are means over
    tokens, at level "sequence" over rows with a token. Refuses rows whose engine told no log-probs (LawError).
    Source: truncation: Espeholt et al. 2018 (V-trace), arXiv 1802.01561, section 4.1, as Yao et al. 2025, "Your
    Efficient RL Framework Secretly Brings You Off-Policy RL Training", apply it to two engines; bounds: Ling Team 2025
    (IcePop), arXiv 2510.18855; level "sequence": Liu, Li et al. 2025, "When Speed Kills Stability".

    >>> import torch
    >>> old, mask = LogProbs(torch.tensor([[0.0, -1.0]])), Mask(torch.tensor([[1.0, 1.0]]))
    >>> importance_weights(old, mask, behaviour=LogProbs(torch.tensor([[-3.0, -1.0]]))).data
    tensor([[2., 1.]])
    """
    import torch

    ratio = _log_ratio(old, behaviour, mask, "importance_weights")
    ratio = ratio.sum(1, keepdim=True) if level == "sequence" else ratio
    plain = ratio.clamp(-LIMIT, LIMIT).exp()
    least, most = (low, high) if cap is None else (1 / cap, cap)
    below, above = plain < (-math.inf if least is None else least), plain > (math.inf if most is None else most)
    given = plain.clamp(max=cap) if cap is not None else torch.where(below | above, 0.0, plain)
    over = Mask((mask.data.sum(1, keepdim=True) > 0).to(mask.data.dtype)) if level == "sequence" else mask
    measures = [mean_of("weight", given, over), mean_of("weight_squared", given**2, over)]
    measures += [mean_of("weight_high", above.to(given.dtype), over)] if most is not None else []
    measures += [mean_of("weight_low", below.to(given.dtype), over)] if least is not None else []
    return ImportanceWeights(given.expand(mask.data.shape).masked_fill(mask.data == 0, 0.0), measures)


@node(separable=False, metrics=(Metric("scale", about="mean weight, by which weights were divided"),))
def normalized_weights(weights: ImportanceWeights, mask: Mask, *, level: Level) -> ImportanceWeights:
    """Divide importance weights [B, T] by their mean over the batch, so that it is 1.

    At level "token" that is the mean over tokens; at level "sequence" over rows with a token, each of which counts by
    the mean of its tokens' weights. Weights that are all 0 stay so.
    Source: self-normalised importance sampling, Owen 2013, "Monte Carlo theory, methods and examples", section 9.2.
    """
    kept = weights.data.detach().masked_fill(mask.data == 0, 0.0)
    tokens = mask.data.sum(1)
    means = kept.sum(1) / tokens.clamp(min=1)
    total, count = (kept.sum(), tokens.sum()) if level == "token" else (means.sum(), (tokens > 0).sum())
    scaled = kept * (count / total) if float(total) > 0 else kept
    return ImportanceWeights(scaled, [Measure("scale", float(total), float(count))])


@node(
    metrics=(
        Metric("rejected", about="share of the tokens given that are left out"),
        Metric("rejected_rows", about="share of the rows given that have no token left"),
    )
)
def rejected(
    mask: Mask,
    *,
    old: LogProbs,
    behaviour: Annotated[LogProbs, By.SAMPLER],
    test: Test,
    low: Annotated[float | None, POSITIVE, AfterValidator(_of_a_ratio)] = None,
    high: Annotated[float, POSITIVE, AfterValidator(_both_ways)],
) -> Mask:
    """Leave out of a mask [B, T] the tokens, or the rows, that were drawn too differently.

    With l = old - behaviour of a token, held within ±20: k1 = -l, k2 = l² / 2, k3 = e^l - 1 - l. A test "token_…"
    drops the tokens that fail it; one of "seq_sum_…", "seq_mean_…" and "seq_max_…" whole rows, by that of the tokens
    which the mask keeps. k1 passes where e^k1, the ratio behaviour / old, is from `low` (1 / `high` unless set) to
    `high`; k2 and k3 where they are at most `high`. "seq_mean_k1" tests the geometric mean of the ratios. Tests are
    nested to ask for all of them; what is nested outside sees the mask that is left, so tests of rows go inside.
    What is NaN fails. Refuses rows whose engine told no log-probs (LawError).
    Source: Liu, Li et al. 2025, "When Speed Kills Stability", and the notes of verl on rollout correction; estimators:
    Schulman 2020, "Approximating KL divergence".

    >>> import torch
    >>> old, drawn = LogProbs(torch.tensor([[0.0, -1.0]])), LogProbs(torch.tensor([[-3.0, -1.0]]))
    >>> rejected(Mask(torch.ones(1, 2)), old=old, behaviour=drawn, test="token_k1", high=2.0).data
    tensor([[0., 1.]])
    """
    scope, _, estimator = test.rpartition("_")
    each = _estimate(_log_ratio(old, behaviour, mask, "rejected").clamp(-LIMIT, LIMIT), estimator)
    told = _of_rows(each, mask, scope)
    passes = told <= high
    if estimator == "k1":
        passes = (told >= (-math.log(high) if low is None else math.log(low))) & (told <= math.log(high))
    left = mask.data.masked_fill(~passes, 0.0)
    before, after = ((data.sum(1) > 0).sum() for data in (mask.data, left))
    tokens = Measure("rejected", float(mask.data.sum() - left.sum()), float(mask.data.sum()))
    return Mask(left, [tokens, Measure("rejected_rows", float(before - after), float(before))])


def _estimate(ratio: Tensor, estimator: str) -> Tensor:
    """Estimate a divergence of each token from its log-ratio [B, T]."""
    import torch

    if estimator == "k1":
        return -ratio
    return ratio**2 / 2 if estimator == "k2" else torch.expm1(ratio) - ratio


def _of_rows(each: Tensor, mask: Mask, scope: str) -> Tensor:
    """Give what is tested: of each token [B, T], or of each row [B, 1]; `each` is 0 where the mask is 0."""
    if scope == "token" or not each.shape[1]:
        return each
    if scope == "seq_max":
        return each.amax(1, keepdim=True)
    total = each.sum(1, keepdim=True)
    return total if scope == "seq_sum" else total / mask.data.sum(1, keepdim=True).clamp(min=1)


def _log_ratio(old: LogProbs, behaviour: LogProbs, mask: Mask, name: str) -> Tensor:
    """Give old - behaviour [B, T], 0 where the mask is 0; refuse tokens that count without a number in `behaviour`."""
    import torch

    counts, told = mask.data != 0, behaviour.data
    if told is None or told.shape != counts.shape:
        told = torch.full_like(old.data, math.nan)
    lacking = counts & ~told.isfinite()
    if lacking.any():
        raise LawError.not_told(f"{name}(behaviour=)", int(lacking.sum()), int(counts.sum()))
    ratio: Tensor = (old.data.detach() - told).masked_fill(~counts, 0.0)
    return ratio
