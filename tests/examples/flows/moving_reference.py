"""References that follow the policy: one averaged with it after every step, one refreshed from it now and then."""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import (
    MovingReference,
    Policy,
    Prompts,
    averaged,
    clipped,
    generate,
    group_normalize,
    kl_k3,
    logprobs,
    refreshed,
    score,
    update,
)


@flow
def with_average(prompts: Prompts, policy: Policy, ref: MovingReference) -> tuple[Policy, MovingReference]:
    """GRPO towards the average of the policies so far."""
    rollout = generate(policy, prompts, n=4, max_tokens=4)
    advantages, ref_logprobs = group_normalize(score(rollout), rollout.group), logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.1 * kl_k3(new, rollout.mask, ref=ref_logprobs)

    trained = update(policy, loss)
    return trained, averaged(ref, policy=trained, decay=0.9)


@flow
def with_refreshes(prompts: Prompts, policy: Policy, ref: MovingReference) -> tuple[Policy, MovingReference]:
    """GRPO towards a reference that is replaced by the policy every second step."""
    rollout = generate(policy, prompts, n=4, max_tokens=4)
    advantages, ref_logprobs = group_normalize(score(rollout), rollout.group), logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.1 * kl_k3(new, rollout.mask, ref=ref_logprobs)

    trained = update(policy, loss)
    return trained, refreshed(ref, policy=trained, every=2)
