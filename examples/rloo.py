"""RLOO: the baseline of each response is the mean of the other responses to its prompt.

Source: Ahmadian et al. 2024, arXiv 2402.14740, equation 8. Deviation: divided by the tokens of a minibatch, while the
paper divides by its responses; no KL in the reward; an entropy bonus, which keeps small models exploring.
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
    policy_gradient,
    rloo_advantages,
    score,
    update,
)


@flow
def rloo(prompts: Prompts, policy: Policy) -> Policy:
    """Use the other responses' mean as REINFORCE's baseline."""
    rollout = generate(policy, prompts, n=16)
    advantages = rloo_advantages(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        surrogate = policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)
        return surrogate + 0.03 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss)
