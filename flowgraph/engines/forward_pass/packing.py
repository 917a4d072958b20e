"""Rows packed into one for a forward pass: each distinct context once, then the responses to it, without padding.

Not here: attention, which uses `Segments`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flowgraph.errors import LawError
from flowgraph.language.handle import ResponseRows

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Segments:
    """Runs of packed tokens, in order and without gaps; each field is an array [S].

    Run i has `tokens[i]` tokens from index `start[i]`. A token attends to the tokens of its run up to itself, and to
    the whole run that its run continues: `before` tokens from index `before_start` (0 tokens: none).
    """

    start: Ints
    tokens: Ints
    before_start: Ints
    before: Ints


@dataclass(frozen=True)
class Packed:
    """N packed tokens in one row, with their `ids` and `positions` [N].

    `targets` [n] are the ids of all response tokens, row after row; `reads` [n] are the indices of the tokens whose
    logits predict the targets. `shape` is (B, T) of the original rows, `lengths` [B] the response tokens of each.
    """

    ids: Ints
    positions: Ints
    segments: Segments
    reads: Ints
    targets: Ints
    lengths: Ints
    shape: tuple[int, int]


def pack(rows: ResponseRows, multiple: int = 1) -> Packed:
    """Return rows packed into one row of tokens, padded with tokens of id 0 to a multiple of `multiple` tokens.

    Each distinct context appears once, followed by the responses to this context. The last token of each response is
    left out, because its logits are not used. Without rows, the result consists of padding only. Raises LawError for an
    empty context.
    """
    lengths = rows.lengths.numpy(force=True).astype(np.int64)
    values, offsets, sizes, group = _distinct(rows.context)
    if not sizes.all():
        raise LawError("a response to 0 tokens has no token that its first token could follow")
    inputs = np.maximum(lengths - 1, 0)  # tokens of each response
    # Contexts [G] and then responses [B], laid out with each context before what continues it.
    count = np.concatenate([sizes, inputs])
    order = np.lexsort((np.arange(len(count)), np.concatenate([np.arange(len(sizes)), group])))
    start = np.zeros(len(count), np.int64)
    start[order] = count[order].cumsum() - count[order]
    begins, starts = start[: len(sizes)], start[len(sizes) :]
    filled = int(count.sum())
    total = max(filled, 1) + -max(filled, 1) % multiple
    ids, positions = np.zeros(total, np.int64), np.zeros(total, np.int64)
    tokens = rows.tokens.numpy(force=True).astype(np.int64, copy=False)
    firsts = np.arange(len(lengths)) * tokens.shape[1]
    ids[ranges(begins, sizes)] = values[ranges(offsets, sizes)]
    ids[ranges(starts, inputs)] = tokens.reshape(-1)[ranges(firsts, inputs)]
    positions[ranges(begins, sizes)] = ranges(np.zeros_like(sizes), sizes)
    positions[ranges(starts, inputs)] = ranges(sizes[group], inputs)
    positions[filled:] = np.arange(total - filled)
    reads = ranges(starts - 1, lengths)
    reads[(lengths.cumsum() - lengths)[lengths > 0]] = (begins + sizes - 1)[group][lengths > 0]
    none = np.zeros(len(sizes), np.int64)
    columns = (start, count, np.concatenate([none, begins[group]]), np.concatenate([none, sizes[group]]))
    runs = [column[order[count[order] > 0]] for column in columns]
    if total > filled:  # the tokens of id 0 are a run by themselves
        runs = [np.append(run, last) for run, last in zip(runs, (filled, total - filled, 0, 0), strict=True)]
    targets = tokens.reshape(-1)[ranges(firsts, lengths)]
    return Packed(ids, positions, Segments(*runs), reads, targets, lengths, (len(lengths), tokens.shape[1]))


def packed_tokens(rows: ResponseRows, *, shared: bool = True) -> Ints:
    """Return the number of packed tokens [rows] that each row adds: its response, and its context if this is new.

    A context is new if it differs from the previous row's context. The last token of a response does not count. With
    `shared` False, the context of every row counts.
    """
    lengths = rows.lengths.numpy(force=True).astype(np.int64)
    _, _, sizes, group = _distinct(rows.context)
    new = np.diff(group, prepend=-1) != 0 if shared else np.ones(len(group), bool)
    return np.maximum(lengths - 1, 0) + new * sizes[group]


def ranges(start: Ints, count: Ints) -> Ints:
    """Return, one after another for each i, the `count[i]` consecutive integers that start at `start[i]`.

    >>> import numpy as np
    >>> ranges(np.array([5, 1]), np.array([2, 3])).tolist()
    [5, 6, 1, 2, 3]
    """
    ends = count.cumsum()
    return np.repeat(start - ends + count, count) + np.arange(int(ends[-1]) if len(ends) else 0)


def stats_by_row(stats: Mapping[str, Tensor], packed: Packed, device: Any) -> dict[str, Tensor]:
    """Return statistics of response tokens by name, as tensors [rows, tokens] on `device`; zero beyond a row's length.

    `stats` has, by name, the statistics of all response tokens [n], row after row; `packed` has the lengths of the
    rows.
    """
    inside = torch.arange(packed.shape[1]) < torch.from_numpy(packed.lengths)[:, None]
    inside = inside.to(device)
    return {
        name: stat.new_zeros(packed.shape, device=device).masked_scatter(inside, stat.to(device))
        for name, stat in stats.items()
    }


def _distinct(context: Any) -> tuple[Ints, Ints, Ints, Ints]:
    """Return all context tokens, the offset and size [G] of each distinct context, and the context of each row [B]."""
    values: Ints = context.values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    offsets = context.offsets.to_numpy().astype(np.int64) if len(context) else np.zeros(1, np.int64)
    index = dict[bytes, int]()
    pairs = list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
    group = np.array([index.setdefault(values[a:b].tobytes(), len(index)) for a, b in pairs], np.int64)
    if not len(group):
        return values, np.zeros(0, np.int64), np.zeros(0, np.int64), group
    first = np.unique(group, return_index=True)[1]
    return values, offsets[:-1][first], np.diff(offsets)[first], group
