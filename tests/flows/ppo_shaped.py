"""A flow of PPO's shape with bodies that run: a critic, a reward model and a reference, each reads the rollout.

What the critic and the reward model say is read off the log-probs of a language model, so that `tiny` can be either.
"""

from __future__ import annotations

from typing import Annotated

from flowgraph import By, Kind, Loss, Trainable, Value, flow, node
from flowgraph.language.values import Lengths, Mask
from nodes import (
    LanguageModel,
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    Scores,
    TokenAdvantages,
    clipped,
    generate,
    logprobs,
    update,
)
from nodes.likelihood import READ


class Critic(LanguageModel, Trainable):
    """A model that says what each token is worth."""


class Judge(LanguageModel):
    """A model that scores responses."""


class Worths(Value):
    """What each token is worth: [B, T]."""

    kind = Kind.TOKEN


class Rewards(Value):
    """What each token is given: [B, T]."""

    kind = Kind.TOKEN


class Targets(Value):
    """What each token should have been worth: [B, T]."""

    kind = Kind.TOKEN


@node(kind="logprob", stat="logprobs")
def worths(model: LanguageModel, rollout: Annotated[Rollout, READ]) -> Worths:
    """Say what each token is worth."""
    return Worths(logprobs(model, rollout).data)


@node(kind="score")
def judged(judge: Judge, rollout: Annotated[Rollout, READ]) -> Scores:
    """Score each response by the mean of its log-probs."""
    told = logprobs(judge, rollout).data
    return Scores(told.sum(dim=1) / rollout.lengths.data.clamp(min=1))


@node
def spread(scores: Scores, lengths: Lengths, *, old: LogProbs, ref: LogProbs, weight: float = 0.1) -> Rewards:
    """Give each response's score to its last token, and every token its distance from the reference."""
    import torch

    given = weight * (ref.data - old.data)
    last = torch.arange(given.shape[1])[None] == lengths.data[:, None] - 1
    return Rewards(given + last * scores.data[:, None])


@node
def bounded(rewards: Rewards, *, most: float = 5.0) -> Rewards:
    """Hold rewards within bounds."""
    return Rewards(rewards.data.clamp(-most, most))


@node(kind="advantage")
def estimated(
    rewards: Rewards, values: Worths, mask: Mask, *, discount: float = 0.9
) -> tuple[TokenAdvantages, Targets]:
    """Give how much better each token was than it was worth, and what it should have been worth."""
    import torch

    after, found = torch.zeros(len(mask.data)), list[torch.Tensor]()
    for i in reversed(range(mask.data.shape[1])):
        after = rewards.data[:, i] * mask.data[:, i] + discount * after
        found.insert(0, after)
    targets = torch.stack(found, dim=1) * mask.data
    return TokenAdvantages((targets - values.data) * mask.data), Targets(targets)


@node
def squared(new: Annotated[Worths, By.TRAINED], targets: Targets, mask: Mask) -> Loss:
    """Give half the square of what is missing."""
    return Loss.of(0.5 * (new.data - targets.data) ** 2, mask)


@flow
def ppo_shaped(prompts: Prompts, policy: Policy, critic: Critic, judge: Judge, ref: Reference) -> tuple[Policy, Critic]:
    """Sample; read the rollout with a critic, a judge and a reference; train the policy and the critic."""
    rollout = generate(policy, prompts, n=4, max_tokens=3)
    values, scores, ref_logprobs = worths(critic, rollout), judged(judge, rollout), logprobs(ref, rollout)
    rewards = bounded(spread(scores, rollout.lengths, old=rollout.logprobs, ref=ref_logprobs))
    advantages, targets = estimated(rewards, values, rollout.mask)

    def policy_loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    def critic_loss(c: Critic) -> Loss:
        return squared(worths(c, rollout), targets, rollout.mask)

    trained = update(policy, policy_loss, lr=1e-1, optimizer="sgd", minibatch=2)
    return trained, update(critic, critic_loss, lr=1e-1, optimizer="sgd", minibatch=2)
