"""What editors infer: the type behind each call, and the parameters that they complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, assert_type

from flowgraph import Graph, Loss, Mask, Trainable, flow, node, stale
from flowgraph.language.values import Group, Linear
from nodes import (
    Accuracy,
    Advantages,
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    Scores,
    clipped,
    evaluate,
    generate,
    group_normalize,
    kl_k3,
    logprobs,
    policy_gradient,
    score,
    update,
)

M = TypeVar("M", bound=Trainable)
L = TypeVar("L", bound=Linear)


class Critic(Trainable):
    """A model of a user's own."""


@node
def both(rollout: Rollout) -> tuple[Mask, Scores]:
    """Give two values."""
    return rollout.mask, Scores(rollout.mask.data.sum(1))


@flow
def plain(prompts: Prompts, policy: Policy, *, n: int = 4) -> Policy:
    """Train once."""
    rollout = generate(policy, prompts, n=n)
    advantages = group_normalize(score(rollout), rollout.group)
    return update(policy, lambda pi: policy_gradient(logprobs(pi, rollout), advantages, rollout.mask))


@flow
def pair(prompts: Prompts, policy: Policy, ref: Reference) -> tuple[Policy, LogProbs]:
    """Give two results."""
    rollout = generate(policy, prompts)
    return policy, logprobs(ref, rollout)


def nodes_give(prompts: Prompts, policy: Policy, ref: Reference) -> None:
    """Infer what nodes give, and the parts of records."""
    rollout = assert_type(generate(policy, prompts, n=2), Rollout)
    assert_type(rollout.group, Group)
    assert_type(rollout.logprobs, LogProbs)
    assert_type(rollout.mask, Mask)
    scores = assert_type(score(rollout), Scores)
    assert_type(group_normalize(scores, rollout.group), Advantages)
    assert_type(logprobs(ref, rollout), LogProbs)
    assert_type(both(rollout), tuple[Mask, Scores])
    reveal_type(rollout.tokens)  # shows: Tokens
    reveal_type(both(rollout)[1])  # shows: Scores


def sums(loss: Loss, scores: Scores) -> None:
    """Infer what arithmetic gives."""
    assert_type(0.1 * loss, Loss)
    assert_type(loss * 0.1, Loss)
    assert_type(loss + 0.1 * loss, Loss)
    assert_type(-scores, Scores)
    assert_type(0.5 * scores - scores, Scores)
    reveal_type(0.1 * loss)  # shows: Loss


def models(policy: Policy, critic: Critic, rollout: Rollout, advantages: Advantages) -> None:
    """Infer the model's own type through `update` and `stale`."""

    def policy_loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        return clipped(new, advantages, rollout.mask, old=rollout.logprobs) + kl_k3(new, rollout.mask, ref=new)

    def critic_loss(one: Critic) -> Loss:
        return Loss.of(rollout.mask.data, rollout.mask)

    assert_type(update(policy, policy_loss), Policy)
    assert_type(update(critic, critic_loss), Critic)
    assert_type(stale(policy, at_most=4), Policy)
    assert_type(stale(critic, at_most=4, corrected=False), Critic)
    reveal_type(update(critic, critic_loss, lr=1e-6))  # shows: Critic


def through(model: M, loss: Callable[[M], Loss]) -> M:
    """Keep the type through a function of one's own."""
    return assert_type(update(stale(model, at_most=0), loss), M)


def linear(value: L) -> L:
    """Keep the type of whatever adds."""
    return assert_type(0.5 * value + value, L)


def flows(prompts: Prompts, policy: Policy, ref: Reference) -> None:
    """Infer what flows give, and that they are described."""
    assert_type(plain(prompts, policy), Policy)
    assert_type(pair(prompts, policy, ref), tuple[Policy, LogProbs])
    assert_type(evaluate(prompts, policy), Accuracy)
    assert_type(plain.graph(), Graph)
    assert_type(plain.graph({"n": 2}), Graph)
    assert_type(plain.name, str)
    plain.graph().param("policy")
    reveal_type(pair.graph)  # shows: -> Graph


def completed() -> None:
    """Show the parameters that editors complete: `@node` and `@flow` keep the signature."""
    reveal_type(generate)  # shows: (policy: LanguageModel, prompts: Prompts, *, n: int
    reveal_type(score)  # shows: limit_s: float
    reveal_type(update)  # shows: micro_batch_tokens: int
    reveal_type(kl_k3)  # shows: (new: LogProbs, mask: Mask, *, ref: LogProbs
    reveal_type(both)  # shows: (rollout: Rollout) -> tuple[Mask, Scores]
    reveal_type(plain.__call__)  # shows: (prompts: Prompts, policy: Policy, *, n: int
    reveal_type(evaluate.__call__)  # shows: max_tokens: int
