"""Rewards: what each token earns, made of a response's score, a KL penalty, and its length."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flowgraph import Measure, Metric, node
from flowgraph.errors import SettingError
from flowgraph.language.values import Lengths, Mask
from nodes.terms import masked
from nodes.values import KLWeight, Rewards, Scores, TokenKL


@node
def token_rewards(scores: Scores, mask: Mask) -> Rewards:
    """Give each response's score to the last of its tokens that the mask keeps, and 0 to the others.

    [B] scores to [B, T] rewards. A response without such a token earns nothing.
    """
    import torch

    kept = mask.data != 0
    last = kept & (kept.flip(1).cumsum(1).flip(1) == 1)
    earned = scores.data if scores.data.is_floating_point() else scores.data.float()
    return Rewards(torch.where(last, earned[:, None], 0.0))


@node(metrics=(Metric("kl_weight", about="factor of the KL that is taken from the rewards"),))
def kl_penalized(
    rewards: Rewards,
    kl: TokenKL,
    mask: Mask,
    *,
    beta: KLWeight | None = None,
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.05,
) -> Rewards:
    """Take from each token's reward its KL from the reference, times a factor: r - beta·KL.

    All [B, T], the KL in nats; 0 where the mask is 0. The factor is what `beta` carries from step to step if given,
    else `weight`.
    Source: Ziegler et al. 2019, arXiv 1909.08593, equation 2; token by token as in Ouyang et al. 2022, arXiv
    2203.02155, section 3.5.
    """
    factor = weight if beta is None else float(beta.data)
    return Rewards(masked(rewards.data - factor * kl.data, mask), [Measure("kl_weight", factor, 1)])


@node(metrics=(Metric("overlong", about="share of responses that lose score for their length"),))
def overlong_penalty(
    scores: Scores,
    lengths: Lengths,
    *,
    max_tokens: Annotated[int, Field(ge=1)],
    buffer: Annotated[int, Field(ge=1)],
    factor: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0,
) -> Scores:
    """Take from the scores of long responses: factor·(length - (max_tokens - buffer)) / buffer, at most `factor`.

    [B] scores to [B]; lengths and settings in tokens. Up to `max_tokens` - `buffer` nothing is taken, beyond
    `max_tokens` the whole `factor`. Raises `SettingError` where `buffer` is more than `max_tokens`.
    Source: Yu et al. 2025 (DAPO), arXiv 2503.14476, equation 13. verl's form goes on falling beyond `max_tokens`,
    which no response that was sampled with this limit reaches.
    """
    if buffer > max_tokens:
        raise SettingError.refused("overlong_penalty", "buffer", buffer, f"no more than max_tokens={max_tokens}")
    scored = scores.data if scores.data.is_floating_point() else scores.data.float()
    over = (lengths.data - (max_tokens - buffer)).clamp(0, buffer).to(scored.dtype)
    share = Measure("overlong", float((over > 0).sum()), len(over))
    return Scores(scored - over / buffer * factor, [share])
