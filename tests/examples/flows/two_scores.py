"""GRPO on a weighted sum of two scores: of each position, and of the whole answer."""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import Policy, Prompts, clipped, generate, group_normalize, logprobs, score, update


@flow
def two_scores(prompts: Prompts, policy: Policy) -> Policy:
    """Learn from 0.7 of one score and 0.3 of another."""
    rollout = generate(policy, prompts, n=8)
    scores = 0.7 * score(rollout, by="partial") + 0.3 * score(rollout, by="exact")
    advantages = group_normalize(scores, rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return update(policy, loss)
