"""What must type-check of critics, carried state, moving references and off-policy correction: PPO and its kin."""

from __future__ import annotations

from typing import Annotated, assert_type

from flowgraph import Aggregation, By, Corrects, Loss, Mask, flow, node, stale
from flowgraph.language.loss import How
from nodes import (
    Advantages,
    Critic,
    ImportanceWeights,
    KLWeight,
    LogProbs,
    MovingReference,
    Policy,
    Prompts,
    Reference,
    Returns,
    Rewards,
    TokenAdvantages,
    TokenKL,
    Values,
    adaptive_kl,
    averaged,
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
    policy_gradient,
    rejected,
    score,
    token_rewards,
    update,
    value_loss,
    weighted,
    whiten,
)


@node
def truncated(
    new: Annotated[LogProbs, By.TRAINED],
    mask: Mask,
    *,
    old: Annotated[LogProbs, By.SAMPLER],
    weights: Annotated[ImportanceWeights | None, Corrects("old")] = None,
    aggregation: How = Aggregation.TOKEN_MEAN,
) -> Loss:
    """Take a correction and an aggregation, in a loss of a user's own."""
    ratio = (new.data - old.data).exp().clamp(max=2.0)
    return Loss.of(ratio if weights is None else ratio * weights.data, mask, aggregation)


@flow
def ppo(prompts: Prompts, policy: Policy, critic: Critic, ref: Reference) -> tuple[Policy, Critic]:
    """Clip, with a critic; the KL is in the reward."""
    rollout = generate(policy, prompts, n=4)
    kl = assert_type(kl_estimate(rollout.logprobs, rollout.mask, ref=logprobs(ref, rollout)), TokenKL)
    earned = assert_type(token_rewards(score(rollout), rollout.mask), Rewards)
    rewards = assert_type(kl_penalized(earned, kl, rollout.mask, weight=0.02), Rewards)
    old_values = assert_type(critic_values(critic, rollout), Values)
    advantages, returns = gae(rewards, old_values, rollout.mask)
    assert_type(advantages, TokenAdvantages)
    assert_type(returns, Returns)
    whitened: Advantages = whiten(advantages, rollout.mask)

    def policy_loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), whitened, rollout.mask, old=rollout.logprobs)

    def critic_loss(v: Critic) -> Loss:
        return value_loss(critic_values(v, rollout), returns, rollout.mask, old=old_values, clip=None)

    better = assert_type(update(critic, critic_loss, minibatch=8), Critic)
    return assert_type(update(policy, policy_loss, minibatch=8), Policy), better


@flow
def adaptive(
    prompts: Prompts, policy: Policy, ref: Reference, beta: KLWeight = KLWeight(0.05)
) -> tuple[Policy, KLWeight]:
    """Carry a weight that starts from a default."""
    rollout = generate(policy, prompts, n=4)
    advantages = group_normalize(score(rollout), rollout.group)
    ref_logprobs = logprobs(ref, rollout)
    kl = kl_estimate(rollout.logprobs, rollout.mask, ref=ref_logprobs)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = policy_gradient(new, advantages, rollout.mask, aggregation=16)
        return surrogate + weighted(kl_k3(new, rollout.mask, ref=ref_logprobs), beta)

    return update(policy, loss), assert_type(adaptive_kl(beta, kl, rollout.mask, horizon=1000), KLWeight)


@flow
def averaging(prompts: Prompts, policy: Policy, ref: MovingReference) -> tuple[Policy, MovingReference]:
    """Let the reference follow the policy."""
    rollout = generate(policy, prompts, n=4)
    advantages = group_normalize(score(rollout), rollout.group)
    ref_logprobs = logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = policy_gradient(new, advantages, rollout.mask, aggregation=Aggregation.SEQUENCE_SUM)
        return surrogate + 0.1 * kl_k3(new, rollout.mask, ref=ref_logprobs)

    trained = update(policy, loss)
    return trained, assert_type(averaged(ref, policy=trained), MovingReference)


@flow
def decoupled(prompts: Prompts, policy: Policy) -> Policy:
    """Correct from the newest weights to those that drew."""
    rollout = generate(stale(policy, at_most=2), prompts, n=4)
    advantages = group_normalize(score(rollout), rollout.group)
    proximal = logprobs(policy, rollout)
    kept = assert_type(
        rejected(rollout.mask, old=proximal, behaviour=rollout.logprobs, test="token_k3", high=1.0), Mask
    )
    weights = assert_type(importance_weights(proximal, kept, behaviour=rollout.logprobs), ImportanceWeights)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, kept, old=proximal, weights=weights)
        return surrogate + truncated(new, kept, old=proximal, weights=weights, aggregation=0.5)

    return update(policy, loss)
