"""GRPO: clipped surrogate on group-normalised scores, with a KL term to a frozen reference in the loss.

Source: Shao et al. 2024, arXiv 2402.03300. Deviation: a mean over tokens (the paper: over responses, of their token
means, `aggregation="sequence-mean"`); a KL weight of 0.1 (the paper: 0.04), which keeps small models exploring.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import Policy, Prompts, Reference, clipped, generate, group_normalize, kl_k3, logprobs, score, update


@flow
def grpo(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Train on group scores, with a clip and a KL in the loss."""
    rollout = generate(policy, prompts, n=16)
    advantages = group_normalize(score(rollout), rollout.group)
    ref_logprobs = logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs, eps=0.2)
        return surrogate + 0.1 * kl_k3(new, rollout.mask, ref=ref_logprobs)

    return update(policy, loss)
