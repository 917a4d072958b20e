"""GMPO: one ratio per response, the geometric mean of its tokens' clipped ratios.

Source: Zhao et al. 2025, arXiv 2507.20673, equation 4. Deviation: an entropy bonus, which keeps small models
exploring.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import Policy, Prompts, entropy, entropy_bonus, generate, gmpo_loss, group_normalize, logprobs, score, update


@flow
def gmpo(prompts: Prompts, policy: Policy) -> Policy:
    """Average each response's clipped ratios geometrically."""
    rollout = generate(policy, prompts, n=16)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        surrogate = gmpo_loss(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.1 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss, minibatch=8)
