"""Critics, state, moving references and corrections in the wrong place. Each marked line is refused when described."""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import (
    Critic,
    KLWeight,
    MovingReference,
    Policy,
    Prompts,
    Reference,
    adaptive_kl,
    averaged,
    clipped,
    critic_values,
    discounted_returns,
    entropy,
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


@flow
def models(prompts: Prompts, policy: Policy, critic: Critic, ref: MovingReference) -> tuple[Policy, Critic, MovingReference]:
    """Update a reference, train one model by the other's loss, read the wrong one."""
    rollout = generate(policy, prompts, n=4)
    rewards = token_rewards(score(rollout), rollout.mask)
    old_values = critic_values(critic, rollout)
    advantages, returns = gae(rewards, old_values, rollout.mask)

    def policy_loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    def critic_loss(v: Critic) -> Loss:
        return value_loss(critic_values(v, rollout), returns, rollout.mask, old=old_values)

    update(ref, policy_loss)  # mypy: type-var,arg-type  # pyright: reportArgumentType
    update(policy, critic_loss)  # mypy: arg-type  # pyright: reportArgumentType
    update(critic, policy_loss)  # mypy: arg-type  # pyright: reportArgumentType
    critic_values(policy, rollout)  # mypy: arg-type  # pyright: reportArgumentType
    logprobs(critic, rollout)  # mypy: arg-type  # pyright: reportArgumentType
    entropy(critic, rollout)  # mypy: arg-type  # pyright: reportArgumentType
    generate(critic, prompts)  # mypy: arg-type  # pyright: reportArgumentType
    averaged(policy, policy=policy)  # mypy: arg-type  # pyright: reportArgumentType
    averaged(ref, policy=critic)  # mypy: arg-type  # pyright: reportArgumentType
    return update(policy, policy_loss), update(critic, critic_loss), ref


@flow
def frozen(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Move a reference that is frozen."""
    averaged(ref, policy=policy)  # mypy: arg-type  # pyright: reportArgumentType
    return policy


@flow
def columns(prompts: Prompts, policy: Policy, critic: Critic) -> Critic:
    """Swap numbers of tokens that mean something else."""
    rollout = generate(policy, prompts, n=4)
    scores = score(rollout)
    rewards = token_rewards(scores, rollout.mask)
    old_values = critic_values(critic, rollout)
    advantages, returns = gae(rewards, old_values, rollout.mask)
    gae(advantages, old_values, rollout.mask)  # mypy: arg-type  # pyright: reportArgumentType
    gae(rewards, returns, rollout.mask)  # mypy: arg-type  # pyright: reportArgumentType
    gae(scores, old_values, rollout.mask)  # mypy: arg-type  # pyright: reportArgumentType
    gae(old_values, rewards, rollout.mask)  # mypy: arg-type  # pyright: reportArgumentType
    discounted_returns(advantages, rollout.mask)  # mypy: arg-type  # pyright: reportArgumentType
    whiten(rewards, rollout.mask)  # mypy: arg-type  # pyright: reportArgumentType
    group_normalize(rewards, rollout.group)  # mypy: arg-type  # pyright: reportArgumentType
    _, second = returns, advantages

    def loss(v: Critic) -> Loss:
        new = critic_values(v, rollout)
        value_loss(returns, returns, rollout.mask, old=old_values)  # mypy: arg-type  # pyright: reportArgumentType
        value_loss(new, new, rollout.mask, old=old_values)  # mypy: arg-type  # pyright: reportArgumentType
        value_loss(new, second, rollout.mask, old=old_values)  # mypy: arg-type  # pyright: reportArgumentType
        value_loss(new, returns, rollout.mask, old=returns)  # mypy: arg-type  # pyright: reportArgumentType
        value_loss(new, returns, rollout.mask, old=rollout.logprobs)  # mypy: arg-type  # pyright: reportArgumentType
        value_loss(new, returns, returns, old=old_values)  # mypy: arg-type  # pyright: reportArgumentType
        return value_loss(new, returns, rollout.mask, old=old_values)

    return update(critic, loss)


@flow
def factors(
    prompts: Prompts, policy: Policy, ref: Reference, beta: KLWeight = KLWeight(0.05)
) -> tuple[Policy, KLWeight]:
    """Take carried state for a number, and a number for state."""
    rollout = generate(policy, prompts, n=4)
    ref_logprobs = logprobs(ref, rollout)
    advantages = group_normalize(score(rollout), rollout.group)
    kl = kl_estimate(rollout.logprobs, rollout.mask, ref=ref_logprobs)
    earned = token_rewards(score(rollout), rollout.mask)
    kl_penalized(earned, kl, rollout.mask, weight=beta)  # mypy: arg-type  # pyright: reportArgumentType
    kl_penalized(earned, kl, rollout.mask, beta=0.05)  # mypy: arg-type  # pyright: reportArgumentType
    kl_penalized(advantages, kl, rollout.mask)  # mypy: arg-type  # pyright: reportArgumentType
    kl_penalized(earned, ref_logprobs, rollout.mask)  # mypy: arg-type  # pyright: reportArgumentType
    adaptive_kl(0.05, kl, rollout.mask)  # mypy: arg-type  # pyright: reportArgumentType
    adaptive_kl(beta, beta, rollout.mask)  # mypy: arg-type  # pyright: reportArgumentType

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        penalty = kl_k3(new, rollout.mask, ref=ref_logprobs)
        _ = beta * penalty  # mypy: arg-type  # pyright: reportOperatorIssue
        _ = penalty * beta  # mypy: operator  # pyright: reportOperatorIssue
        weighted(penalty, 0.05)  # mypy: arg-type  # pyright: reportArgumentType
        weighted(beta, penalty)  # mypy: arg-type  # pyright: reportArgumentType
        return policy_gradient(new, advantages, rollout.mask) + weighted(penalty, beta)

    return update(policy, loss), adaptive_kl(beta, kl, rollout.mask)


@flow
def corrections(prompts: Prompts, policy: Policy) -> Policy:
    """Put weights where a mask belongs, and the other way round."""
    rollout = generate(policy, prompts, n=4)
    advantages = group_normalize(score(rollout), rollout.group)
    old = logprobs(policy, rollout)
    weights = importance_weights(old, rollout.mask, behaviour=rollout.logprobs)
    importance_weights(old, weights, behaviour=rollout.logprobs)  # mypy: arg-type  # pyright: reportArgumentType
    importance_weights(old, rollout.mask)  # mypy: call-arg  # pyright: reportCallIssue
    importance_weights(old, rollout.mask, old)  # mypy: call-arg  # pyright: reportCallIssue
    rejected(weights, old=old, behaviour=rollout.logprobs, test="token_k1", high=2.0)  # mypy: arg-type  # pyright: reportArgumentType
    rejected(rollout.mask, old=old, behaviour=rollout.logprobs, test="token_k4", high=2.0)  # mypy: arg-type  # pyright: reportArgumentType

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        clipped(new, advantages, weights, old=old)  # mypy: arg-type  # pyright: reportArgumentType
        clipped(new, weights, rollout.mask, old=old)  # mypy: arg-type  # pyright: reportArgumentType
        clipped(new, advantages, rollout.mask, old=weights)  # mypy: arg-type  # pyright: reportArgumentType
        clipped(new, advantages, rollout.mask, old=old, weights=rollout.mask)  # mypy: arg-type  # pyright: reportArgumentType
        clipped(new, advantages, rollout.mask, old=old, weights=advantages)  # mypy: arg-type  # pyright: reportArgumentType
        clipped(new, advantages, rollout.mask, old=old, weights=2.0)  # mypy: arg-type  # pyright: reportArgumentType
        policy_gradient(new, advantages, rollout.mask, aggregation="mean")  # mypy: arg-type  # pyright: reportArgumentType
        policy_gradient(new, advantages, rollout.mask, aggregation=None)  # mypy: arg-type  # pyright: reportArgumentType
        return clipped(new, advantages, rollout.mask, old=old, weights=weights)

    return update(policy, loss)


@flow
def whole(prompts: Prompts, policy: Policy, beta: KLWeight = KLWeight(0.05)) -> tuple[Policy, KLWeight]:
    """Carry a weight."""
    return policy, beta


@flow
def calling(prompts: Prompts, policy: Policy, beta: KLWeight = KLWeight(0.05)) -> tuple[Policy, KLWeight]:
    """Return another flow a number for its state."""
    whole(prompts, policy, 0.05)  # mypy: arg-type  # pyright: reportArgumentType
    whole(prompts, policy, beta=prompts)  # mypy: arg-type  # pyright: reportArgumentType
    return whole(prompts, policy, beta)
