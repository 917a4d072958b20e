"""A user's own file: flows with nodes of their own, which every worker imports by this file's path."""

from __future__ import annotations

from flowgraph import Key, Kind, Loss, Metric, State, Value, flow, node
from flowgraph.language.values import Measure
from nodes import (
    LanguageModel,
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    clipped,
    generate,
    group_normalize,
    kl_k3,
    logprobs,
    score,
    update,
)


class Process(Value):
    """The id of the process that read each row: [B] int64."""

    kind = Kind.ROW


class Coefficient(State):
    """A factor that is carried from step to step."""


@node(kind="score", metrics=(Metric("tokens", about="tokens of a response"),))
def read_by(model: LanguageModel, rollout: Rollout) -> Process:
    """Tell which process reads each row with a model."""
    import os

    import torch

    lengths = rollout.lengths.data
    assert model.handle.version >= 0, "the model is here"
    return Process(torch.full_like(lengths, os.getpid()), [Measure("tokens", float(lengths.sum()), len(lengths))])


@node(rows="reordered")
def shuffled(rollout: Rollout, *, key: Key = Key()) -> Rollout:
    """Give the rows in another order, in which no prompt's rows lie side by side."""
    import torch

    from flowgraph.language.rows import take

    order = key.generator().permutation(len(rollout.lengths.data))
    return take(rollout, torch.from_numpy(order))


@node
def scaled(new: LogProbs, coefficient: Coefficient) -> LogProbs:
    """Scale log-probs."""
    return LogProbs(new.data * coefficient.data)


@node(carries="coefficient", metrics=(Metric("coefficient"),))
def adapt(coefficient: Coefficient, rollout: Rollout) -> Coefficient:
    """Let the factor grow with the tokens of a batch."""
    grown = coefficient.data + int(rollout.lengths.data.sum()) / 64
    return Coefficient(grown, [Measure("coefficient", grown, 1)])


@flow
def telling(prompts: Prompts, policy: Policy, ref: Reference) -> tuple[Policy, Process, Process]:
    """Train as GRPO does, and tell which processes read the rows with the policy and with the reference."""
    rollout = generate(policy, prompts)
    with_policy, with_ref = read_by(policy, rollout), read_by(ref, rollout)
    advantages = group_normalize(score(rollout), rollout.group)
    ref_logprobs = logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.1 * kl_k3(new, rollout.mask, ref=ref_logprobs)

    return update(policy, loss), with_policy, with_ref


@flow
def shuffling(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Train as GRPO does, on rows in another order than those that the reference reads and those that are scored."""
    rollout = generate(policy, prompts)
    mixed = shuffled(rollout)
    advantages = group_normalize(score(shuffled(rollout)), rollout.group)
    ref_logprobs = logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, mixed)
        surrogate = clipped(new, advantages, mixed.mask, old=mixed.logprobs)
        return surrogate + 0.1 * kl_k3(new, mixed.mask, ref=ref_logprobs)

    return update(policy, loss)


@flow
def adapting(prompts: Prompts, policy: Policy, ref: Reference, coefficient: Coefficient) -> tuple[Policy, Coefficient]:
    """Train as GRPO does, with log-probs that every rank scales by what the step before gave."""
    rollout = generate(policy, prompts)
    advantages = group_normalize(score(rollout), rollout.group)
    ref_logprobs = logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = scaled(logprobs(pi, rollout), coefficient)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.1 * kl_k3(new, rollout.mask, ref=ref_logprobs)

    return update(policy, loss), adapt(coefficient, rollout)
