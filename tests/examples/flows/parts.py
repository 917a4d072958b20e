"""A flow that calls another as a part, and flows with parameters of their own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flowgraph import Loss, flow
from nodes import (
    Policy,
    Prompts,
    Rollout,
    Scores,
    clipped,
    generate,
    gpg_advantages,
    group_normalize,
    logprobs,
    policy_gradient,
    score,
    update,
)

Samples = Annotated[int, Field(ge=1, le=64)]


@flow
def attempts(prompts: Prompts, policy: Policy, *, n: Samples = 8, by: str = "data") -> tuple[Rollout, Scores]:
    """Sample and score: the part that both flows share."""
    rollout = generate(policy, prompts, n=n)
    return rollout, score(rollout, by=by)


@flow
def by_clip(
    prompts: Prompts, policy: Policy, *, n: Samples = 4, eps: Annotated[float, Field(gt=0, lt=1)] = 0.2
) -> Policy:
    """Clipped surrogate on the shared part."""
    rollout, scores = attempts(prompts, policy, n=n, by="partial")
    advantages = group_normalize(scores, rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs, eps=eps)

    return update(policy, loss)


@flow
def by_gradient(prompts: Prompts, policy: Policy) -> Policy:
    """Plain policy gradient on the shared part."""
    rollout, scores = attempts(prompts, policy)
    advantages = gpg_advantages(scores, rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(policy, loss)
