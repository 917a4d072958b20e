"""A user's own file: a flow whose responses are long, so that weights come while they are drawn."""

from __future__ import annotations

from flowgraph import Loss, flow, node, stale
from nodes import (
    Policy,
    Prompts,
    Rollout,
    Scores,
    clipped,
    generate,
    group_normalize,
    importance_weights,
    logprobs,
    update,
)


@node(kind="score")
def judged(rollout: Rollout) -> Scores:
    """Score responses by their first token."""
    return Scores((rollout.tokens.data[:, 0] % 7).float())


@flow
def long_responses(prompts: Prompts, policy: Policy) -> Policy:
    """Train on long responses of weights up to two updates old, with a correction."""
    rollout = generate(stale(policy, at_most=2), prompts, n=4, max_tokens=110, ignore_eos=True)
    advantages = group_normalize(judged(rollout), rollout.group)
    proximal = logprobs(policy, rollout)
    weights = importance_weights(proximal, rollout.mask, behaviour=rollout.logprobs, cap=2.0)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=proximal, weights=weights, eps=0.2)

    return update(policy, loss, lr=0.1, optimizer="sgd")


@flow
def short_responses(prompts: Prompts, policy: Policy) -> Policy:
    """Train on short responses of weights up to two updates old."""
    rollout = generate(stale(policy, at_most=2), prompts, n=2, max_tokens=8, ignore_eos=True)
    advantages = group_normalize(judged(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs, eps=0.2)

    return update(policy, loss, lr=0.1, optimizer="sgd")
