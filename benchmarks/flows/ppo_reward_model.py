"""PPO with a reward model: the four models of RLHF, and so five roles to place; what the search is timed on."""

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
def ppo_reward_model(
    prompts: Prompts, policy: Policy, critic: Critic, ref: Reference, rm: RewardModel
) -> tuple[Policy, Critic]:
    """Clipped surrogate with a critic, a reward model, and the KL in the reward."""
    rollout = generate(policy, prompts, n=1)
    kl = kl_estimate(rollout.logprobs, rollout.mask, ref=logprobs(ref, rollout))
    rewards = kl_penalized(token_rewards(reward(rm, rollout), rollout.mask), kl, rollout.mask, weight=0.02)
    old_values = critic_values(critic, rollout)
    advantages, returns = gae(rewards, old_values, rollout.mask, gamma=1.0, lam=0.95)
    whitened = whiten(advantages, rollout.mask)

    def policy_loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), whitened, rollout.mask, old=rollout.logprobs, eps=0.2)

    def critic_loss(v: Critic) -> Loss:
        return value_loss(critic_values(v, rollout), returns, rollout.mask, old=old_values, clip=0.2)

    return update(policy, policy_loss), update(critic, critic_loss)
