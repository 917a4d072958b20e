"""Advantages: of responses against others to one prompt, a group, and of tokens against what a critic expected.

Rewards of tokens are in `rewards`, normalising over the whole batch is in `whitening`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import Field

from flowgraph import By, Corrects, Measure, Metric, Rows, node
from flowgraph.errors import LawError
from flowgraph.language.values import Group, Mask, Tokens
from nodes.terms import masked
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
SIGNAL = (Metric("no_signal", about="share of groups whose responses all score the same"),)
AS_GREEDY = (Metric("no_signal", about="share of groups whose responses all score as the greedy one does"),)
NO_ENERGY = 1e-8  # added to a sum of energies, so that a baseline over none is 0; as verl has it


# ------------------------------------------------------------------------------------------- one for each response


@node(kind="advantage", metrics=SIGNAL)
def group_normalize(
    scores: Scores, group: Group, *, deviation: bool = True, eps: Annotated[float, Field(gt=0)] = 1e-6
) -> Advantages:
    """Normalise scores within each group: (score - mean) / (sample deviation + eps), or without the deviation.

    [B] scores to [B] advantages. A group of one keeps its score (mean 0, deviation 1); equal scores give exactly 0.
    Source: Shao et al. 2024 (GRPO), arXiv 2402.03300, section 4.1.2; without deviation: Liu et al. 2025 (Dr. GRPO),
    arXiv 2503.20783.
    """
    groups = _Groups.of(group)
    centred, flat = groups.centred(scores.data.double())
    given = centred / (groups.deviation(centred)[groups.index] + eps) if deviation else centred
    return Advantages(_as(given, scores.data), [_no_signal(flat)])


@node(kind="advantage", separable=False, metrics=(*SIGNAL, Metric("alpha", about="B / rows with a score")))
def gpg_advantages(scores: Scores, group: Group) -> Advantages:
    """Centre scores within each group and scale by alpha = rows / max(1, rows whose score is not 0) of the batch.

    [B] scores to [B] advantages; a group of one is not centred.
    Source: Chu et al. 2025 (GPG), arXiv 2504.02546, equation 7, with its normaliser 1. Deviation: alpha as verl has it.
    The paper leaves out of its count the rows of groups whose scores are all alike, right or wrong; here it is the rows
    whose score is 0, so that alpha is 1 / accuracy where scores are 0 and 1, and 1 where none is 0.
    """
    groups = _Groups.of(group)
    centred, flat = groups.centred(scores.data.double())
    alpha = len(centred) / max(1, int((scores.data != 0).sum()))
    return Advantages(_as(alpha * centred, scores.data), [_no_signal(flat), Measure("alpha", alpha, 1)])


@node(kind="advantage", metrics=SIGNAL)
def rloo_advantages(scores: Scores, group: Group) -> Advantages:
    """Compare each score with the mean of the others in its group: score - mean of the n - 1 others.

    [B] scores to [B] advantages; equal scores give exactly 0. A group of one has no others and gives 0; versions of
    verl differ here: the one with loops gives the score itself, the vectorised one 0.
    Source: Ahmadian et al. 2024 (RLOO), arXiv 2402.14740, section 3.3; Kool et al. 2019.
    """
    groups = _Groups.of(group)
    centred, flat = groups.centred(scores.data.double())
    counts = groups.counts[groups.index]
    given = (centred * counts / (counts - 1).clamp(min=1)).masked_fill(counts == 1, 0.0)
    return Advantages(_as(given, scores.data), [_no_signal(flat)])


@node(kind="advantage", metrics=SIGNAL)
def opo_advantages(scores: Scores, group: Group, mask: Mask) -> Advantages:
    """Compare each score with the mean of its group weighted by length: score - Σ length·score / Σ length.

    [B] scores to [B] advantages; a length is the tokens that the mask [B, T] keeps. Equal scores give exactly 0. The
    baseline is 0 in a group of one, and where no response of a group has a token.
    Source: Hao et al. 2025 (OPO), arXiv 2505.23585, section 3.2.
    """
    centred, flat = _Groups.of(group).centred(scores.data.double(), (mask.data != 0).sum(1))
    return Advantages(_as(centred, scores.data), [_no_signal(flat)])


@node(kind="advantage", metrics=SIGNAL)
def pass_at_k_advantages(
    scores: Scores, group: Group, *, deviation: bool = True, eps: Annotated[float, Field(gt=0)] = 1e-6
) -> Advantages:
    """Give only the best response of each group an advantage: (best - second) / (sample deviation + eps).

    [B] scores to [B] advantages, all others 0; so also where two are the best. A group of one gives 0.
    Source: Tang et al. 2025, arXiv 2503.19595; the deviation as verl's `grpo_passk` has it.
    Deviation: verl refuses a group of one.
    """
    import torch

    groups, values = _Groups.of(group), scores.data.double()
    best, second = groups.leaders(values)
    centred, flat = groups.centred(values)
    ahead = values[best] - values[second]
    given = ahead / (groups.deviation(centred) + eps) if deviation else ahead
    return Advantages(_as(torch.zeros_like(values).index_put((best,), given), scores.data), [_no_signal(flat)])


@node(kind="advantage", metrics=AS_GREEDY)
def greedy_baseline(
    scores: Scores,
    group: Group,
    *,
    greedy: Annotated[Scores, Rows.OTHER],
    greedy_group: Annotated[Group, Rows.OTHER],
) -> Advantages:
    """Compare each score with that of a greedy response to the same prompt.

    [B] scores to [B] advantages; the greedy scores [P] are found by their prompt, in any order, and averaged where a
    prompt has several. Raises `LawError` for a prompt without a greedy response.
    Source: Li et al. 2023 (ReMax), arXiv 2310.10505, algorithm 1.
    """
    import torch

    there, index = torch.unique(greedy_group.data, return_inverse=True)
    missing = torch.unique(group.data[~torch.isin(group.data, there)]).tolist()
    if missing:
        named = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        raise LawError.not_aligned("scores", "greedy", f"no greedy response answers prompt {named}")
    sums = torch.zeros(len(there), dtype=torch.float64).index_add(0, index, greedy.data.double())
    baseline = sums / torch.bincount(index, minlength=len(there))
    given = scores.data.double() - baseline[torch.searchsorted(there, group.data)]
    groups = _Groups.of(group)
    return Advantages(_as(given, scores.data), [_no_signal(groups.total((given != 0).double()) == 0)])


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
) -> A:
    """Add to each advantage A the response's mean entropy H, held within |A| / bound: A + weight·clip(H, ±|A| / bound).

    [B] or [B, T] advantages to the same; H in nats, of the policy that drew the tokens, over those that the mask keeps.
    With `between` it is over those strictly between two token ids, as of `<think>` and `</think>`: from the first
    opening one to the next closing one. A response without such tokens, or that never closes, keeps its advantage,
    and so does one without a token; an advantage of 0 stays 0, and with `weight` ≤ `bound` none changes its sign.
    Source: Hao et al. 2025 (EGPO), arXiv 2508.05118.
    """
    import torch

    kept = mask.data != 0
    counted = kept if between is None else _inside(tokens.data, kept, *between)
    mean = entropy.data.masked_fill(~counted, 0.0).sum(1) / counted.sum(1).clamp(min=1)
    given, mean = advantages.data, mean.to(advantages.data.dtype)
    if isinstance(advantages, TokenAdvantages):
        given, mean = masked(given, mask), mean[:, None]
    most = given.abs() / bound
    return type(advantages)(given + weight * torch.clamp(mean, -most, most))


# ------------------------------------------------------------------------------------------- one for each token


@node(kind="advantage")
def gae(
    rewards: Rewards,
    values: Values,
    mask: Mask,
    *,
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0,
    lam: Annotated[float, Field(ge=0, le=1)] = 0.95,
) -> tuple[TokenAdvantages, Returns]:
    """Estimate advantages A_t = δ_t + γλ·A_{t+1} from what a critic expected, δ_t = r_t + γ·V_{t+1} - V_t, and A + V.

    All [B, T]. "t+1" is the next token that the mask keeps: A and V are carried unchanged through tokens of tools, and
    are 0 after the last. What a masked token earns does not count; there both results are 0. Not whitened: `whiten`.
    Source: Schulman et al. 2015 (GAE), arXiv 1506.02438, equations 11 and 16.
    """
    expected = masked(values.data, mask)
    given = _backward(masked(rewards.data, mask), expected, mask, gamma, lam)
    return TokenAdvantages(given), Returns(given + expected)


@node(kind="advantage")
def discounted_returns(
    rewards: Rewards, mask: Mask, *, gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
) -> TokenAdvantages:
    """Give each token what is earned from there on: G_t = r_t + γ·G_{t+1}.

    [B, T] to [B, T]. "t+1" is the next token that the mask keeps: the return is carried unchanged through tokens of
    tools, where it is 0 itself. Versions of verl before 2026 began again at each masked token instead, so that nothing
    earned after a tool's answer reached what was written before it. REINFORCE++ is this and `whiten`.
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
) -> TokenAdvantages:
    """Compare what each token still earns, G_t, with the mean of its group weighted by energy: Σ G_t·W_t / Σ W_t.

    All [B, T]. W_t is the sum up to t of 1 - 2π + Σπ², a proxy of the squared gradient at a token of probability π,
    times the squared importance weight if given. π, of `old`, and Σπ², of `squares`, are of one model at one version:
    that which drew the rows, or with `weights` that which they correct to. The t-th tokens are those that the mask
    keeps, counted: masked tokens change nothing, and give 0. Where one response outlasts all others of its group the
    baseline would be its own return; with `zero_tail` it is 0 there, else the advantage. It is 0 too where no other
    response has a token, so in a group of one, and where the energies sum to 0.
    Source: Li et al. 2026 (OTB), arXiv 2602.07078; tail and alignment as verl's `tir_optimal_token_baseline` has them.
    Deviation: rounding below 0 in 1 - 2π + Σπ² is 0. verl's other estimator counts masked tokens into t, as columns.
    """
    kept, groups = mask.data != 0, _Groups.of(group)
    earned = masked(rewards.data.double(), mask)
    energy = 1 - 2 * old.data.double().exp() + squares.data.double()
    factor = 1.0 if weights is None else weights.data.double() ** 2
    energy = masked(energy.clamp(min=0) * factor, mask).cumsum(1)
    returns, energy = earned.flip(1).cumsum(1).flip(1), masked(energy, mask)
    place, lengths = (kept.cumsum(1) - 1).clamp(min=0), kept.sum(1)
    nothing = energy.new_zeros(energy.shape)
    shares = [groups.total(nothing.scatter_add(1, place, each)) for each in (returns * energy, energy)]
    baseline = (shares[0] / (shares[1] + NO_ENERGY))[groups.index].gather(1, place)
    alone = groups.total((lengths > 0).double())[groups.index] < 2
    baseline = baseline.masked_fill(alone[:, None], 0.0)
    if zero_tail:
        _, second = groups.leaders(lengths)
        baseline = baseline.masked_fill(place >= lengths[second][groups.index][:, None], 0.0)
    low, high = groups.range(earned.sum(1))
    given = masked(returns - baseline, mask)
    return TokenAdvantages(_as(given, rewards.data), [_no_signal(low == high)])


