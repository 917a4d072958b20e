"""GDPO: several rewards, each normalised in its group before they are added, then whitened over the batch.

Source: Liu et al. 2026, arXiv 2601.05242. Deviation: an entropy bonus, which keeps small models exploring.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import (
    Policy,
    Prompts,
    clipped,
    entropy,
    entropy_bonus,
    generate,
    group_normalize,
    logprobs,
    score,
    update,
    whiten,
)


@flow
def gdpo(prompts: Prompts, policy: Policy) -> Policy:
    """Train by GRPO on several rewards, normalised separately."""
    rollout = generate(policy, prompts, n=16)
    right = group_normalize(score(rollout), rollout.group)
    near = group_normalize(score(rollout, by="partial"), rollout.group)
    advantages = whiten(0.7 * right + 0.3 * near, rollout.mask)

    def loss(pi: Policy) -> Loss:
        surrogate = clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.1 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss, minibatch=8)
