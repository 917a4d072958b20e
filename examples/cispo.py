"""CISPO: clip the importance weight instead of the surrogate, so that every token keeps a gradient.

Source: MiniMax 2025, arXiv 2506.13585, equations 4 and 5. Deviation: an entropy bonus, which keeps small models
exploring.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import (
    Policy,
    Prompts,
    cispo_loss,
    entropy,
    entropy_bonus,
    generate,
    group_normalize,
    logprobs,
    score,
    update,
)


@flow
def cispo(prompts: Prompts, policy: Policy) -> Policy:
    """Clip importance weights; every token keeps a gradient."""
    rollout = generate(policy, prompts, n=16)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        surrogate = cispo_loss(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.1 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss, minibatch=8)
