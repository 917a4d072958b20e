"""PPO of four models: policy, critic, reference, and a reward model. Every worker imports it by this file's path."""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import (
    Critic,
    Policy,
    Prompts,
    Reference,
    RewardModel,
    clipped,
    critic_values,
    gae,
    generate,
    kl_estimate,
    kl_penalized,
    logprobs,
    reward,
    token_rewards,
    update,
    value_loss,
    whiten,
)


@flow
def rewarded(
    prompts: Prompts, policy: Policy, critic: Critic, ref: Reference, judge: RewardModel
) -> tuple[Policy, Critic]:
    """Train as PPO does, on the scores of a reward model."""
    rollout = generate(policy, prompts)
    kl = kl_estimate(rollout.logprobs, rollout.mask, ref=logprobs(ref, rollout))
    rewards = kl_penalized(token_rewards(reward(judge, rollout), rollout.mask), kl, rollout.mask, weight=0.02)
    old_values = critic_values(critic, rollout)
    advantages, returns = gae(rewards, old_values, rollout.mask, gamma=1.0, lam=0.95)
    whitened = whiten(advantages, rollout.mask)

    def policy_loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), whitened, rollout.mask, old=rollout.logprobs, eps=0.2)

    def critic_loss(v: Critic) -> Loss:
        return value_loss(critic_values(v, rollout), returns, rollout.mask, old=old_values, clip=0.2)

    return update(policy, policy_loss), update(critic, critic_loss)
