"""Values of the wrong kind, order, model or trait: refused by both type checkers, line by line."""

from __future__ import annotations

from typing import Annotated

from flowgraph import Kind, Linear, Loss, Mask, Parts, Value, flow, node, stale
from flowgraph.language.values import Group
from nodes import (
    Advantages,
    Entropy,
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    Scores,
    accuracy,
    clipped,
    entropy_bonus,
    generate,
    group_normalize,
    kl_k3,
    logprobs,
    policy_gradient,
    score,
    update,
)


class Values(Linear):
    """What a critic expects of each token: [B, T]."""

    kind = Kind.TOKEN


@node
def returns(scores: Scores, *, values: Values) -> Values:
    """Take one number a row, and one a token."""
    return values


@node
def spread(scores: Scores, mask: Mask) -> Values:
    """Put a row's number on each of its tokens."""
    return Values(scores.data[:, None] * mask.data)


def kinds(rollout: Rollout, scores: Scores, values: Values, new: LogProbs, advantages: Advantages, h: Entropy) -> None:
    """Give one number a row where one a token is wanted, and the other way round."""
    group_normalize(new, rollout.group)  # mypy: arg-type  # pyright: reportArgumentType
    group_normalize(values, rollout.group)  # mypy: arg-type  # pyright: reportArgumentType
    accuracy(rollout.mask)  # mypy: arg-type  # pyright: reportArgumentType
    returns(scores, values=scores)  # mypy: arg-type  # pyright: reportArgumentType
    returns(values, values=values)  # mypy: arg-type  # pyright: reportArgumentType
    spread(scores, rollout.group)  # mypy: arg-type  # pyright: reportArgumentType
    policy_gradient(new, scores, rollout.mask)  # mypy: arg-type  # pyright: reportArgumentType
    policy_gradient(new, advantages, rollout.finished)  # mypy: arg-type  # pyright: reportArgumentType
    entropy_bonus(new, rollout.mask)  # mypy: arg-type  # pyright: reportArgumentType
    kl_k3(h, rollout.mask, ref=new)  # mypy: arg-type  # pyright: reportArgumentType
    kl_k3(new, rollout.mask, ref=advantages)  # mypy: arg-type  # pyright: reportArgumentType
    clipped(new, advantages, rollout.mask, old=scores)  # mypy: arg-type  # pyright: reportArgumentType
    _ = scores + values  # mypy: operator  # pyright: reportOperatorIssue
    _ = 0.5 * new  # mypy: operator  # pyright: reportOperatorIssue


def left_out(rollout: Rollout, new: LogProbs, advantages: Advantages, policy: Policy, prompts: Prompts) -> None:
    """Leave out what has no default."""
    clipped(new, advantages, rollout.mask, eps=0.2)  # mypy: call-arg  # pyright: reportCallIssue
    kl_k3(new, rollout.mask)  # mypy: call-arg  # pyright: reportCallIssue
    policy_gradient(new, advantages)  # mypy: call-arg  # pyright: reportCallIssue
    update(policy)  # mypy: call-arg  # pyright: reportCallIssue
    stale(policy)  # mypy: call-arg  # pyright: reportCallIssue
    generate(policy)  # mypy: call-arg  # pyright: reportCallIssue
    group_normalize(score(rollout))  # mypy: call-arg  # pyright: reportCallIssue


def swapped(rollout: Rollout, new: LogProbs, advantages: Advantages, policy: Policy, prompts: Prompts) -> None:
    """Give the right values in the wrong order."""
    generate(prompts, policy)  # mypy: arg-type  # pyright: reportArgumentType
    logprobs(rollout, policy)  # mypy: arg-type  # pyright: reportArgumentType
    policy_gradient(advantages, new, rollout.mask)  # mypy: arg-type  # pyright: reportArgumentType
    kl_k3(rollout.mask, new, ref=new)  # mypy: arg-type  # pyright: reportArgumentType
    clipped(new, advantages, rollout.logprobs, old=rollout.mask)  # mypy: arg-type  # pyright: reportArgumentType


def models(policy: Policy, ref: Reference, prompts: Prompts, rollout: Rollout, new: LogProbs, mask: Mask) -> None:
    """Update, sample or lag what cannot be."""
    update(ref, lambda pi: entropy_bonus(Entropy(0), mask))  # mypy: type-var  # pyright: reportArgumentType
    stale(prompts, at_most=1)  # mypy: type-var  # pyright: reportArgumentType
    stale(new, at_most=1)  # mypy: type-var  # pyright: reportArgumentType
    stale(policy, 2)  # mypy: call-arg  # pyright: reportCallIssue
    stale(policy, at_most=2, corrected="no")  # mypy: arg-type  # pyright: reportArgumentType
    update(policy, entropy_bonus(Entropy(0), mask))  # mypy: arg-type  # pyright: reportArgumentType
    update(policy, lambda pi: logprobs(pi, rollout))  # mypy: return-value,arg-type  # pyright: reportArgumentType
    update(policy, lambda pi: Loss.of(mask.data, mask), optimizer="adam")  # mypy: arg-type  # pyright: reportArgumentType


@flow
def steps(prompts: Prompts, policy: Policy, *, rounds: int = 1) -> Policy:
    """Do nothing."""
    return policy


def calls(prompts: Prompts, policy: Policy, rollout: Rollout, ref: Reference) -> None:
    """Call a flow with something else than it takes."""
    steps(rollout, policy)  # mypy: arg-type  # pyright: reportArgumentType
    steps(prompts, ref)  # mypy: arg-type  # pyright: reportArgumentType
    steps(prompts)  # mypy: call-arg  # pyright: reportCallIssue
    steps(prompts, policy, 2)  # mypy: call-arg  # pyright: reportCallIssue
    steps(prompts, policy, round=2)  # mypy: call-arg  # pyright: reportCallIssue
    steps(prompts, policy, rounds="2")  # mypy: arg-type  # pyright: reportArgumentType
    _: Rollout = steps(prompts, policy)  # mypy: assignment  # pyright: reportAssignmentType
    steps.graph(rounds=2)  # mypy: call-arg  # pyright: reportCallIssue


@node(kinds="score")  # mypy: call-overload,untyped-decorator  # pyright: reportCallIssue,reportUntypedFunctionDecorator
def misnamed(scores: Scores) -> Scores:
    """Name a trait that there is not."""
    return scores


@node(kind="scores")  # mypy: call-overload,untyped-decorator  # pyright: reportArgumentType
def unknown_kind(scores: Scores) -> Scores:
    """Name a kind that there is not."""
    return scores


@node(rows="fewer")  # mypy: call-overload,untyped-decorator  # pyright: reportArgumentType
def unknown_rows(scores: Scores) -> Scores:
    """Say of the rows what is not said of rows."""
    return scores


@node(on_policy="yes")  # mypy: call-overload,untyped-decorator  # pyright: reportArgumentType
def unknown_truth(scores: Scores) -> Scores:
    """Give a word for a truth."""
    return scores


@node
def parts(rollout: Annotated[Rollout, Parts("group")]) -> Group:
    """Misname a part."""
    return rollout.groups  # mypy: attr-defined,no-any-return  # pyright: reportAttributeAccessIssue


class Height(Value):
    """A value that misnames its kind."""

    kind = "row"  # mypy: assignment  # pyright: reportAssignmentType
