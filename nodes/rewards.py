"""Rewards of tokens, from a response's score, a KL penalty, and its length."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flowgraph import Metric, node
from flowgraph.errors import SettingError
from flowgraph.language import Measure, NodeName
from flowgraph.language.values import Group, Lengths, Mask
from nodes.losses.terms import masked
from nodes.scoring import OF_SCORES, measures_of
from nodes.values import KLWeight, Rewards, Scores, TokenKL


@node(kind="score", metrics=OF_SCORES)
def total(scores: Scores, group: Group, *, name: NodeName = "") -> Scores:
    """Return scores [B] as they are, and report their mean and best as `score` does.

    It shows what is trained on where several scores are combined, each under a name of its own:
    `total(0.7 * score(r, by=exact, name="exact") + 0.3 * score(r, by=brief, name="brief"), r.group)`.
    """
    return Scores(scores.data, measures_of(scores.data, group.data))


@node
def token_rewards(scores: Scores, mask: Mask, *, name: NodeName = "") -> Rewards:
    """Return rewards of tokens: the last token of a response that the mask keeps gets its score, all others get 0.

    Scores [B] become rewards [B, T]. The score of a response without such a token is lost.
    """
    import torch

    unmasked = mask.data != 0
    last = unmasked & (unmasked.flip(1).cumsum(1).flip(1) == 1)
    floats = scores.data if scores.data.is_floating_point() else scores.data.float()
    return Rewards(torch.where(last, floats[:, None], 0.0))


@node(metrics=(Metric("kl_weight", about="factor of the KL that is subtracted from the rewards"),))
def kl_penalized(
    rewards: Rewards,
    kl: TokenKL,
    mask: Mask,
    *,
    beta: KLWeight | None = None,
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.05,
    name: NodeName = "",
) -> Rewards:
    """Return each token's reward minus its KL from the reference, times a factor: r - beta·KL.

    All are [B, T], the KL in nats; the result is 0 where the mask is 0. The factor is the coefficient `beta` that is
    carried from step to step, or else `weight`.
    Source: Ziegler et al. 2019, arXiv 1909.08593, equation 2; token by token as in Ouyang et al. 2022, arXiv
    2203.02155, section 3.5.
    """
    factor = weight if beta is None else float(beta.data)
    return Rewards(masked(rewards.data - factor * kl.data, mask), [Measure("kl_weight", factor, 1)])


@node(metrics=(Metric("overlong", about="share of responses whose score is reduced for their length"),))
def overlong_penalty(
    scores: Scores,
    lengths: Lengths,
    *,
    max_tokens: Annotated[int, Field(ge=1)],
    buffer: Annotated[int, Field(ge=1)],
    factor: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0,
    name: NodeName = "",
) -> Scores:
    """Return scores minus a length penalty: factor·(length - (max_tokens - buffer)) / buffer, from 0 up to factor.

    Scores are [B]; lengths, `max_tokens` and `buffer` are in tokens. The penalty starts at `max_tokens` - `buffer`
    tokens, and is `factor` from `max_tokens` on. Raises `SettingError` if `buffer` is more than `max_tokens`.
    Source: Yu et al. 2025 (DAPO), arXiv 2503.14476, equation 13. verl's penalty grows further beyond `max_tokens`,
    which no response sampled with this limit reaches.
    """
    if buffer > max_tokens:
        raise SettingError.refused("overlong_penalty", "buffer", buffer, f"no more than max_tokens={max_tokens}")
    floats = scores.data if scores.data.is_floating_point() else scores.data.float()
    over = (lengths.data - (max_tokens - buffer)).clamp(0, buffer).to(floats.dtype)
    share = Measure("overlong", float((over > 0).sum()), len(over))
    return Scores(floats - over / buffer * factor, [share])
