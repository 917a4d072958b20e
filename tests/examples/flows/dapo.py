"""DAPO: dynamic sampling until the batch is full of groups with signal, clip-higher, a mean over tokens.

Source: Yu et al. 2025, arXiv 2503.14476. Deviation: no penalty for overlong responses; sampling is bounded.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import Policy, Prompts, clipped, group_normalize, logprobs, update
from nodes.refill import refill


@flow
def dapo(prompts: Prompts, policy: Policy) -> Policy:
    """Decoupled clip and dynamic sampling."""
    rollout = refill(policy, prompts, groups=4, rounds=3, n=4)
    advantages = group_normalize(rollout.scores, rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs, eps=0.2, eps_high=0.28)

    return update(policy, loss)
