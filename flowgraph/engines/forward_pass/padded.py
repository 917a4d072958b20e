"""One forward pass over padded rows, for models that cannot run on packed tokens.

Each distinct context is computed once. Samples of one prompt share its keys and values, so a group of n costs one
prompt, not n; gradients flow through the shared part. The model is always called twice: ranks that share a sharded
model gather its weights in each call, and wait for each other. A model with a head for whole texts is called once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from flowgraph.engines.forward_pass.chunked_head import read_logits
from flowgraph.engines.forward_pass.decode import device_of, full_precision, pad_left, read_distinct
from flowgraph.errors import LawError
from flowgraph.language.handle import ResponseRows, TokenStats
from flowgraph.models.libraries import transformers

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.language.values import Head


def read_padded(model: Any, rows: ResponseRows, names: Sequence[str], head: Head) -> TokenStats:
    """Return the statistics `names` of each response token [rows, tokens], from two calls of the model on padded rows.

    Values beyond the length of a response are zero. The first call runs the distinct contexts without their last
    tokens, the second the last context tokens and the responses. `head` is "tokens" or "values". Raises LawError for an
    empty context.
    """
    device, width = device_of(model), max(1, int(rows.lengths.max()) if len(rows.lengths) else 1)
    lengths, contexts = rows.lengths.to(device), rows.context.to_pylist() or [[0]]
    if not all(contexts):
        raise LawError("a response to 0 tokens has no token that its first token could follow")
    starts = [tuple(context[:-1]) for context in contexts]
    cache = transformers().DynamicCache(config=model.config) if head == "values" else None
    options: dict[str, Any] = {"logits_to_keep": 1} if cache is None else {"past_key_values": cache}
    out, mask, index = read_distinct(model, starts, device, **options)
    cache = out.past_key_values if cache is None else cache
    cache.batch_select_indices(index)
    mask = mask[index] * torch.tensor([bool(start) for start in starts], device=device)[:, None]
    tokens = rows.tokens.to(device)[:, :width]
    inside = torch.arange(width, device=device)[None] < lengths[:, None]
    tokens = torch.where(inside, tokens, 0) if len(tokens) else tokens.new_zeros(1, width)
    ids = torch.cat([torch.tensor([context[-1:] for context in contexts], device=device), tokens[:, :-1]], 1)
    # Padding has its row's last position: a model may have no positions beyond those that its rows need.
    last = (inside.sum(1, keepdim=True) - 1).clamp(min=0) if len(lengths) else inside.new_zeros(1, 1).long()
    positions = mask.sum(1, keepdim=True) + torch.arange(width, device=device)[None].minimum(last)
    out = model(
        input_ids=ids,
        attention_mask=torch.cat([mask, torch.ones_like(ids)], 1),
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
    )
    if head == "values":
        stats = {"values": full_precision(out.logits)[..., 0]}
    else:
        read = read_logits(out.logits, tokens, names, rows.temperature, rows.truncation)
        stats = dict(zip(names, read, strict=True))
    padded = {name: stat.new_zeros(rows.tokens.shape, device=rows.tokens.device) for name, stat in stats.items()}
    for name, stat in stats.items():
        padded[name][:, :width] = stat[: len(rows.lengths)].masked_fill(~inside, 0.0).to(rows.tokens.device)
    return TokenStats(**padded)


def score_texts(model: Any, rows: ResponseRows) -> Tensor:
    """Return the score [rows] of each text: the model's output at the last token of its context and response.

    Raises LawError if a row has neither context nor response tokens.
    """
    responses = zip(rows.tokens.tolist(), rows.lengths.tolist(), strict=True)
    pairs = zip(rows.context.to_pylist(), responses, strict=True)
    texts = [[*context, *tokens[:length]] for context, (tokens, length) in pairs]
    if not all(texts):
        raise LawError("a text of 0 tokens has no last token to read its score at")
    ids, mask = pad_left(texts or [[0]], device_of(model))
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    # transformers reads a score at the last token that is not padding, whose id is often that of an end token too.
    config = model.config.get_text_config()
    padding, config.pad_token_id = config.pad_token_id, -1  # no token's id: it reads the last column
    try:
        out = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
    finally:
        config.pad_token_id = padding
    return full_precision(out.logits)[: len(texts), 0].to(rows.tokens.device)
