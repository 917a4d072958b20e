"""SAPO: a soft gate instead of the clip, steeper for tokens of negative advantage.

Source: Gao et al. 2025, arXiv 2511.20347, equations 5 and 6. Deviation: an entropy bonus, which keeps small models
exploring.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import Policy, Prompts, entropy, entropy_bonus, generate, group_normalize, logprobs, sapo_loss, score, update


@flow
def sapo(prompts: Prompts, policy: Policy) -> Policy:
    """Gate ratios softly instead of clipping them."""
    rollout = generate(policy, prompts, n=16)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        surrogate = sapo_loss(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.1 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss, minibatch=8)
