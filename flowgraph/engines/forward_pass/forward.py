"""One forward pass over responses, of packed tokens where the model allows it: the statistics of each response token.

Each distinct context is read once, and every response after its own, so a group of n samples costs one prompt, not n.
It is also the way the sampler reads, so the two agree to rounding. A model is called as often whatever the rows: once
on packed tokens, twice on padded rows. Ranks that share a sharded model gather its weights in each call, and wait for
each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from flowgraph.engines.forward_pass.packed import Packing, read_packed
from flowgraph.engines.forward_pass.packing import packed_tokens
from flowgraph.engines.forward_pass.packing_probe import choose, padded_because
from flowgraph.engines.forward_pass.padded import read_padded, score_texts
from flowgraph.errors import LawError
from flowgraph.language.handle import ResponseRows, TokenStats
from flowgraph.models.heads import head_of

if TYPE_CHECKING:
    from flowgraph.engines.forward_pass.sequence_parallel import SequenceRanks
    from flowgraph.language.values import Head

GIVES: Mapping[Head, tuple[str, ...]] = {
    "tokens": ("logprobs", "entropy", "square_probs"),
    "values": ("values",),
    "score": ("score",),
}
"""The statistics that each head gives."""


def forward_stats(
    model: Any,
    rows: ResponseRows,
    wanted: Sequence[str],
    *,
    packing: Packing | Literal["chosen"] | None = "chosen",
    sequence: SequenceRanks | None = None,
) -> TokenStats:
    """Give the statistics of each response token: [B, T] each, zero beyond a row's length; of a text its score [B].

    No rows at all still run one token through the model in each call, and give gradients of zero. `packing` None reads
    padded rows; by default the model is tried once (`choose`). The peers of `sequence` all come with the same rows, run
    a slice each of the packed tokens, and get the same statistics; a gradient is then the sum over the peers. Raises
    LawError for what the model's head does not give, and for several peers of a model that reads padded rows.
    """
    head = head_of(model)
    unknown = sorted(set(wanted) - set(GIVES[head]))
    if unknown:
        raise LawError(f"this model's head gives {', '.join(GIVES[head])}, and no {', '.join(unknown)}")
    packing = choose(model) if packing == "chosen" else packing
    if packing is not None:
        return read_packed(model, rows, wanted, packing, sequence)
    if sequence is not None and sequence.count > 1:
        why = padded_because(model) or "padded rows were asked for"
        hint = "let the plan give this model's ranks other rows each: data parallel, not sequence parallel"
        raise LawError(f"{sequence.count} ranks cannot share a sequence: {why}", hint=hint)
    return TokenStats(score=score_texts(model, rows)) if head == "score" else read_padded(model, rows, wanted, head)


def cut(rows: ResponseRows, forward_tokens: int, *, padded: bool = False) -> list[ResponseRows]:
    """Cut rows in order into parts of at most `forward_tokens` tokens, packed or `padded`, or of one longer row.

    No rows are one part. A context counts once in each part for neighbours that share it.
    """
    return _cut_padded(rows, forward_tokens) if padded else _cut_packed(rows, forward_tokens)


def _cut_packed(rows: ResponseRows, forward_tokens: int) -> list[ResponseRows]:
    added, alone = packed_tokens(rows).tolist(), packed_tokens(rows, shared=False).tolist()
    starts, filled = [0], 0
    for row, more in enumerate(added):
        filled += more
        if filled > forward_tokens and row > starts[-1]:
            starts.append(row)
            filled = alone[row]
    pairs = zip(starts, [*starts[1:], max(len(added), 1)], strict=True)
    return [_between(rows, start, stop) for start, stop in pairs]


def _cut_padded(rows: ResponseRows, forward_tokens: int) -> list[ResponseRows]:
    widths = rows.context.value_lengths().to_numpy() + rows.lengths.numpy(force=True)
    size = max(1, forward_tokens // int(widths.max(initial=1)))
    return [_between(rows, start, start + size) for start in range(0, max(len(rows.tokens), 1), size)]


def _between(rows: ResponseRows, start: int, stop: int) -> ResponseRows:
    context = rows.context.slice(start, stop - start)
    return ResponseRows(context, rows.tokens[start:stop], rows.lengths[start:stop], rows.temperature)


def join_stats(parts: Sequence[TokenStats], wanted: Sequence[str]) -> TokenStats:
    """Put the statistics of parts of the rows one after another."""
    return TokenStats(**{name: torch.cat([getattr(part, name) for part in parts]) for name in wanted})
