"""GSPO: the ratio and the clip apply to whole responses instead of tokens.

Source: Zheng et al. 2025, arXiv 2507.18071, equations 5 to 7. Deviation: an entropy bonus, which keeps small models
exploring.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import Policy, Prompts, entropy, entropy_bonus, generate, group_normalize, gspo_loss, logprobs, score, update


@flow
def gspo(prompts: Prompts, policy: Policy) -> Policy:
    """Clip one ratio per response, normalised by its length."""
    rollout = generate(policy, prompts, n=16)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        surrogate = gspo_loss(
            logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs, eps=3e-4, eps_high=4e-4
        )
        return surrogate + 0.1 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss, minibatch=8)
