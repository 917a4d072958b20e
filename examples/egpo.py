"""EGPO: responses earn more if the policy was uncertain, measured by its entropy when it generated them.

Source: arXiv 2508.05118, equations 4 and 5. `between` names the tokens around the chain of thought, whose entropy
counts; here all tokens count. Deviation: an entropy bonus, which keeps small models exploring.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import (
    Policy,
    Prompts,
    clipped,
    entropy,
    entropy_bonus,
    entropy_shaped,
    generate,
    group_normalize,
    logprobs,
    score,
    update,
)


@flow
def egpo(prompts: Prompts, policy: Policy) -> Policy:
    """Train by GRPO; the policy's entropy shapes advantages."""
    rollout = generate(policy, prompts, n=16)
    scored = group_normalize(score(rollout), rollout.group)
    advantages = entropy_shaped(scored, entropy(policy, rollout), rollout.mask, rollout.tokens)

    def loss(pi: Policy) -> Loss:
        surrogate = clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.1 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss, minibatch=8)
