"""One forward pass over responses: each distinct context is read once, then every response after its own.

Samples of one prompt share its keys and values, so a group of n costs one prompt, not n; gradients flow through the
shared part. It is also the way the sampler reads, so the two agree to rounding. The model is always called twice,
whatever the rows: ranks that share a sharded model gather its weights in each call, and wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowgraph.executors.base import Rows, TokenStats
from flowgraph.executors.decode import full_precision, pad_left

if TYPE_CHECKING:
    from torch import Tensor


def forward_stats(model: Any, rows: Rows, wanted: Sequence[str]) -> TokenStats:
    """Give the statistics of each response token: [B, T] each, zero beyond a row's length.

    No rows at all still run one token through the model in both calls, and give gradients of zero.
    """
    import torch

    device, width = next(model.parameters()).device, max(1, int(rows.lengths.max()) if len(rows.lengths) else 1)
    lengths, contexts = rows.lengths.to(device), rows.context.to_pylist() or [[0]]
    cache, mask = _read_contexts(model, contexts, device)
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
    logits = full_precision(out.logits)
    if rows.temperature not in (0, 1):
        logits = logits / rows.temperature
    stats = _read_logits(logits, tokens, wanted)
    return TokenStats(**{name: _laid_out(stat, inside, rows) for name, stat in stats.items()})


def _read_contexts(model: Any, contexts: Sequence[Sequence[int]], device: Any) -> tuple[Any, Tensor]:
    """Read each distinct context but for its last token; give the cache and mask [B, P - 1], one row a response.

    A context of one token has nothing before it: it reads a token that the mask hides, so that P is at least 2.
    """
    import torch

    heads = [tuple(context[:-1]) for context in contexts]
    place = {head: i for i, head in enumerate(dict.fromkeys(heads))}
    ids, read = pad_left([head or (0,) for head in place], device)
    index = torch.tensor([place[head] for head in heads], device=device)
    positions = (read.cumsum(1) - 1).clamp(min=0)
    out = model(input_ids=ids, attention_mask=read, position_ids=positions, use_cache=True, logits_to_keep=1)
    out.past_key_values.batch_select_indices(index)
    real = torch.tensor([bool(head) for head in heads], device=device)
    return out.past_key_values, read[index] * real[:, None]


def cut(rows: Rows, forward_tokens: int) -> list[Rows]:
    """Cut rows in order into parts of at most `forward_tokens` padded tokens, or of one longer row.

    No rows are one part.
    """
    widths = rows.context.value_lengths().to_numpy() + rows.lengths.numpy(force=True)
    size = max(1, forward_tokens // int(widths.max(initial=1)))
    return [_between(rows, start, start + size) for start in range(0, max(len(rows.tokens), 1), size)]


def _between(rows: Rows, start: int, stop: int) -> Rows:
    context = rows.context.slice(start, stop - start)
    return Rows(context, rows.tokens[start:stop], rows.lengths[start:stop], rows.temperature)


def join_stats(parts: Sequence[TokenStats], wanted: Sequence[str]) -> TokenStats:
    """Put the statistics of parts of the rows one after another."""
    import torch

    return TokenStats(**{name: torch.cat([getattr(part, name) for part in parts]) for name in wanted})


def _laid_out(stat: Tensor, inside: Tensor, rows: Rows) -> Tensor:
    """Zero what lies beyond each row's length, and widen to the rows' own [B, T], where the rows are."""
    kept = stat[: len(rows.lengths)].masked_fill(~inside, 0.0).to(rows.tokens.device)
    wide = kept.new_zeros(rows.tokens.shape)
    wide[:, : kept.shape[1]] = kept
    return wide


def _read_logits(logits: Tensor, tokens: Tensor, wanted: Sequence[str]) -> dict[str, Tensor]:
    """Read [B, T, V] logits: the log-prob of each token, the entropy and the sum of squared probabilities."""
    import torch

    norm = logits.logsumexp(-1)
    stats = dict[str, "Tensor"]()
    if "logprobs" in wanted:
        stats["logprobs"] = logits.gather(-1, tokens[..., None])[..., 0] - norm
    if "entropy" in wanted:
        stats["entropy"] = norm - (torch.softmax(logits, -1) * logits).sum(-1)
    if "square_probs" in wanted:
        stats["square_probs"] = ((2 * logits).logsumexp(-1) - 2 * norm).exp()
    return stats
