"""Decoupled PPO without its importance weights: the same stale responses and the same clip, nothing corrected."""

from __future__ import annotations

from flowgraph import Loss, flow, stale
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
)


@flow
def uncorrected(prompts: Prompts, policy: Policy) -> Policy:
    """Train on responses of older weights as if the newest had sampled them."""
    rollout = generate(stale(policy, at_most=8, corrected=False), prompts, n=16)
    advantages = group_normalize(score(rollout), rollout.group)
    proximal = logprobs(policy, rollout)

    def loss(pi: Policy) -> Loss:
        surrogate = clipped(logprobs(pi, rollout), advantages, rollout.mask, old=proximal, eps=0.2)
        return surrogate + 0.1 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss, minibatch=8)
