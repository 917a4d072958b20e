"""Nodes, values and flows of a user's own, with every trait, for the random flows; bodies run on small tensors."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import Field

from flowgraph import By, Corrects, Kind, Loss, Mask, Measure, Metric, Parts, Record, Rows, State, flow, node
from flowgraph.language.handle import ResponseRows as ModelRows
from flowgraph.language.rows import take
from flowgraph.language.values import Group, Sample, Trajectory
from nodes import (
    Advantages,
    ImportanceWeights,
    LanguageModel,
    LogProbs,
    Policy,
    Prompts,
    Rollout,
    Scores,
    TokenAdvantages,
    clipped,
    generate,
    logprobs,
    update,
)


class Coef(State):
    """A carried number that is no model."""


class Judged(Record):
    """Scores with the ids of their rows."""

    group: Group
    sample: Sample
    trajectory: Trajectory
    scores: Scores


S = TypeVar("S", bound=Scores)


@node(kind="score", metrics=(Metric("long", about="mean length"),))
def length_score(rollout: Annotated[Rollout, Parts("lengths", "finished")], *, per_token: float = 0.25) -> Scores:
    """Score a response by its length."""
    scores = rollout.lengths.data * per_token + rollout.finished.data.float()
    return Scores(scores, [Measure("long", float(rollout.lengths.data.sum()), len(scores))])


@node(kind="score")
def judge(rollout: Rollout) -> Judged:
    """Score a response, and say which row it is."""
    scores = Scores((rollout.tokens.data % 3).float().mean(1))
    return Judged(group=rollout.group, sample=rollout.sample, trajectory=rollout.trajectory, scores=scores)


@node(separable=False)
def rank(scores: Scores) -> Scores:
    """Give each row its place among all."""
    return Scores(scores.data.argsort().argsort().float())


@node
def halves(scores: S) -> tuple[S, S]:
    """Give two results."""
    return type(scores)(scores.data / 2), type(scores)(scores.data * 2)


@node
def spread(advantages: Annotated[Advantages, Kind.ROW], mask: Mask) -> TokenAdvantages:
    """Give each token the number of its row."""
    return TokenAdvantages(advantages.data[:, None] * mask.data)


@node
def damp(
    advantages: Annotated[TokenAdvantages, Kind.TOKEN], *, by: Annotated[float, Field(gt=0)] = 2.0
) -> TokenAdvantages:
    """Divide each token's number."""
    return TokenAdvantages(advantages.data / by)


@node(kind="advantage")
def against(
    scores: Scores, group: Group, *, greedy: Annotated[Scores, Rows.OTHER], prompt: Annotated[Group, Rows.OTHER]
) -> Advantages:
    """Subtract the score of another response to the same prompt."""
    place = (group.data[:, None] == prompt.data).int().argmax(1)
    return Advantages(scores.data - greedy.data[place])


@node(rows="new")
def finished_only(rollout: Rollout, *, least: Annotated[int, Field(ge=0)] = 0) -> Rollout:
    """Leave out short responses, the first apart."""
    keep = rollout.lengths.data >= least
    keep[0] = True
    return take(rollout, keep.nonzero()[:, 0])


@node(rows="reordered")
def turned(rollout: Rollout) -> Rollout:
    """Turn the rows around."""
    import torch

    return take(rollout, torch.arange(len(rollout.lengths.data) - 1, -1, -1))


@node
def chosen(mask: Mask, *, advantages: Advantages) -> Mask:
    """Count the tokens of rows that are better than expected."""
    return Mask(mask.data * (advantages.per_token() >= 0).float())


@node
def mask_of(new: LogProbs, mask: Mask) -> Mask:
    """Count the tokens that are unlikely: of what is trained this is refused."""
    return Mask(mask.data * (new.data < -1).float())


@node(kind="logprob")
def logprobs_at(model: LanguageModel, rollout: Rollout, *, temperature: float = 1.0) -> LogProbs:
    """Give log-probs at a temperature of its own."""
    rows = ModelRows(rollout.context.data, rollout.tokens.data, rollout.lengths.data, temperature)
    return LogProbs(model.handle.token_stats(rows, ("logprobs",)).logprobs)


@node
def smooth(new: LogProbs) -> LogProbs:
    """Scale log-probs: whose they are goes along."""
    return LogProbs(new.data * 0.5)


@node(metrics=(Metric("likely", "nats"),))
def likely(new: Annotated[LogProbs, By.TRAINED], mask: Mask, *, floor: float | None = None) -> Loss:
    """Make what was drawn likely."""
    values = new.data.masked_fill(mask.data == 0, 0.0)
    values = values if floor is None else values.clamp(min=floor)
    return Loss.of(-values, mask, measures=[Measure("likely", float(values.detach().sum()), float(mask.data.sum()))])


@node
def halved(weights: ImportanceWeights) -> ImportanceWeights:
    """Scale weights: what they correct stays the same."""
    return ImportanceWeights(weights.data / 2)


@node
def unnamed(told: LogProbs, mask: Mask) -> ImportanceWeights:
    """Make weights without saying of what."""
    return ImportanceWeights(told.data.detach().exp() * mask.data)


@node
def by_ratio(
    new: Annotated[LogProbs, By.TRAINED],
    mask: Mask,
    *,
    old: Annotated[LogProbs, By.SAMPLER],
    weights: Annotated[ImportanceWeights | None, Corrects("old")] = None,
) -> Loss:
    """Weigh tokens by a ratio of its own, and by what corrects the rest."""
    ratio = (new.data - old.data).masked_fill(mask.data == 0, 0.0).clamp(-5.0, 5.0).exp()
    return Loss.of(-ratio if weights is None else -ratio * weights.data, mask)


@node
def corrected(
    new: Annotated[LogProbs, By.TRAINED], mask: Mask, *, weights: Annotated[ImportanceWeights, Corrects()]
) -> Loss:
    """Make what was drawn likely, weighed by a correction that it always has."""
    return Loss.of(-new.data.masked_fill(mask.data == 0, 0.0) * weights.data, mask)


@node
def weighed(loss: Loss, *, coef: Coef) -> Loss:
    """Multiply a loss by a carried number."""
    return loss.times(float(coef.data))


@node(carries="coef")
def adapt(coef: Coef, *, scores: Scores) -> Coef:
    """Move the number by what was scored."""
    return Coef(coef.data * (1.0 + 0.01 * float(scores.data.mean())))


@flow
def attempts(prompts: Prompts, policy: Policy, *, n: Annotated[int, Field(ge=1)] = 2) -> tuple[Rollout, Scores]:
    """Sample and score: a part of other flows."""
    rollout = generate(policy, prompts, n=n, max_tokens=3)
    return rollout, length_score(rollout)


@flow
def trained(policy: Policy, rollout: Rollout, advantages: Advantages) -> Policy:
    """Update once: a part of other flows."""

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return update(policy, loss)
