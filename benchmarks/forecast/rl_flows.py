"""The flows that published runs are of: how old weights may be, and whether the trainer reads log-probs of its own.

Not here: which run is of which flow, and its numbers (`rl_rows`).
"""

from __future__ import annotations

from flowgraph import Loss, flow, stale
from nodes import (
    Critic,
    Policy,
    Prompts,
    Reference,
    clipped,
    critic_values,
    gae,
    generate,
    group_normalize,
    importance_weights,
    kl_estimate,
    kl_k3,
    kl_penalized,
    logprobs,
    score,
    token_rewards,
    update,
    value_loss,
)


@flow
def grpo(
    prompts: Prompts, policy: Policy, ref: Reference, *, samples: int = 16, lag: int = 0, read_again: bool = True
) -> Policy:
    """GRPO with a reference; the clipped ratio is to the trainer's own log-probs, or to the sampler's."""
    rollout = generate(stale(policy, at_most=lag), prompts, n=samples)
    advantages = group_normalize(score(rollout), rollout.group)
    reference = logprobs(ref, rollout)
    old = logprobs(policy, rollout) if read_again else rollout.logprobs
    weights = importance_weights(old, rollout.mask, behaviour=rollout.logprobs, cap=2.0) if read_again else None

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=old, weights=weights, eps=0.2)
        return surrogate + 0.01 * kl_k3(new, rollout.mask, ref=reference)

    return update(policy, loss)


@flow
def dapo(prompts: Prompts, policy: Policy, *, samples: int = 16, lag: int = 0, read_again: bool = True) -> Policy:
    """DAPO without a reference and without drawing anew; the clipped ratio is as GRPO's here."""
    rollout = generate(stale(policy, at_most=lag), prompts, n=samples)
    advantages = group_normalize(score(rollout), rollout.group)
    old = logprobs(policy, rollout) if read_again else rollout.logprobs
    weights = importance_weights(old, rollout.mask, behaviour=rollout.logprobs, cap=2.0) if read_again else None

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        return clipped(new, advantages, rollout.mask, old=old, weights=weights, eps=0.2, eps_high=0.28)

    return update(policy, loss)


@flow
def ppo(prompts: Prompts, policy: Policy, critic: Critic, ref: Reference, *, lag: int = 0) -> tuple[Policy, Critic]:
    """PPO with a critic and a reward by rule."""
    rollout = generate(stale(policy, at_most=lag), prompts, n=1)
    old, values = logprobs(policy, rollout), critic_values(critic, rollout)
    kl = kl_estimate(old, rollout.mask, ref=logprobs(ref, rollout))
    rewards = kl_penalized(token_rewards(score(rollout), rollout.mask), kl, rollout.mask, weight=0.01)
    advantages, returns = gae(rewards, values, rollout.mask, gamma=1.0, lam=0.95)
    weights = importance_weights(old, rollout.mask, behaviour=rollout.logprobs, cap=2.0)

    def policy_loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=old, weights=weights, eps=0.2)

    def critic_loss(v: Critic) -> Loss:
        return value_loss(critic_values(v, rollout), returns, rollout.mask, old=values, clip=0.2)

    return update(policy, policy_loss), update(critic, critic_loss)
