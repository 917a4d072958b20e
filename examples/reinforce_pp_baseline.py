"""REINFORCE++ with a baseline: scores centred in their group, then whitened over the tokens of the whole batch.

Source: Hu et al. 2025, arXiv 2501.03262, section 3, the variant for several responses per prompt. Deviation: an
entropy bonus, which keeps small models exploring.
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
def reinforce_pp_baseline(prompts: Prompts, policy: Policy) -> Policy:
    """Train by REINFORCE++ with the group's mean as baseline."""
    rollout = generate(policy, prompts, n=16)
    advantages = whiten(group_normalize(score(rollout), rollout.group, deviation=False), rollout.mask)

    def loss(pi: Policy) -> Loss:
        surrogate = clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs, eps=0.2)
        return surrogate + 0.1 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss, minibatch=8)
