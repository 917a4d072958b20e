"""Statistics of response tokens, computed without having all logits in memory at once.

During a call, the output embedding of a language model processes the hidden states of response tokens only, in chunks,
and returns their statistics instead of logits, inside the model's own forward pass: hooks on the model and on the head
still run. The logits of a chunk are recomputed in the backward pass, so that only one chunk is in memory at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from flowgraph.engines.forward_pass.decode import full_precision
from flowgraph.engines.forward_pass.truncation import truncated
from flowgraph.language.handle import WHOLE_VOCABULARY, Truncation

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_NUMBERS = 2**24  # logits of a chunk: 64 MiB in float32
_SCALES = {"final_logit_softcapping": None, "logits_scaling": 1.0, "logit_scale": 1.0}
"""Settings of models that change logits after the head, and the value that leaves them unchanged."""


def read_logits(
    logits: Tensor,
    tokens: Tensor,
    names: Sequence[str],
    temperature: float,
    truncation: Truncation = WHOLE_VOCABULARY,
) -> list[Tensor]:
    """Return a tensor [...] for each of `names`, in order: a statistic of `tokens` [...] under `logits` [..., V].

    The names are `logprobs` (nats), `entropy` (nats) and `square_probs` (the sum of squared probabilities). Logits are
    first divided by `temperature`, unless it is 0. Tokens that `truncation` leaves out have probability 0, except
    `tokens` themselves.
    """
    logits = full_precision(logits)
    if temperature not in (0, 1):
        logits = logits / temperature
    if truncation != WHOLE_VOCABULARY:
        logits = truncated(logits, truncation, tokens)
    norm = logits.logsumexp(-1)

    def statistic(name: str) -> Tensor:
        if name == "logprobs":
            return logits.gather(-1, tokens[..., None])[..., 0] - norm
        if name == "entropy":
            finite = logits if truncation == WHOLE_VOCABULARY else logits.masked_fill(logits.isneginf(), 0.0)
            return norm - (torch.softmax(logits, -1) * finite).sum(-1)
        assert name == "square_probs", name
        return ((2 * logits).logsumexp(-1) - 2 * norm).exp()

    return [statistic(name) for name in names]


@contextlib.contextmanager
def stats_head(
    model: Any,
    reads: Tensor,
    tokens: Tensor,
    names: Sequence[str],
    temperature: float,
    chunk_tokens: int | None,
    truncation: Truncation = WHOLE_VOCABULARY,
) -> Generator[None]:
    """Make a language model return statistics [1, n, len(names)] instead of logits inside the `with` block.

    These are statistics of `tokens` [n] under the logits at the indices `reads` [n] of the packed row. `names`,
    `temperature` and `truncation` are as for `read_logits`. `chunk_tokens` is the largest number of tokens in a chunk;
    None means that a chunk has at most 2**24 logits.
    """
    head, config = model.get_output_embeddings(), model.config.get_text_config()
    original = head.forward
    cap, divisor, factor = (getattr(config, name, None) for name in _SCALES)

    def scaled(logits: Tensor) -> Tensor:
        logits = logits if divisor is None else logits / divisor
        logits = logits if factor is None else logits * factor
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def chunk(hidden: Tensor, tokens: Tensor) -> Tensor:
        logits = scaled(original(hidden[None]))
        return torch.stack(read_logits(logits, tokens[None], names, temperature, truncation), -1)

    def forward(hidden: Tensor) -> Tensor:
        picked = hidden[0].index_select(0, reads)
        size = chunk_tokens or max(1, CHUNK_NUMBERS // max(1, config.vocab_size))
        pairs = list(zip(torch.split(picked, size), torch.split(tokens, size), strict=True))
        if len(pairs) == 1 or not torch.is_grad_enabled():
            return torch.cat([chunk(*pair) for pair in pairs], 1)
        again: Any = checkpoint
        parts = [again(chunk, *pair, use_reentrant=False, preserve_rng_state=False) for pair in pairs]
        return torch.cat(parts, 1)  # no view, which FSDP's hook on the output would warn of

    with contextlib.ExitStack() as stack:
        stack.enter_context(_replaced(head, "forward", forward))
        for owner in (model.config, config, model):  # so that the model does not scale the statistics
            for name, neutral in _SCALES.items():
                if isinstance(getattr(owner, name, None), float | int):
                    stack.enter_context(_replaced(owner, name, neutral))
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Generator[None]:
    is_own, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
