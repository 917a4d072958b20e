"""Decoupled PPO: train on responses of weights up to four updates old, with a clip around the newest and a correction.

Source: Fu et al. 2025 (AReaL), arXiv 2505.24298, section 5.2; Hilton et al. 2021, arXiv 2110.00641. Deviation:
group advantages and no critic; weights are capped at 2; an entropy bonus, which keeps small models exploring.
"""

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
    importance_weights,
    logprobs,
    score,
    update,
)


@flow
def decoupled_ppo(prompts: Prompts, policy: Policy) -> Policy:
    """Train on responses of older weights, with a correction."""
    rollout = generate(stale(policy, at_most=4), prompts, n=16)
    advantages = group_normalize(score(rollout), rollout.group)
    proximal = logprobs(policy, rollout)
    weights = importance_weights(proximal, rollout.mask, behaviour=rollout.logprobs, cap=2.0)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=proximal, weights=weights, eps=0.2)
        return surrogate + 0.1 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss, minibatch=8)
