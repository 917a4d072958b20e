"""GPG: the plain policy gradient on group-centred scores, scaled up if few responses score.

Source: Chu et al. 2025, arXiv 2504.02546. Deviation: alpha counts rows that score 0, as verl does, and the paper
counts rows of groups without signal; an entropy bonus, which keeps small models exploring.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import (
    Policy,
    Prompts,
    entropy,
    entropy_bonus,
    generate,
    gpg_advantages,
    logprobs,
    policy_gradient,
    score,
    update,
)


@flow
def gpg(prompts: Prompts, policy: Policy) -> Policy:
    """Plain policy gradient on group-centred scores."""
    rollout = generate(policy, prompts, n=16)
    advantages = gpg_advantages(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        surrogate = policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)
        return surrogate + 0.03 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss)
