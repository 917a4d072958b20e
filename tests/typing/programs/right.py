"""What must type-check: two samplings, a lag, values, records and models of a user's own, and flows in flows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar, assert_type

from flowgraph import (
    Graph,
    Key,
    Kind,
    Linear,
    Loss,
    Mask,
    Measure,
    Metric,
    Record,
    Rows,
    State,
    Trainable,
    flow,
    node,
    stale,
)
from flowgraph.language.values import Group
from nodes import (
    Advantages,
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    Scores,
    clipped,
    entropy,
    entropy_bonus,
    generate,
    group_normalize,
    kl_k3,
    logprobs,
    policy_gradient,
    score,
    update,
)
from pydantic import Field

if TYPE_CHECKING:
    from torch import Tensor

M = TypeVar("M", bound=Trainable)


class Values(Linear):
    """What a critic expects of each token: [B, T]."""

    kind = Kind.TOKEN


class Coefficient(State):
    """A factor that follows the KL."""


class Critic(Trainable):
    """A model of a user's own."""


class Judged(Record):
    """Scores and where they come from."""

    group: Group
    scores: Scores


@node(kind="advantage", metrics=(Metric("gap", "points", headline=True),))
def minus_greedy(
    scores: Scores, group: Group, *, greedy: Annotated[Scores, Rows.OTHER], cap: Annotated[float, Field(gt=0)] = 1.0
) -> Advantages:
    """Take the score of the greedy response away."""
    difference: Tensor = (scores.data - greedy.data[group.data]).clamp(-cap, cap)
    return Advantages(difference, [Measure("gap", float(difference.sum()), len(difference))])


@node
def expect(critic: Critic, rollout: Rollout) -> Values:
    """Ask the critic."""
    return Values(rollout.mask.data)


@node
def squared(values: Values, mask: Mask, *, wanted: Scores) -> Loss:
    """Fit the critic."""
    return Loss.of((values.data - wanted.data[:, None]) ** 2, mask)


@node
def judge(rollout: Rollout, *, key: Key = Key()) -> Judged:
    """Make a record."""
    return Judged(group=rollout.group, scores=Scores(key.bits()))


@node(carries="coefficient")
def adapt(coefficient: Coefficient, new: LogProbs, mask: Mask) -> Coefficient:
    """Follow the KL."""
    return Coefficient(coefficient.data)


@node
def both(rollout: Rollout) -> tuple[Mask, Scores]:
    """Give two values."""
    return rollout.mask, Scores(rollout.mask.data.sum(1))


@flow
def remax(prompts: Prompts, policy: Policy) -> Policy:
    """Sample, and take the greedy response as the baseline."""
    rollout = generate(policy, prompts, n=4)
    greedy = generate(policy, prompts, temperature=0.0)
    advantages = minus_greedy(score(rollout), rollout.group, greedy=score(greedy), cap=0.5)
    assert_type(advantages, Advantages)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return assert_type(update(policy, loss, lr=1e-5, epochs=2), Policy)


@flow
def late(prompts: Prompts, policy: Policy, ref: Reference, *, lag: int = 4) -> Policy:
    """Sample from weights that may lag."""
    rollout = generate(assert_type(stale(policy, at_most=lag), Policy), prompts, n=4)
    advantages = group_normalize(score(rollout, by="gsm8k"), rollout.group)
    ref_logprobs = logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs, eps=0.2)
        penalty = 1e-3 * kl_k3(new, rollout.mask, ref=ref_logprobs) - 0.01 * entropy_bonus(entropy(pi, rollout), rollout.mask)
        return assert_type(surrogate + penalty, Loss)

    return update(policy, loss)


@flow
def actor_and_critic(
    prompts: Prompts, policy: Policy, critic: Critic, coefficient: Coefficient
) -> tuple[Policy, Critic, Coefficient]:
    """Train two models, and carry a number."""
    rollout = generate(policy, prompts)
    mask, lengths = both(rollout)
    scores = 0.5 * score(rollout) + 0.5 * lengths - judge(rollout).scores
    advantages = group_normalize(scores, judge(rollout).group)

    def value_loss(one: Critic) -> Loss:
        return squared(expect(one, rollout), mask, wanted=scores)

    better = assert_type(update(critic, value_loss), Critic)
    trained = update(policy, lambda pi: policy_gradient(logprobs(pi, rollout), advantages, mask))
    return trained, better, adapt(coefficient, rollout.logprobs, mask)


@flow
def twice(prompts: Prompts, policy: Policy) -> Policy:
    """Call a flow from a flow."""
    return remax(prompts, remax(prompts, policy))


def trained(model: M, loss: Callable[[M], Loss]) -> M:
    """Pass a model's type through."""
    return update(model, loss)


def by_name(prompts: Prompts, policy: Policy) -> None:
    """Call a flow by the names of its parameters, and describe it."""
    assert_type(remax(policy=policy, prompts=prompts), Policy)
    assert_type(late.graph({"lag": 2}), Graph)
