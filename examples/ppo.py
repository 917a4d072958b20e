"""PPO with a critic: whitened GAE advantages; the KL to a reference is subtracted from the reward of each token.

Source: Schulman et al. 2017, arXiv 1707.06347, and Ouyang et al. 2022 (InstructGPT), arXiv 2203.02155, section 3.5,
for the KL in the reward. Deviation: a fixed weight of the KL (`adaptive_kl` carries an adaptive one), two optimizer
steps per batch.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import (
    Critic,
    Policy,
    Prompts,
    Reference,
    clipped,
    critic_values,
    gae,
    generate,
    kl_estimate,
    kl_penalized,
    logprobs,
    score,
    token_rewards,
    update,
    value_loss,
    whiten,
)


@flow
def ppo(prompts: Prompts, policy: Policy, critic: Critic, ref: Reference) -> tuple[Policy, Critic]:
    """Train with a critic, a clip, and a KL in the reward."""
    rollout = generate(policy, prompts, n=16)
    kl = kl_estimate(rollout.logprobs, rollout.mask, ref=logprobs(ref, rollout))
    rewards = kl_penalized(token_rewards(score(rollout), rollout.mask), kl, rollout.mask, weight=0.02)
    old_values = critic_values(critic, rollout)
    advantages, returns = gae(rewards, old_values, rollout.mask, gamma=1.0, lam=0.95)
    whitened = whiten(advantages, rollout.mask)

    def policy_loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), whitened, rollout.mask, old=rollout.logprobs, eps=0.2)

    def critic_loss(v: Critic) -> Loss:
        return value_loss(critic_values(v, rollout), returns, rollout.mask, old=old_values, clip=0.2)

    return update(policy, policy_loss, minibatch=8), update(critic, critic_loss, minibatch=8)
