"""Advantages: of responses relative to their group, the responses to one prompt, and of tokens relative to a critic.

Rewards of tokens are in `rewards`, normalising over the whole batch is in `whitening`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import Field

from flowgraph import Metric, node
from flowgraph.errors import LawError
from flowgraph.language import By, Corrects, Measure, NodeName, Rows
from flowgraph.language.values import Group, Mask, Tokens
from nodes.losses.terms import masked
from nodes.values import (
    Advantages,
    Entropy,
    ImportanceWeights,
    LogProbs,
    Returns,
    Rewards,
    Scores,
    SquaredProbs,
    TokenAdvantages,
    Values,
)

if TYPE_CHECKING:
    from torch import Tensor

A = TypeVar("A", bound=Advantages)
SIGNAL = (Metric("no_signal", about="share of groups whose responses all have the same score"),)
AS_GREEDY = (Metric("no_signal", about="share of groups whose responses all have the score of the greedy one"),)
EPSILON = 1e-8  # added to sums of energies, so that a baseline without energy is 0; the value is verl's


# ------------------------------------------------------------------------------------------- of responses


@node(kind="advantage", metrics=SIGNAL)
def group_normalize(
    scores: Scores,
    group: Group,
    *,
    deviation: bool = True,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
    name: NodeName = "",
) -> Advantages:
    """Return scores normalised within each group: (score - mean) / (sample deviation + eps).

    Scores [B] become advantages [B]; without `deviation` they are only centred: score - mean. In a group of one the
    mean counts as 0 and the deviation as 1; in larger groups equal scores become exactly 0.
    Source: Shao et al. 2024 (GRPO), arXiv 2402.03300, section 4.1.2; without deviation: Liu et al. 2025 (Dr. GRPO),
    arXiv 2503.20783.
    """
    groups = _Groups.of(group)
    centred, flat = groups.centred(scores.data.double())
    if deviation:
        centred /= groups.deviation(centred)[groups.index] + eps
    return Advantages(_as_floats(centred, scores.data), [_no_signal(flat)])


@node(
    kind="advantage", separable=False, metrics=(*SIGNAL, Metric("alpha", about="all rows / rows whose score is not 0"))
)
def gpg_advantages(scores: Scores, group: Group, *, name: NodeName = "") -> Advantages:
    """Return scores centred within each group, times alpha = rows / max(1, rows whose score is not 0) of the batch.

    Scores [B] become advantages [B]; a group of one is not centred.
    Source: Chu et al. 2025 (GPG), arXiv 2504.02546, equation 7, with its normaliser 1. Deviation: alpha is verl's. The
    paper's count leaves out the rows of groups whose scores are all equal, right or wrong; this one leaves out the rows
    whose score is 0, so alpha is 1 / accuracy if scores are 0 and 1, and 1 if no score is 0.
    """
    groups = _Groups.of(group)
    centred, flat = groups.centred(scores.data.double())
    alpha = len(centred) / max(1, int((scores.data != 0).sum()))
    return Advantages(_as_floats(alpha * centred, scores.data), [_no_signal(flat), Measure("alpha", alpha, 1)])


@node(kind="advantage", metrics=SIGNAL)
def rloo_advantages(scores: Scores, group: Group, *, name: NodeName = "") -> Advantages:
    """Return each score minus the mean of the n - 1 other scores of its group.

    Scores [B] become advantages [B]; equal scores become exactly 0. The advantage of a group of one is 0, as in verl's
    vectorised version; verl's version with loops keeps the score.
    Source: Ahmadian et al. 2024 (RLOO), arXiv 2402.14740, section 3.3; Kool et al. 2019.
    """
    groups = _Groups.of(group)
    centred, flat = groups.centred(scores.data.double())
    counts = groups.counts[groups.index]
    advantages = (centred * counts / (counts - 1).clamp(min=1)).masked_fill(counts == 1, 0.0)
    return Advantages(_as_floats(advantages, scores.data), [_no_signal(flat)])


@node(kind="advantage", metrics=SIGNAL)
def opo_advantages(scores: Scores, group: Group, mask: Mask, *, name: NodeName = "") -> Advantages:
    """Return each score minus its group's mean weighted by length: score - Σ length·score / Σ length.

    Scores [B] become advantages [B]; a length is the number of tokens that the mask [B, T] keeps. Equal scores become
    exactly 0. The mean counts as 0 in a group of one, and in a group without tokens.
    Source: Hao et al. 2025 (OPO), arXiv 2505.23585, section 3.2.
    """
    centred, flat = _Groups.of(group).centred(scores.data.double(), (mask.data != 0).sum(1))
    return Advantages(_as_floats(centred, scores.data), [_no_signal(flat)])


@node(kind="advantage", metrics=SIGNAL)
def pass_at_k_advantages(
    scores: Scores,
    group: Group,
    *,
    deviation: bool = True,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
    name: NodeName = "",
) -> Advantages:
    """Return the lead of each group's best response, (best - second) / (sample deviation + eps), and 0 for all others.

    Scores [B] become advantages [B]; without `deviation` the lead is best - second. The best response gets 0 too in a
    group with two best ones, and in a group of one.
    Source: Tang et al. 2025, arXiv 2503.19595; the deviation is that of verl's `grpo_passk`.
    Deviation: verl refuses a group of one.
    """
    import torch

    groups, values = _Groups.of(group), scores.data.double()
    best, second = groups.leaders(values)
    centred, flat = groups.centred(values)
    lead = values[best] - values[second]
    if deviation:
        lead /= groups.deviation(centred) + eps
    return Advantages(_as_floats(torch.zeros_like(values).index_put((best,), lead), scores.data), [_no_signal(flat)])


@node(kind="advantage", metrics=AS_GREEDY)
def greedy_baseline(
    scores: Scores,
    group: Group,
    *,
    greedy: Annotated[Scores, Rows.OTHER],
    greedy_group: Annotated[Group, Rows.OTHER],
    name: NodeName = "",
) -> Advantages:
    """Return each score minus that of the greedy response to the same prompt.

    Scores [B] become advantages [B]. The greedy scores [P] are matched by prompt, in any order; if a prompt has
    several, their mean counts. Raises `LawError` for a prompt without a greedy response.
    Source: Li et al. 2023 (ReMax), arXiv 2310.10505, algorithm 1.
    """
    import torch

    prompts, index = torch.unique(greedy_group.data, return_inverse=True)
    missing = torch.unique(group.data[~torch.isin(group.data, prompts)]).tolist()
    if missing:
        names = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        raise LawError.not_aligned("scores", "greedy", f"no greedy response answers prompt {names}")
    sums = torch.zeros(len(prompts), dtype=torch.float64).index_add(0, index, greedy.data.double())
    baseline = sums / torch.bincount(index, minlength=len(prompts))
    advantages = scores.data.double() - baseline[torch.searchsorted(prompts, group.data)]
    flat = _Groups.of(group).total((advantages != 0).double()) == 0
    return Advantages(_as_floats(advantages, scores.data), [_no_signal(flat)])


@node(kind="advantage")
def entropy_shaped(
    advantages: A,
    entropy: Entropy,
    mask: Mask,
    tokens: Tokens,
    *,
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.4,
    bound: Annotated[float, Field(gt=1)] = 2.0,
    between: tuple[int, int] | None = None,
    name: NodeName = "",
) -> A:
    """Return each advantage A plus the clipped mean entropy H of its response: A + weight·clip(H, ±|A| / bound).

    Advantages [B] or [B, T] keep their shape. H is the mean of `entropy`, in nats, over the tokens that the mask keeps;
    it should be that of the policy that sampled them. With `between`, two token ids such as those of `<think>` and
    `</think>`, only tokens after the first opening one and before the next closing one count. A response without such
    tokens keeps its advantage. An advantage of 0 stays 0, and with `weight` ≤ `bound` none changes its sign.
    Source: Hao et al. 2025 (EGPO), arXiv 2508.05118.
    """
    import torch

    counted = mask.data != 0
    if between is not None:
        opening, closing = ((tokens.data == token) & counted for token in between)
        opened = opening.cumsum(1) > 0
        after = opened & (opened.cumsum(1) > 1)
        closed = (closing & after).cumsum(1) > 0
        counted = after & counted & ~closed & closed.any(1, keepdim=True)
    mean = entropy.data.masked_fill(~counted, 0.0).sum(1) / counted.sum(1).clamp(min=1)
    gain, mean = advantages.data, mean.to(advantages.data.dtype)
    if isinstance(advantages, TokenAdvantages):
        gain, mean = masked(gain, mask), mean[:, None]
    limit = gain.abs() / bound
    return type(advantages)(gain + weight * torch.clamp(mean, -limit, limit))


# ------------------------------------------------------------------------------------------- of tokens


@node(kind="advantage")
def gae(
    rewards: Rewards,
    values: Values,
    mask: Mask,
    *,
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0,
    lam: Annotated[float, Field(ge=0, le=1)] = 0.95,
    name: NodeName = "",
) -> tuple[TokenAdvantages, Returns]:
    """Return advantages A_t = δ_t + γλ·A_{t+1}, with δ_t = r_t + γ·V_{t+1} - V_t, and the critic's targets A + V.

    All are [B, T]: r are the rewards, V the critic's values, and λ is `lam`. "t+1" is the next token that the mask
    keeps: A and V skip masked tokens, such as those of tools, and are 0 after the last token. Rewards of masked tokens
    do not count, and both results are 0 there. Advantages are not whitened; `whiten` does that.
    Source: Schulman et al. 2015 (GAE), arXiv 1506.02438, equations 11 and 16.
    """
    expected = masked(values.data, mask)
    advantages = _backward(masked(rewards.data, mask), expected, mask, gamma, lam)
    return TokenAdvantages(advantages), Returns(advantages + expected)


@node(kind="advantage")
def discounted_returns(
    rewards: Rewards, mask: Mask, *, gamma: Annotated[float, Field(ge=0, le=1)] = 1.0, name: NodeName = ""
) -> TokenAdvantages:
    """Return for each token the discounted sum of its reward and all later ones: G_t = r_t + γ·G_{t+1}.

    Rewards [B, T] become returns [B, T]. "t+1" is the next token that the mask keeps: the return skips masked tokens,
    such as those of tools, and is 0 there. Versions of verl before 2026 started again at each masked token, so that
    rewards after a tool's answer did not reach the tokens before it. REINFORCE++ uses this node and `whiten`.
    Source: Hu et al. 2025 (REINFORCE++), arXiv 2501.03262.
    """
    import torch

    earned = masked(rewards.data, mask)
    return TokenAdvantages(_backward(earned, torch.zeros_like(earned), mask, gamma, 1.0))


@node(kind="advantage", metrics=SIGNAL)
def optimal_token_baseline(
    rewards: Rewards,
    group: Group,
    mask: Mask,
    *,
    old: Annotated[LogProbs, By.SAMPLER],
    squares: SquaredProbs,
    weights: Annotated[ImportanceWeights | None, Corrects("old")] = None,
    zero_tail: bool = True,
    name: NodeName = "",
) -> TokenAdvantages:
    """Return each token's return G_t minus the mean of its group weighted by energy: Σ G_t·W_t / Σ W_t.

    All are [B, T]. G_t is the sum of the rewards from token t on. The energy W_t is the sum up to t of 1 - 2π + Σπ², a
    proxy of the squared gradient at a token of probability π, times the squared importance weight, if any. π, from
    `old`, and Σπ², from `squares`, belong to one version of one model: the one that sampled the rows, or with `weights`
    the one to which they correct. t counts the tokens that the mask keeps; masked tokens have no influence, and their
    advantage is 0. Where a response is longer than all others of its group, the baseline would be its own return and
    its advantage 0; with `zero_tail` the baseline is 0 there. The baseline is also 0 if no other response of the group
    has a token, and where the energies sum to 0.
    Source: Li et al. 2026 (OTB), arXiv 2602.07078; tail and alignment are those of verl's `tir_optimal_token_baseline`.
    Deviation: 1 - 2π + Σπ² below 0, from rounding, is 0. verl's other estimator counts masked tokens in t, as columns.
    """
    unmasked, groups = mask.data != 0, _Groups.of(group)
    earned = masked(rewards.data.double(), mask)
    energy = 1 - 2 * old.data.double().exp() + squares.data.double()
    factor = 1.0 if weights is None else weights.data.double() ** 2
    energy = masked(energy.clamp(min=0) * factor, mask).cumsum(1)
    returns, energy = earned.flip(1).cumsum(1).flip(1), masked(energy, mask)
    position, lengths = (unmasked.cumsum(1) - 1).clamp(min=0), unmasked.sum(1)
    zeros = energy.new_zeros(energy.shape)
    weighted, total = (groups.total(zeros.scatter_add(1, position, terms)) for terms in (returns * energy, energy))
    baseline = (weighted / (total + EPSILON))[groups.index].gather(1, position)
    single = groups.total((lengths > 0).double())[groups.index] < 2
    baseline = baseline.masked_fill(single[:, None], 0.0)
    if zero_tail:
        _, second = groups.leaders(lengths)
        baseline = baseline.masked_fill(position >= lengths[second][groups.index][:, None], 0.0)
    low, high = groups.range(earned.sum(1))
    advantages = masked(returns - baseline, mask)
    return TokenAdvantages(_as_floats(advantages, rewards.data), [_no_signal(low == high)])


def _backward(earned: Tensor, expected: Tensor, mask: Mask, gamma: float, lam: float) -> Tensor:
    """Return the advantages of GAE [B, T], by a loop from the last column to the first that skips masked tokens."""
    import torch

    unmasked = mask.data != 0
    advantages = torch.zeros_like(earned + expected)
    next_value = gain = advantages.new_zeros(len(advantages))
    for t in reversed(range(advantages.shape[1])):
        step = earned[:, t] + gamma * next_value - expected[:, t] + gamma * lam * gain
        gain = torch.where(unmasked[:, t], step, gain)
        next_value = torch.where(unmasked[:, t], expected[:, t], next_value)
        advantages[:, t] = gain
    return masked(advantages, mask)


@dataclass(frozen=True)
class _Groups:
    """The groups of a batch: the index of each row's group [B], and the size of each group [G]."""

    index: Tensor
    counts: Tensor

    @classmethod
    def of(cls, group: Group) -> _Groups:
        import torch

        _, index, counts = torch.unique(group.data, return_inverse=True, return_counts=True)
        return cls(index, counts)

    def total(self, values: Tensor) -> Tensor:
        """Sum rows [B, ...] within each group: [G, ...]."""
        return values.new_zeros(len(self.counts), *values.shape[1:]).index_add(0, self.index, values)

    def range(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the lowest and the highest value of each group: [G]."""
        zeros = values.new_zeros(len(self.counts))
        low = zeros.scatter_reduce(0, self.index, values, "amin", include_self=False)
        return low, zeros.scatter_reduce(0, self.index, values, "amax", include_self=False)

    def centred(self, values: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return values minus the (weighted) mean of their group [B], and which groups have only equal values [G].

        A group of one, or without weight, has mean 0. The mean is of differences from the group's lowest value, so
        equal values become exactly 0: the rounding error of a mean, divided by a small deviation, would be a signal.
        """
        import torch

        weights = torch.ones_like(values) if weights is None else weights.to(values.dtype)
        low, high = self.range(values)
        above, total = values - low[self.index], self.total(weights)
        mean = self.total(weights * above) / torch.where(total > 0, total, 1.0)
        without_mean = ((self.counts == 1) | (total == 0))[self.index]
        return torch.where(without_mean, values, above - mean[self.index]), low == high

    def deviation(self, centred: Tensor) -> Tensor:
        """Return the sample deviation [G] of centred values; 1 for a group of one."""
        variance = self.total(centred**2) / (self.counts - 1).clamp(min=1)
        return variance.sqrt().masked_fill(self.counts == 1, 1.0)

    def leaders(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows with the highest and the second highest value of each group [G], earlier rows first.

        In a group of one both are the same row.
        """
        order = values.argsort(descending=True, stable=True)
        order = order[self.index[order].argsort(stable=True)]
        first = self.counts.cumsum(0) - self.counts
        return order[first], order[first + (self.counts > 1)]


def _as_floats(values: Tensor, data: Tensor) -> Tensor:
    import torch

    return values.to(data.dtype if data.is_floating_point() else torch.float32)


def _no_signal(flat: Tensor) -> Measure:
    return Measure("no_signal", float(flat.sum()), len(flat))
