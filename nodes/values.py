"""The values of reinforcement learning on language models. Same shape is not same type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowgraph.language.values import (
    Context,
    Group,
    Kind,
    Lengths,
    Linear,
    Mask,
    Model,
    Record,
    Sample,
    State,
    Tokens,
    Trainable,
    Trajectory,
    Value,
)

if TYPE_CHECKING:
    from torch import Tensor


class LanguageModel(Model):
    """A model that gives log-probs of tokens."""


class Policy(LanguageModel, Trainable):
    """The language model being trained."""


class Reference(LanguageModel):
    """A frozen language model that the policy is held close to."""


class Judge(LanguageModel):
    """A frozen language model that grades responses in words."""


class MovingReference(Reference, State):
    """A reference that follows the policy: it is refreshed or averaged, and carried from step to step."""

    kind = Kind.MODEL


class Critic(Trainable):
    """A model that estimates, at each response token, the score still to come: a value head on a backbone."""

    head = "values"


class RewardModel(Model):
    """A frozen model that scores whole responses: a sequence classifier with one output."""

    head = "score"


class Columns(Value):
    """The data set's columns of each row, in verl's schema (`pyarrow.Table` of B rows)."""

    kind = Kind.ROW
    dtype = "table"


class Prompts(Record):
    """The prompts of one step: which row of the data set each is, and that row's columns."""

    group: Group
    columns: Columns


class LogProbs(Value):
    """Log-probability of each response token, at the rollout's temperature: [B, T]."""

    kind = Kind.TOKEN
    dtype = "float32"


class Entropy(Value):
    """Entropy of the distribution each response token was drawn from, in nats: [B, T]."""

    kind = Kind.TOKEN
    dtype = "float32"


class SquaredProbs(Value):
    """Sum over the vocabulary of squared probabilities at each response token, of 1: [B, T]."""

    kind = Kind.TOKEN
    dtype = "float32"


class Values(Value):
    """A critic's estimate, before each response token, of the rewards from there on: [B, T]."""

    kind = Kind.TOKEN
    dtype = "float32"


class Returns(Value):
    """What a critic should have estimated at each response token: [B, T]."""

    kind = Kind.TOKEN
    dtype = "float32"


class TokenKL(Linear):
    """Estimate of the KL divergence from a reference at each response token, in nats: [B, T]."""

    kind = Kind.TOKEN
    dtype = "float32"


class ImportanceWeights(Value):
    """How much each token counts, to correct for the weights that drew it: [B, T], no gradient flows through it."""

    kind = Kind.TOKEN
    dtype = "float32"


class Chosen(Value):
    """Which tokens a loss treats apart from the others: [B, T] of 0 and 1. No mask: it is not averaged over."""

    kind = Kind.TOKEN
    dtype = "float32"


class KLWeight(State):
    """The factor of a KL term, carried from step to step (float)."""

    dtype = "float64"


class Versions(Value):
    """Which version of the policy drew each token: [B, T] int64; spans, since an update can land mid-response."""

    kind = Kind.TOKEN
    dtype = "int64"


class Finished(Value):
    """Whether each response ended by itself, not by the limit on its tokens: [B] bool."""

    kind = Kind.ROW
    dtype = "bool"


class Text(Value):
    """The text of each response, special tokens left out (`pyarrow.StringArray` of B)."""

    kind = Kind.ROW
    dtype = "text"


class Temperature(Value):
    """The temperature that responses were sampled at (float); 0 is greedy."""

    kind = Kind.SCALAR
    dtype = "float64"


class Responses(Record):
    """Responses that a model can read. Token columns are right-padded; identity is (group, sample, trajectory)."""

    group: Group
    sample: Sample
    trajectory: Trajectory
    context: Context
    tokens: Tokens
    mask: Mask
    lengths: Lengths
    temperature: Temperature


class Rollout(Responses):
    """Sampled responses, with what sampling told of them."""

    logprobs: LogProbs
    versions: Versions
    finished: Finished
    text: Text
    columns: Columns


class Scores(Linear):
    """One number for each response, higher is better: [B]."""

    kind = Kind.ROW
    dtype = "float32"


class Rewards(Linear):
    """What each response token earns: [B, T]; a score of the whole response stands at its last token."""

    kind = Kind.TOKEN
    dtype = "float32"


class Advantages(Linear):
    """How much better each response was than expected: [B], the same for all its tokens."""

    kind = Kind.ROW
    dtype = "float32"

    def per_token(self) -> Tensor:
        """Give them so that they broadcast over tokens: [B, 1]."""
        column: Tensor = self.data[:, None]
        return column


class TokenAdvantages(Advantages):
    """How much better each token was than expected: [B, T]."""

    kind = Kind.TOKEN

    def per_token(self) -> Tensor:
        """Give them as they are: [B, T]."""
        tokens: Tensor = self.data
        return tokens


class Accuracy(Value):
    """The share of responses with full marks, of 1 (float)."""

    kind = Kind.SCALAR
    dtype = "float64"