def _backward(earned: Tensor, expected: Tensor, mask: Mask, gamma: float, lam: float) -> Tensor:
    """Go back through the columns of [B, T]; a masked token is 0 and hands on what comes after it."""
    import torch

    kept = mask.data != 0
    given = torch.zeros_like(earned + expected)
    ahead = gain = given.new_zeros(len(given))
    for t in reversed(range(given.shape[1])):
        step = earned[:, t] + gamma * ahead - expected[:, t] + gamma * lam * gain
        gain, ahead = torch.where(kept[:, t], step, gain), torch.where(kept[:, t], expected[:, t], ahead)
        given[:, t] = gain
    return masked(given, mask)


def _inside(tokens: Tensor, kept: Tensor, opening: int, closing: int) -> Tensor:
    """Say which kept tokens [B, T] stand between a row's first opening one and the closing one after it."""
    opened = ((tokens == opening) & kept).cumsum(1) > 0
    after = opened & (opened.cumsum(1) > 1)
    closed = ((tokens == closing) & kept & after).cumsum(1) > 0
    return after & kept & ~closed & closed.any(1, keepdim=True)


@dataclass(frozen=True)
class _Groups:
    """The groups of a batch: each row's place among them [B], and the size of each [G]."""

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
        """Give the lowest and the highest value of each group: [G]."""
        none = values.new_zeros(len(self.counts))
        low = none.scatter_reduce(0, self.index, values, "amin", include_self=False)
        return low, none.scatter_reduce(0, self.index, values, "amax", include_self=False)

    def centred(self, values: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Give values less the (weighted) mean of their group [B], and which groups have but one value [G].

        A group of one, and one of no weight, has mean 0. Values are taken from the lowest of their group on, so that
        equal ones give exactly 0: the rounding of a mean, divided by a small deviation, would be a signal.
        """
        import torch

        weights = torch.ones_like(values) if weights is None else weights.to(values.dtype)
        low, high = self.range(values)
        above, whole = values - low[self.index], self.total(weights)
        mean = self.total(weights * above) / torch.where(whole > 0, whole, 1.0)
        bare = ((self.counts == 1) | (whole == 0))[self.index]
        return torch.where(bare, values, above - mean[self.index]), low == high

    def deviation(self, centred: Tensor) -> Tensor:
        """Give the sample deviation [G] of centred values; 1 for a group of one."""
        variance = self.total(centred**2) / (self.counts - 1).clamp(min=1)
        return variance.sqrt().masked_fill(self.counts == 1, 1.0)

    def leaders(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Give the rows [G] with the highest value of each group and the next, the first of equals before the others.

        In a group of one both are the same row.
        """
        order = values.argsort(descending=True, stable=True)
        order = order[self.index[order].argsort(stable=True)]
        first = self.counts.cumsum(0) - self.counts
        return order[first], order[first + (self.counts > 1)]


def _as(given: Tensor, data: Tensor) -> Tensor:
    """Give numbers in the dtype of what they come from; of whole numbers and booleans come float32."""
    import torch

    return given.to(data.dtype if data.is_floating_point() else torch.float32)


def _no_signal(flat: Tensor) -> Measure:
    return Measure("no_signal", float(flat.sum()), len(flat))
