"""Off-policy correction outside the loss: importance weights, and masks without tokens or rows that are too far off.

Losses that take such weights are in `losses`; measures of how far two engines differ are in `mismatch`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from flowgraph import Metric, node
from flowgraph.errors import LawError
from flowgraph.language import By, Measure, NodeName
from flowgraph.language.values import Mask
from nodes.losses.terms import LIMIT, masked, mean_of, row_means
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


def _without_cap(bound: float | None, info: ValidationInfo) -> float | None:
    if bound is not None and info.data.get("cap") is not None:
        raise ValueError("a cap truncates and bounds leave out: with low or high, set cap=None")
    return _above_low(bound, info)


def _above_low(bound: float | None, info: ValidationInfo) -> float | None:
    low = info.data.get("low")
    if bound is not None and low is not None and bound <= low:
        raise ValueError(f"should be greater than low={low}")
    return bound


def _only_of_k1(low: float | None, info: ValidationInfo) -> float | None:
    """Refuse a lower bound for estimators that are never negative, and 0 where nothing differs."""
    test = str(info.data.get("test", "k1"))
    if low is not None and not test.endswith("k1"):
        raise ValueError(f"{test} has an upper bound only")
    return low


def _above_lower_bound(high: float, info: ValidationInfo) -> float:
    if info.data.get("low") is None and str(info.data.get("test")).endswith("k1") and high <= 1:
        raise ValueError("should be greater than 1, for low is 1 / high unless it is set")
    _above_low(high, info)
    return high


POSITIVE = Field(gt=0, allow_inf_nan=False)
WEIGHTS = (
    Metric("weight", about="mean weight"),
    Metric(
        "weight_squared", about="mean squared weight; weight² / weight_squared is the effective sample size as a share"
    ),
    Metric("weight_high", about="share of weights above cap or high before they are cut"),
    Metric("weight_low", about="share of weights below 1 / cap or low before they are cut"),
)


@node(metrics=WEIGHTS)
def importance_weights(
    old: LogProbs,
    mask: Mask,
    *,
    behaviour: Annotated[LogProbs, By.SAMPLER],
    level: Level = "token",
    cap: Annotated[float | None, POSITIVE] = 2.0,
    low: Annotated[float | None, POSITIVE, AfterValidator(_without_cap)] = None,
    high: Annotated[float | None, POSITIVE, AfterValidator(_without_cap)] = None,
    name: NodeName = "",
) -> ImportanceWeights:
    """Return importance weights [B, T]: exp(old - behaviour), a token's probability relative to that in sampling.

    `behaviour` has the log-probs from sampling, `old` those of the policy for which the weights correct. At level
    "sequence" all tokens of a row have one weight: exp of the sum of old - behaviour over the tokens that the mask
    keeps. Weights above `cap` become `cap`. To drop weights instead, set `cap` to None: weights below `low` or above
    `high` then become 0. The log of a weight is clamped to ±20 before that. Weights are 0 where the mask is 0, and no
    gradient flows through them. Metrics are means over tokens, or at level "sequence" over rows with a token. Raises
    SettingError if `low` or `high` is set together with `cap`, or if `high` is not above `low`, and LawError for tokens
    without a log-prob in `behaviour`.
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
    lower, upper = (low, high) if cap is None else (1 / cap, cap)
    below, above = plain < (-math.inf if lower is None else lower), plain > (math.inf if upper is None else upper)
    weights = plain.clamp(max=cap) if cap is not None else torch.where(below | above, 0.0, plain)
    over = Mask((mask.data.sum(1, keepdim=True) > 0).to(mask.data.dtype)) if level == "sequence" else mask
    measures = [mean_of("weight", weights, over), mean_of("weight_squared", weights**2, over)]
    measures += [mean_of("weight_high", above.to(weights.dtype), over)] if upper is not None else []
    measures += [mean_of("weight_low", below.to(weights.dtype), over)] if lower is not None else []
    return ImportanceWeights(weights.expand(mask.data.shape).masked_fill(mask.data == 0, 0.0), measures)


@node(separable=False, metrics=(Metric("scale", about="mean weight, by which all weights are divided"),))
def normalized_weights(
    weights: ImportanceWeights, mask: Mask, *, level: Level, name: NodeName = ""
) -> ImportanceWeights:
    """Return importance weights [B, T] divided by their mean over the batch, so that their mean becomes 1.

    At level "token" this is the mean over all tokens. At level "sequence" each row is averaged over its tokens first,
    and then the rows are averaged; rows without tokens do not count. Only tokens that the mask keeps count; the others
    get 0. Weights that are all 0 stay 0. No gradient flows through the result.
    Source: self-normalised importance sampling, Owen 2013, "Monte Carlo theory, methods and examples", section 9.2.
    """
    plain, tokens = masked(weights.data.detach(), mask), mask.data.sum(1)
    if level == "token":
        total, count = plain.sum(), tokens.sum()
    else:
        total, count = row_means(plain, mask).sum(), (tokens > 0).sum()
    scaled = plain * (count / total) if float(total) > 0 else plain
    return ImportanceWeights(scaled, [Measure("scale", float(total), float(count))])


