"""The values of reinforcement learning on language models. Values of one shape but different meaning differ in type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowgraph.errors import LawError
from flowgraph.language.handle import WHOLE_VOCABULARY, Truncation
from flowgraph.language.values import (
    Context,
    Elementwise,
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
    Versions,
)

if TYPE_CHECKING:
    from torch import Tensor


class LanguageModel(Model):
    """A model that predicts log-probs of tokens."""


class Policy(LanguageModel, Trainable):
    """The language model being trained."""


class Reference(LanguageModel):
    """A frozen language model to which the policy stays close."""


class Judge(LanguageModel):
    """A frozen language model that grades responses in words."""


class MovingReference(Reference, State):
    """A reference that follows the policy: it is replaced or averaged, and carried from step to step."""

    kind = Kind.MODEL


class Critic(Trainable):
    """A model that estimates, at each response token, the rewards still to come: a value head on a backbone."""

    head = "values"


class RewardModel(Model):
    """A frozen model that scores whole responses: a sequence classifier with one output."""

    head = "score"


class ProcessRewardModel(Model):
    """A frozen model that scores each token of a response: a classifier of tokens with one output."""

    head = "rewards"


class Columns(Value):
    """The data set's columns of each row, in verl's schema (`pyarrow.Table` of B rows)."""

    kind = Kind.ROW
    dtype = "table"


class Prompts(Record):
    """The prompts of one step: for each prompt, the index of its row in the data set and the columns of that row."""

    group: Group
    columns: Columns


class LogProbs(Value):
    """Log-probability of each response token, at the rollout's temperature: [B, T]."""

    kind = Kind.TOKEN
    dtype = "float32"


class Entropy(Value):
    """Entropy of the distribution from which each response token was sampled, in nats: [B, T]."""

    kind = Kind.TOKEN
    dtype = "float32"


class SquaredProbs(Value):
    """Sum over the vocabulary of squared probabilities at each response token, from 0 to 1: [B, T]."""

    kind = Kind.TOKEN
    dtype = "float32"


class Values(Value):
    """A critic's estimate, before each response token, of the rewards from there on: [B, T]."""

    kind = Kind.TOKEN
    dtype = "float32"


class Returns(Value):
    """The target of a critic's estimate at each response token: [B, T]."""

    kind = Kind.TOKEN
    dtype = "float32"


class TokenKL(Linear):
    """Estimate of the KL divergence from a reference at each response token, in nats: [B, T]."""

    kind = Kind.TOKEN
    dtype = "float32"


class ImportanceWeights(Value):
    """The weight of each token in a loss, which corrects for the policy that sampled it: [B, T], without a gradient."""

    kind = Kind.TOKEN
    dtype = "float32"


class Chosen(Value):
    """The tokens that a loss treats differently: [B, T] of 0 and 1. Not a mask: means do not divide by their count."""

    kind = Kind.TOKEN
    dtype = "float32"


class KLWeight(State):
    """The factor of a KL term, carried from step to step (float)."""

    dtype = "float64"


class Finished(Value):
    """Whether an end token or a stop ended each response, rather than the limit on its tokens: [B] bool."""

    kind = Kind.ROW
    dtype = "bool"


class Text(Value):
    """The text of each response, without special tokens (`pyarrow.StringArray` of B)."""

    kind = Kind.ROW
    dtype = "text"


class Temperature(Value):
    """The temperature at which responses were sampled (float); 0 is greedy.

    If they were sampled from a part of the vocabulary, it is a dict with the temperature and that truncation, such as
    {"temperature": 0.7, "top_p": 0.9}.
    """

    kind = Kind.SCALAR
    dtype = "float64"

    @classmethod
    def with_truncation(cls, temperature: float, truncation: Truncation) -> Temperature:
        """Return the value with the settings of `truncation` that are in effect; at temperature 0 there are none."""
        changed = dict(truncation.changed() if temperature else ())
        return cls({"temperature": temperature, **changed} if changed else temperature)

    def distribution(self) -> tuple[float, Truncation]:
        """Return the temperature and the truncation; without a recorded truncation, that of the whole vocabulary.

        Raises LawError for a dict without a temperature, with an unknown name, or with a value that is not a number.

        >>> Temperature({"temperature": 0.7, "top_p": 0.9}).distribution()
        (0.7, Truncation(top_k=0, top_p=0.9, min_p=0.0))
        """
        if not isinstance(self.data, dict):
            return self.data, WHOLE_VOCABULARY
        try:
            settings = {name: float(value) for name, value in self.data.items()}
            temperature, top_k = settings.pop("temperature"), settings.pop("top_k", 0)
            return temperature, Truncation(int(top_k), **settings)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise LawError(f"a rollout's temperature cannot be {self.data}") from None


class Responses(Record):
    """Responses that a model can read, padded on the right. Group, sample and trajectory identify a row."""

    group: Group
    sample: Sample
    trajectory: Trajectory
    context: Context
    tokens: Tokens
    mask: Mask
    lengths: Lengths
    temperature: Temperature


class Rollout(Responses):
    """Sampled responses, with the log-probs, versions and texts from sampling."""

    logprobs: LogProbs
    versions: Versions
    finished: Finished
    text: Text
    columns: Columns


class Scores(Elementwise):
    """One number for each response, higher is better: [B]."""

    kind = Kind.ROW
    dtype = "float32"


class Rewards(Linear):
    """The reward of each response token: [B, T]; a response's score is the reward of its last token."""

    kind = Kind.TOKEN
    dtype = "float32"


class Advantages(Linear):
    """How much better each response is than expected: [B], the same for all its tokens."""

    kind = Kind.ROW
    dtype = "float32"

    def per_token(self) -> Tensor:
        """Return the advantages in a shape that broadcasts over tokens: [B, 1]."""
        column: Tensor = self.data[:, None]
        return column


class TokenAdvantages(Advantages):
    """How much better each token is than expected: [B, T]."""

    kind = Kind.TOKEN

    def per_token(self) -> Tensor:
        """Return the advantages unchanged, one for each token: [B, T]."""
        tokens: Tensor = self.data
        return tokens


class Accuracy(Value):
    """The share of responses that score full marks, from 0 to 1 (float)."""

    kind = Kind.SCALAR
    dtype = "float64"
