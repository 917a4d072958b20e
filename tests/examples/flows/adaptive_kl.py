"""REINFORCE++ with a KL weight that adapts: it is state, carried from step to step, and starts from a default."""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import (
    KLWeight,
    Policy,
    Prompts,
    Reference,
    adaptive_kl,
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
def adaptive(
    prompts: Prompts, policy: Policy, ref: Reference, beta: KLWeight = KLWeight(0.05)
) -> tuple[Policy, KLWeight]:
    """Take a KL off the reward whose weight follows a target."""
    rollout = generate(policy, prompts, n=4, max_tokens=4)
    kl = kl_estimate(rollout.logprobs, rollout.mask, ref=logprobs(ref, rollout))
    rewards = kl_penalized(token_rewards(score(rollout), rollout.mask), kl, rollout.mask, beta=beta)
    advantages = whiten(discounted_returns(rewards, rollout.mask), rollout.mask)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return update(policy, loss), adaptive_kl(beta, kl, rollout.mask, target=0.1, horizon=100)
