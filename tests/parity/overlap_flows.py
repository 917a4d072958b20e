"""A user's own file: a flow whose sampling and whose scores take a while, so that it shows when both run at once."""

from __future__ import annotations

import time
from typing import Annotated

from pydantic import Field

from flowgraph import Loss, flow, node, stale
from flowgraph.language import Key
from nodes import (
    LanguageModel,
    Policy,
    Prompts,
    Reference,
    Rollout,
    Scores,
    clipped,
    generate,
    group_normalize,
    logprobs,
    update,
)
from nodes.sampling import METRICS


@node(kind="generate", metrics=METRICS)
def slowly(
    policy: LanguageModel, prompts: Prompts, *, seconds: Annotated[float, Field(ge=0)] = 0.6, key: Key = Key()
) -> Rollout:
    """Sample after a while."""
    time.sleep(seconds)
    return generate(policy, prompts, n=2, max_tokens=3, key=key)


@node(kind="score")
def judged(model: Reference, rollout: Rollout, *, seconds: Annotated[float, Field(ge=0)] = 0.6) -> Scores:
    """Score responses by their first token, after a while."""
    time.sleep(seconds)
    return Scores((rollout.tokens.data[:, 0] % 7).float())


@flow
def two_pools(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Sample on one pool, and judge and train on another."""
    rollout = slowly(stale(policy, at_most=2), prompts)
    advantages = group_normalize(judged(ref, rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs, eps=0.2)

    return update(policy, loss, lr=0.1, optimizer="sgd")
