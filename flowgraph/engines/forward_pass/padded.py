"""One forward pass over padded rows: each distinct context is read once, then every response after its own.

For models that packed tokens do not suit. Samples of one prompt share its keys and values, so a group of n costs one
prompt, not n; gradients flow through the shared part. The model is always called twice, whatever the rows: ranks that
share a sharded model gather its weights in each call, and wait for each other. A model with a head for whole texts is
called once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from flowgraph.engines.forward_pass.chunked_head import read_logits
from flowgraph.engines.forward_pass.decode import full_precision, pad_left
from flowgraph.engines.model_state.handle_rules import device_of
from flowgraph.errors import LawError
from flowgraph.language.handle import ResponseRows, TokenStats
from flowgraph.models.libraries import transformers

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.language.values import Head


def read_padded(model: Any, rows: ResponseRows, wanted: Sequence[str], head: Head) -> TokenStats:
    """Read contexts, then each response after its own. A value stands where the logits of its token stand."""
    device, width = device_of(model), max(1, int(rows.lengths.max()) if len(rows.lengths) else 1)
    lengths, contexts = rows.lengths.to(device), rows.context.to_pylist() or [[0]]
    cache, mask = _read_contexts(model, contexts, device, head)
    tokens = rows.tokens.to(device)[:, :width]
    inside = torch.arange(width, device=device)[None] < lengths[:, None]
    tokens = torch.where(inside, tokens, 0) if len(tokens) else tokens.new_zeros(1, width)
    ids = torch.cat([torch.tensor([context[-1:] for context in contexts], device=device), tokens[:, :-1]], 1)
    # Padding stays at its row's last place: a model may have no position beyond those that its rows need.
    last = (inside.sum(1, keepdim=True) - 1).clamp(min=0) if len(lengths) else inside.new_zeros(1, 1).long()
    places = mask.sum(1, keepdim=True) + torch.arange(width, device=device)[None].minimum(last)
    out = model(
        input_ids=ids,
        attention_mask=torch.cat([mask, torch.ones_like(ids)], 1),
        position_ids=places,
        past_key_values=cache,
        use_cache=True,
    )
    if head == "values":
        stats = {"values": full_precision(out.logits)[..., 0]}
    else:
        stats = dict(zip(wanted, read_logits(out.logits, tokens, wanted, rows.temperature), strict=True))
    return TokenStats(**{name: _laid_out(stat, inside, rows) for name, stat in stats.items()})


def _read_contexts(model: Any, contexts: Sequence[Sequence[int]], device: Any, head: Head) -> tuple[Any, Tensor]:
    """Read each distinct context but for its last token; give the cache and mask [B, P - 1], one row a response.

    A context of one token has nothing before it: it reads a token that the mask hides, so that P is at least 2. A
    language model makes the cache itself and keeps the last logits only; a classifier fills the one that it is given.
    """
    starts = [tuple(context[:-1]) for context in contexts]
    place = {start: i for i, start in enumerate(dict.fromkeys(starts))}
    ids, read = pad_left([start or (0,) for start in place], device)
    index = torch.tensor([place[start] for start in starts], device=device)
    positions = (read.cumsum(1) - 1).clamp(min=0)
    made = transformers().DynamicCache(config=model.config) if head == "values" else None
    more: dict[str, Any] = {"logits_to_keep": 1} if made is None else {"past_key_values": made}
    out = model(input_ids=ids, attention_mask=read, position_ids=positions, use_cache=True, **more)
    cache = out.past_key_values if made is None else made
    cache.batch_select_indices(index)
    real = torch.tensor([bool(start) for start in starts], device=device)
    return cache, read[index] * real[:, None]


def score_texts(model: Any, rows: ResponseRows) -> Tensor:
    """Give the output [B] at the last token of each row's context and response."""
    responses = zip(rows.tokens.tolist(), rows.lengths.tolist(), strict=True)
    pairs = zip(rows.context.to_pylist(), responses, strict=True)
    texts = [[*context, *tokens[:length]] for context, (tokens, length) in pairs]
    if not all(texts):
        raise LawError("a text of 0 tokens has no last token to read its score at")
    ids, mask = pad_left(texts or [[0]], device_of(model))
    places = (mask.cumsum(1) - 1).clamp(min=0)
    with _read_at_the_end(model):
        out = model(input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False)
    return full_precision(out.logits)[: len(texts), 0].to(rows.tokens.device)


@contextlib.contextmanager
def _read_at_the_end(model: Any) -> Generator[None]:
    """Let a classifier read its output at the last column inside, whatever stands there.

    transformers reads it at the last token that has not the id of padding, which an end token often has as well.
    """
    config = model.config.get_text_config()
    padding, config.pad_token_id = config.pad_token_id, -1  # no token's id
    try:
        yield
    finally:
        config.pad_token_id = padding


def _laid_out(stat: Tensor, inside: Tensor, rows: ResponseRows) -> Tensor:
    """Zero what lies beyond each row's length, and widen to the rows' own [B, T], where the rows are."""
    kept = stat[: len(rows.lengths)].masked_fill(~inside, 0.0).to(rows.tokens.device)
    wide = kept.new_zeros(rows.tokens.shape)
    wide[:, : kept.shape[1]] = kept
    return wide
