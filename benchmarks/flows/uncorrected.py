"""Decoupled PPO without what makes it right: the same stale responses, plain policy gradient, nothing corrected."""

from __future__ import annotations

from flowgraph import Loss, flow, stale
from nodes import (
    Policy,
    Prompts,
    entropy,
    entropy_bonus,
    generate,
    group_normalize,
    logprobs,
    policy_gradient,
    score,
    update,
)


@flow
def uncorrected(prompts: Prompts, policy: Policy) -> Policy:
    """Train on responses of older weights as if the newest had drawn them."""
    rollout = generate(stale(policy, at_most=8, corrected=False), prompts, n=16)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        surrogate = policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)
        return surrogate + 0.1 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss, minibatch=8)
