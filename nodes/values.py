"""The values of reinforcement learning on language models. Same shape is not same type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowgraph.values import (
    Context,
    Group,
    Kind,
    Lengths,
    Linear,
    Mask,
    Model,
    Record,
    Sample,
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


class Rollout(Record):
    """Sampled responses. Token columns are right-padded to the longest; identity is (group, sample, trajectory)."""

    group: Group
    sample: Sample
    trajectory: Trajectory
    context: Context
    tokens: Tokens
    mask: Mask
    lengths: Lengths
    logprobs: LogProbs
    versions: Versions
    finished: Finished
    text: Text
    columns: Columns
    temperature: Temperature


class Scores(Linear):
    """One number for each response, higher is better: [B]."""

    kind = Kind.ROW
    dtype = "float32"


class Advantages(Value):
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
