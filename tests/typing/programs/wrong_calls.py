"""Calls of nodes that no type checker lets pass. The known bug is the first."""

from __future__ import annotations

from flowgraph import Loss, Trainable, flow, node, stale
from nodes import (
    Advantages,
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    Scores,
    clipped,
    generate,
    group_normalize,
    kl_k3,
    logprobs,
    policy_gradient,
    score,
    update,
)


class Critic(Trainable):
    """A model of a user's own."""


@flow
def known_bug(prompts: Prompts, policy: Policy) -> Policy:
    """Pass the advantages where the response mask belongs."""
    rollout = generate(policy, prompts, n=8)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        return clipped(new, advantages, advantages, old=rollout.logprobs)  # mypy: arg-type  # pyright: reportArgumentType

    return update(policy, loss)


@flow
def models(rollout: Rollout, advantages: Advantages, policy: Policy, ref: Reference, critic: Critic) -> Policy:
    """Update what cannot be trained, or with a loss of another model."""

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    update(ref, loss)  # mypy: type-var,arg-type  # pyright: reportArgumentType
    update(critic, loss)  # mypy: arg-type  # pyright: reportArgumentType
    logprobs(critic, rollout)  # mypy: arg-type  # pyright: reportArgumentType
    generate(ref, rollout)  # mypy: arg-type  # pyright: reportArgumentType
    stale(rollout, at_most=1)  # mypy: type-var  # pyright: reportArgumentType
    return update(critic, lambda one: loss(policy))  # mypy: return-value  # pyright: reportReturnType


def arguments(policy: Policy, prompts: Prompts, rollout: Rollout, new: LogProbs, scores: Scores, loss: Loss) -> None:
    """Leave out, swap, misname."""
    kl_k3(new, rollout.mask, rollout.logprobs)  # mypy: call-arg  # pyright: reportCallIssue
    clipped(new, Advantages(0), rollout.mask)  # mypy: call-arg  # pyright: reportCallIssue
    clipped(new, rollout.mask, Advantages(0), old=new)  # mypy: arg-type  # pyright: reportArgumentType
    group_normalize(rollout.group, scores)  # mypy: arg-type  # pyright: reportArgumentType
    generate(policy, prompts, 8)  # mypy: call-arg  # pyright: reportCallIssue
    generate(policy, prompts, samples=8)  # mypy: call-arg  # pyright: reportCallIssue
    generate(policy, prompts, n="8")  # mypy: arg-type  # pyright: reportArgumentType
    generate(policy, stale(policy, at_most=0.5))  # mypy: arg-type  # pyright: reportArgumentType
    _ = rollout.maks  # mypy: attr-defined  # pyright: reportAttributeAccessIssue
    _ = scores + loss  # mypy: operator  # pyright: reportOperatorIssue
    _ = scores * scores  # mypy: operator  # pyright: reportOperatorIssue
    _ = rollout.mask * 2.0  # mypy: operator  # pyright: reportOperatorIssue
    len(rollout)  # mypy: arg-type  # pyright: reportArgumentType
    float(scores)  # mypy: arg-type  # pyright: reportArgumentType
    _ = rollout.mask < 1  # mypy: operator  # pyright: reportOperatorIssue
    for _ in rollout.mask:  # mypy: attr-defined  # pyright: reportGeneralTypeIssues
        pass


@flow
def result(prompts: Prompts, policy: Policy) -> Policy:
    """Return something else than is said."""
    return generate(policy, prompts)  # mypy: return-value  # pyright: reportReturnType


@node
def body(scores: Scores) -> Advantages:
    """Return another type from a body."""
    return scores  # mypy: return-value  # pyright: reportReturnType


def calls(prompts: Prompts, policy: Policy, rollout: Rollout) -> Policy:
    """Call a flow with something else than it takes, or misname its record's parts."""
    known_bug(policy, prompts)  # mypy: arg-type  # pyright: reportArgumentType
    Prompts(group=rollout.group, column=rollout.columns)  # mypy: call-arg  # pyright: reportCallIssue
    Prompts(group=rollout.mask, columns=rollout.columns)  # mypy: arg-type  # pyright: reportArgumentType
    return known_bug(prompts, policy)
