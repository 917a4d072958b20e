"""GRPO on seven reward models: ten roles to place, of which seven are alike."""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import (
    Policy,
    Prompts,
    Reference,
    RewardModel,
    clipped,
    generate,
    group_normalize,
    kl_k3,
    logprobs,
    reward,
    update,
    whiten,
)


@flow
def seven_rewards(
    prompts: Prompts,
    policy: Policy,
    ref: Reference,
    style: RewardModel,
    safety: RewardModel,
    facts: RewardModel,
    length: RewardModel,
    code: RewardModel,
    maths: RewardModel,
    chat: RewardModel,
) -> Policy:
    """Clipped surrogate on the sum of seven normalised rewards, with the KL to a reference."""
    rollout = generate(policy, prompts, n=8)
    first = group_normalize(reward(style, rollout), rollout.group) + group_normalize(
        reward(safety, rollout), rollout.group
    )
    second = group_normalize(reward(facts, rollout), rollout.group) + group_normalize(
        reward(length, rollout), rollout.group
    )
    third = group_normalize(reward(code, rollout), rollout.group) + group_normalize(
        reward(maths, rollout), rollout.group
    )
    total = first + second + third + group_normalize(reward(chat, rollout), rollout.group)
    advantages = whiten(total, rollout.mask)
    ref_logprobs = logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        return clipped(new, advantages, rollout.mask, old=rollout.logprobs) + 1e-3 * kl_k3(
            new, rollout.mask, ref=ref_logprobs
        )

    return update(policy, loss)
