"""What a forward pass tells of each response token. Nodes on one model and rollout share one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from flowgraph import Parts, node
from flowgraph.executors.base import Rows
from nodes.values import Entropy, LanguageModel, LogProbs, Rollout

if TYPE_CHECKING:
    from torch import Tensor

READ = Parts("context", "tokens", "lengths", "temperature")


@node(kind="logprob", stat="logprobs")
def logprobs(model: LanguageModel, rollout: Annotated[Rollout, READ]) -> LogProbs:
    """Give the log-prob of each response token under `model`, at the rollout's temperature: [B, T]."""
    return LogProbs(_stat(model, rollout, "logprobs"))


@node(kind="logprob", stat="entropy")
def entropy(model: LanguageModel, rollout: Annotated[Rollout, READ]) -> Entropy:
    """Give the entropy of `model` at each response token, in nats, at the rollout's temperature: [B, T]."""
    return Entropy(_stat(model, rollout, "entropy"))


def _stat(model: LanguageModel, rollout: Rollout, name: str) -> Tensor:
    rows = Rows(rollout.context.data, rollout.tokens.data, rollout.lengths.data, rollout.temperature.data)
    stat: Tensor = getattr(model.handle.token_stats(rows, (name,)), name)
    return stat