@node(
    metrics=(
        Metric("rejected", about="share of tokens that are left out"),
        Metric("rejected_rows", about="share of rows whose tokens are all left out"),
    )
)
def rejected(
    mask: Mask,
    *,
    old: LogProbs,
    behaviour: Annotated[LogProbs, By.SAMPLER],
    test: Test,
    low: Annotated[float | None, POSITIVE, AfterValidator(_only_of_k1)] = None,
    high: Annotated[float, POSITIVE, AfterValidator(_above_lower_bound)],
    name: NodeName = "",
) -> Mask:
    """Return a mask [B, T] without the tokens or rows whose log-probs differ too much from those of sampling.

    With l = old - behaviour of a token, clamped to ±20: k1 = -l, k2 = l² / 2, k3 = e^l - 1 - l. A test "token_…"
    removes the tokens that fail; the tests "seq_sum_…", "seq_mean_…" and "seq_max_…" remove rows, by the sum, mean or
    maximum over the tokens that the mask keeps. k1 passes if e^k1, the ratio behaviour / old, is from `low` (1 / `high`
    unless set) to `high`; k2 and k3 pass if they are at most `high`. "seq_mean_k1" tests the geometric mean of the
    ratios. NaN fails. Nest calls to apply several tests, with tests of rows inside: the outer test sees only the tokens
    that the inner one keeps. Raises LawError for tokens without a log-prob in `behaviour`, and SettingError for a `low`
    with k2 or k3, for a `high` that is not above `low`, and for k1 without `low` for a `high` that is not above 1.
    Source: Liu, Li et al. 2025, "When Speed Kills Stability", and verl's notes on rollout correction; estimators:
    Schulman 2020, "Approximating KL divergence".

    >>> import torch
    >>> old, sampled = LogProbs(torch.tensor([[0.0, -1.0]])), LogProbs(torch.tensor([[-3.0, -1.0]]))
    >>> rejected(Mask(torch.ones(1, 2)), old=old, behaviour=sampled, test="token_k1", high=2.0).data
    tensor([[0., 1.]])
    """
    import torch

    scope, _, estimator = test.rpartition("_")
    ratio = _log_ratio(old, behaviour, mask, "rejected").clamp(-LIMIT, LIMIT)
    tokens = {"k1": -ratio, "k2": ratio**2 / 2, "k3": torch.expm1(ratio) - ratio}[estimator]
    tested = _in_scope(tokens, mask, scope)
    passes = tested <= high
    if estimator == "k1":
        passes = (tested >= (-math.log(high) if low is None else math.log(low))) & (tested <= math.log(high))
    remaining = mask.data.masked_fill(~passes, 0.0)
    before, after = ((data.sum(1) > 0).sum() for data in (mask.data, remaining))
    share = Measure("rejected", float(mask.data.sum() - remaining.sum()), float(mask.data.sum()))
    return Mask(remaining, [share, Measure("rejected_rows", float(before - after), float(before))])


def _in_scope(tokens: Tensor, mask: Mask, scope: str) -> Tensor:
    """Return estimates of tokens [B, T], 0 where the mask is 0, or reduce them to rows [B, 1]."""
    if scope == "token" or not tokens.shape[1]:
        return tokens
    if scope == "seq_max":
        return tokens.amax(1, keepdim=True)
    total = tokens.sum(1, keepdim=True)
    return total if scope == "seq_sum" else total / mask.data.sum(1, keepdim=True).clamp(min=1)


def _log_ratio(old: LogProbs, behaviour: LogProbs, mask: Mask, name: str) -> Tensor:
    """Return old - behaviour [B, T], 0 where the mask is 0; raise LawError if `behaviour` lacks log-probs of tokens."""
    import torch

    unmasked, sampled = mask.data != 0, behaviour.data
    if sampled is None or sampled.shape != unmasked.shape:
        sampled = torch.full_like(old.data, math.nan)
    lacking = unmasked & ~sampled.isfinite()
    if lacking.any():
        raise LawError.not_told(f"{name}(behaviour=)", int(lacking.sum()), int(unmasked.sum()))
    return masked(old.data.detach() - sampled, mask)
