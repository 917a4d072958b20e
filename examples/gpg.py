"""GPG: the plain policy gradient on group-centred scores, scaled by the share of groups with signal.

Source: Chu et al. 2025, arXiv 2504.02546.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import Policy, Prompts, generate, gpg_advantages, logprobs, policy_gradient, score, update


@flow
def gpg(prompts: Prompts, policy: Policy) -> Policy:
    """Group policy gradient: no ratio, no clip, no reference."""
    rollout = generate(policy, prompts, n=16)
    advantages = gpg_advantages(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(policy, loss)
