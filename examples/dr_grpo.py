"""Dr. GRPO: GRPO without division by the deviation of a group or by the length of a response.

Source: Liu et al. 2025, arXiv 2503.20783, section 3.2. The sum over tokens is divided by a constant, the maximum
length of a response. Deviation: an entropy bonus, which keeps small models exploring.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import Policy, Prompts, clipped, entropy, entropy_bonus, generate, group_normalize, logprobs, score, update


@flow
def dr_grpo(prompts: Prompts, policy: Policy, *, max_tokens: int = 16) -> Policy:
    """Train by GRPO without dividing by deviation or length."""
    rollout = generate(policy, prompts, n=16, max_tokens=max_tokens)
    advantages = group_normalize(score(rollout), rollout.group, deviation=False)

    def loss(pi: Policy) -> Loss:
        surrogate = clipped(
            logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs, aggregation=max_tokens
        )
        return surrogate + 0.03 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss, minibatch=8)
