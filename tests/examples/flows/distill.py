"""Distillation: on the student's own responses, towards a teacher alone or beside a score; or on what a teacher wrote.

Source: Agarwal et al. 2024 (GKD), arXiv 2306.13649, on-policy with the reverse KL. Deviation: the k3 estimate of it,
from the tokens drawn.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flowgraph import Loss, Mask, flow, node
from flowgraph.language import By
from nodes import (
    LogProbs,
    Policy,
    Prompts,
    Reference,
    clipped,
    generate,
    group_normalize,
    kl_k3,
    logprobs,
    score,
    update,
)


@flow
def distill(prompts: Prompts, policy: Policy, teacher: Reference) -> Policy:
    """Draw responses and move their log-probs to the teacher's."""
    rollout = generate(policy, prompts, n=4)
    taught = logprobs(teacher, rollout)

    def loss(pi: Policy) -> Loss:
        return kl_k3(logprobs(pi, rollout), rollout.mask, ref=taught)

    return update(policy, loss)


@node
def likely(new: Annotated[LogProbs, By.TRAINED], mask: Mask) -> Loss:
    """Return minus the log-prob of each token."""
    return Loss.of(-new.data.masked_fill(mask.data == 0, 0.0), mask)


@flow
def learn_from(prompts: Prompts, policy: Policy, teacher: Reference) -> Policy:
    """Let a frozen teacher write, and learn what it wrote."""
    rollout = generate(teacher, prompts, n=4)

    def loss(pi: Policy) -> Loss:
        return likely(logprobs(pi, rollout), rollout.mask)

    return update(policy, loss)


@flow
def distill_and_score(
    prompts: Prompts, policy: Policy, teacher: Reference, *, weight: Annotated[float, Field(ge=0)] = 0.5
) -> Policy:
    """Learn from scores, and by `weight` from a teacher."""
    rollout = generate(policy, prompts, n=4)
    advantages, taught = group_normalize(score(rollout), rollout.group), logprobs(teacher, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + weight * kl_k3(new, rollout.mask, ref=taught)

    return update(policy, loss)
