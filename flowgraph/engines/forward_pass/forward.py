"""Compute statistics of each response token in one forward pass, over packed tokens where the model supports them.

Each distinct context is computed once for all its responses, so a group of n samples costs one prompt, not n. The
sampler computes contexts in the same way, so log-probs of both agree up to rounding. The number of model calls does not
depend on the rows: one on packed tokens, two on padded rows. Ranks that share a sharded model gather its weights in
each call, and wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from flowgraph.engines.forward_pass.packed import Packing, read_packed
from flowgraph.engines.forward_pass.packing import packed_tokens
from flowgraph.engines.forward_pass.packing_probe import GIVES, choose_packing, padding_reason
from flowgraph.engines.forward_pass.padded import read_padded, score_texts
from flowgraph.errors import LawError
from flowgraph.language.handle import ResponseRows, TokenStats
from flowgraph.models.heads import head_of

if TYPE_CHECKING:
    from flowgraph.engines.fsdp.ranks import ProcessRanks


def forward_stats(
    model: Any,
    rows: ResponseRows,
    names: Sequence[str],
    *,
    packing: Packing | Literal["chosen"] | None = "chosen",
    sequence: ProcessRanks | None = None,
) -> TokenStats:
    """Return the statistics `names` of each response token [rows, tokens], or the score of each text [rows].

    Values beyond the length of a response are zero. Without rows, the model still runs on padding, and gradients are
    zero. `packing` describes how the model runs on packed tokens; None means padded rows, and "chosen" the result of
    `choose_packing`. All ranks of `sequence` pass the same rows, each runs a slice of the packed tokens, and all get
    the same statistics; the full gradient is the sum over these ranks.

    Raises LawError for statistics that the model's head does not give, for several ranks in `sequence` if the model
    runs on padded rows, for a response with an empty context, for a text without tokens whose score is requested, and
    as `read_packed` does.
    """
    head = head_of(model)
    unknown = sorted(set(names) - set(GIVES[head]))
    if unknown:
        raise LawError(f"this model's head gives {', '.join(GIVES[head])}, but not {', '.join(unknown)}")
    packing = choose_packing(model) if packing == "chosen" else packing
    if packing is not None:
        return read_packed(model, rows, names, packing, sequence)[0]
    if sequence is not None and sequence.count > 1:
        why = padding_reason(model) or "padded rows were requested"
        hint = "in the plan, give each rank of this model its own rows: data parallel, not sequence parallel"
        raise LawError(f"{sequence.count} ranks cannot share a sequence: {why}", hint=hint)
    return TokenStats(score=score_texts(model, rows)) if head == "score" else read_padded(model, rows, names, head)


def split_rows(rows: ResponseRows, forward_tokens: int, *, padded: bool = False) -> list[ResponseRows]:
    """Return the rows, in order, in parts of at most `forward_tokens` tokens; a longer row is a part by itself.

    With `padded`, each row counts as many tokens as the longest of all rows. Otherwise, a context that adjacent rows of
    a part share counts once, and the last token of a response does not count. Without rows, the result is one empty
    part.
    """
    count = len(rows.tokens)
    if padded:
        widths = rows.context.value_lengths().to_numpy() + rows.lengths.numpy(force=True)
        starts = [*range(0, max(count, 1), max(1, forward_tokens // int(widths.max(initial=1))))]
    else:
        starts, filled = [0], 0
        sizes = zip(packed_tokens(rows).tolist(), packed_tokens(rows, shared=False).tolist(), strict=True)
        for row, (added, unshared) in enumerate(sizes):
            filled += added
            if filled > forward_tokens and row > starts[-1]:
                starts.append(row)
                filled = unshared
    return [
        replace(
            rows,
            context=rows.context.slice(start, stop - start),
            tokens=rows.tokens[start:stop],
            lengths=rows.lengths[start:stop],
        )
        for start, stop in zip(starts, [*starts[1:], max(count, 1)], strict=True)
    ]
