"""Statistics of response tokens from logits that never exist all at once.

For a call, the output embedding of a language model reads the hidden states of response tokens only, in chunks, and
gives their statistics in place of logits, inside the model's own forward pass: hooks on the model, and on the head,
stay in force. A chunk's logits are made again in the backward pass, so that one chunk lives at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from flowgraph.engines.forward_pass.decode import full_precision

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_NUMBERS = 2**24  # logits of a chunk: 64 MiB in float32
_SCALES = {"final_logit_softcapping": None, "logits_scaling": 1.0, "logit_scale": 1.0}
"""What configurations say is done to logits after the head, and the value with which nothing is."""


def read_logits(logits: Tensor, tokens: Tensor, wanted: Sequence[str], temperature: float) -> list[Tensor]:
    """Read logits [..., V] of `tokens` [...]: each statistic wanted [...], in that order, at the temperature."""
    logits = full_precision(logits)
    if temperature not in (0, 1):
        logits = logits / temperature
    norm = logits.logsumexp(-1)

    def told(name: str) -> Tensor:
        if name == "logprobs":
            return logits.gather(-1, tokens[..., None])[..., 0] - norm
        if name == "entropy":
            return norm - (torch.softmax(logits, -1) * logits).sum(-1)
        assert name == "square_probs", name
        return ((2 * logits).logsumexp(-1) - 2 * norm).exp()

    return [told(name) for name in wanted]


@contextlib.contextmanager
def stats_head(
    model: Any, reads: Tensor, tokens: Tensor, wanted: Sequence[str], temperature: float, chunk_tokens: int | None
) -> Generator[None]:
    """Let a language model's call inside give statistics [1, n, wanted] as its logits, of the tokens [n] at `reads`.

    `chunk_tokens` bounds how many are read at once; None: by the vocabulary.
    """
    head, scaled = model.get_output_embeddings(), _scaling(model)
    original = head.forward

    def chunk(hidden: Tensor, tokens: Tensor) -> Tensor:
        return torch.stack(read_logits(scaled(original(hidden[None])), tokens[None], wanted, temperature), -1)

    def forward(hidden: Tensor) -> Tensor:
        picked = hidden[0].index_select(0, reads)
        size = chunk_tokens or max(1, CHUNK_NUMBERS // max(1, model.config.get_text_config().vocab_size))
        pairs = list(zip(torch.split(picked, size), torch.split(tokens, size), strict=True))
        if len(pairs) == 1 or not torch.is_grad_enabled():
            return torch.cat([chunk(*pair) for pair in pairs], 1)
        again: Any = checkpoint
        parts = [again(chunk, *pair, use_reentrant=False, preserve_rng_state=False) for pair in pairs]
        return torch.cat(parts, 1)  # no view, which FSDP's hook on the output would warn of

    with _replaced(head, "forward", forward), _unscaled(model):
        yield


def _scaling(model: Any) -> Callable[[Tensor], Tensor]:
    """Give what a model does to the logits of its head, as far as its configuration says."""
    config = model.config.get_text_config()
    cap, divisor, factor = (getattr(config, name, None) for name in _SCALES)

    def scaled(logits: Tensor) -> Tensor:
        logits = logits if divisor is None else logits / divisor
        logits = logits if factor is None else logits * factor
        return logits if cap is None else torch.tanh(logits / cap) * cap

    return scaled


@contextlib.contextmanager
def _unscaled(model: Any) -> Generator[None]:
    """Keep a model from doing to statistics what it does to logits."""
    with contextlib.ExitStack() as stack:
        for owner in (model.config, model.config.get_text_config(), model):
            for name, nothing in _SCALES.items():
                if isinstance(getattr(owner, name, None), float | int):
                    stack.enter_context(_replaced(owner, name, nothing))
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Generator[None]:
    """Set an attribute of an object for a while, and leave it as it was."""
    had, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
