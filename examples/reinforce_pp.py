"""REINFORCE++: no critic and no groups; the return of each token, whitened over the batch, in a clipped surrogate.

Source: Hu et al. 2025, arXiv 2501.03262, section 3. The KL to the reference is subtracted from the reward of each
token. Deviation: 16 responses per prompt, to compare runs with the others here; the paper samples one.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import (
    Policy,
    Prompts,
    Reference,
    clipped,
    discounted_returns,
    generate,
    kl_estimate,
    kl_penalized,
    logprobs,
    score,
    token_rewards,
    update,
    whiten,
)


@flow
def reinforce_pp(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Train on returns whitened over a batch, without a critic."""
    rollout = generate(policy, prompts, n=16)
    kl = kl_estimate(rollout.logprobs, rollout.mask, ref=logprobs(ref, rollout))
    rewards = kl_penalized(token_rewards(score(rollout), rollout.mask), kl, rollout.mask, weight=0.02)
    advantages = whiten(discounted_returns(rewards, rollout.mask), rollout.mask)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs, eps=0.2)

    return update(policy, loss, minibatch=8)
