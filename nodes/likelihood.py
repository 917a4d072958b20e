"""Statistics of response tokens from a forward pass. Nodes on one model and the same responses share one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from flowgraph import node
from flowgraph.language import NodeName, Parts
from flowgraph.language.handle import ResponseRows
from nodes.values import Critic, Entropy, LanguageModel, LogProbs, Responses, SquaredProbs, Values

if TYPE_CHECKING:
    from torch import Tensor

READ = Parts("context", "tokens", "lengths", "temperature")


@node(kind="logprob", stat="logprobs")
def logprobs(model: LanguageModel, rollout: Annotated[Responses, READ], *, name: NodeName = "") -> LogProbs:
    """Return the log-prob of each response token under a model: [B, T].

    The distribution has the rollout's temperature, and its truncation of this model's probabilities. The truncation
    always keeps the response's own token; otherwise a model that has changed since sampling could give this token
    probability 0.
    Source: DeepSeek-AI 2025 (V3.2), arXiv 2512.02556, section 3.1, keeps the mask of sampling for this. Deviation: the
    mask is computed again from the model's probabilities.
    """
    return LogProbs(_stat(model, rollout, "logprobs"))


@node(kind="logprob", stat="entropy")
def entropy(model: LanguageModel, rollout: Annotated[Responses, READ], *, name: NodeName = "") -> Entropy:
    """Return the entropy, in nats, of the distribution of `logprobs` at each response token: [B, T]."""
    return Entropy(_stat(model, rollout, "entropy"))


@node(kind="logprob", stat="square_probs")
def squared_probs(model: LanguageModel, rollout: Annotated[Responses, READ], *, name: NodeName = "") -> SquaredProbs:
    """Return the sum of squared probabilities, as in `logprobs`, of a model at each response token: [B, T].

    The sum is over the vocabulary, and the distribution is that of `logprobs`.
    """
    return SquaredProbs(_stat(model, rollout, "square_probs"))


@node(kind="logprob", stat="values")
def critic_values(model: Critic, rollout: Annotated[Responses, READ], *, name: NodeName = "") -> Values:
    """Return the critic's estimate, before each response token, of the rewards from there on: [B, T]."""
    return Values(_stat(model, rollout, "values"))


def _stat(model: LanguageModel | Critic, rollout: Responses, name: str) -> Tensor:
    distribution = rollout.temperature.distribution()
    rows = ResponseRows(rollout.context.data, rollout.tokens.data, rollout.lengths.data, *distribution)
    stat: Tensor = getattr(model.handle.token_stats(rows, (name,)), name)
    return stat
