"""DAPO: resample groups without signal, penalise overlong responses, clip higher, and average over tokens.

Source: Yu et al. 2025, arXiv 2503.14476. Deviation: `rounds` bounds resampling; the penalty for overlong responses
is added after groups are selected by their scores; `max_tokens` and `buffer` are 20480 and 4096 in the paper; an
entropy bonus, which keeps small models exploring.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import (
    Policy,
    Prompts,
    clipped,
    entropy,
    entropy_bonus,
    group_normalize,
    logprobs,
    overlong_penalty,
    refill,
    update,
)


@flow
def dapo(prompts: Prompts, policy: Policy, *, max_tokens: int = 16, buffer: int = 4) -> Policy:
    """Resample groups, clip higher, penalise long responses."""
    rollout = refill(policy, prompts, groups=12, rounds=3, n=16, max_tokens=max_tokens)
    scores = overlong_penalty(rollout.scores, rollout.lengths, max_tokens=max_tokens, buffer=buffer)
    advantages = group_normalize(scores, rollout.group)

    def loss(pi: Policy) -> Loss:
        surrogate = clipped(
            logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs, eps=0.2, eps_high=0.28
        )
        return surrogate + 0.1 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss, minibatch=8)
