"""OPO: train exactly on-policy, with the baseline of least variance, a group's mean score weighted by length.

Source: Hao et al. 2025, arXiv 2505.23585, equation 8. Deviation: an entropy bonus, which keeps small models
exploring.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import (
    Policy,
    Prompts,
    entropy,
    entropy_bonus,
    generate,
    logprobs,
    opo_advantages,
    policy_gradient,
    score,
    update,
)


@flow
def opo(prompts: Prompts, policy: Policy) -> Policy:
    """Train on-policy, with the baseline of least variance."""
    rollout = generate(policy, prompts, n=16)
    advantages = opo_advantages(score(rollout), rollout.group, rollout.mask)

    def loss(pi: Policy) -> Loss:
        surrogate = policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)
        return surrogate + 0.03 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss)
