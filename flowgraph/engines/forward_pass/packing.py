"""Rows laid end to end for one forward pass: each distinct context once, then the responses to it, without padding.

Here are the tokens and which of them attend to which; the attention itself is in `attention`.
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
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Segments:
    """Runs of packed tokens, in order and without a gap: `start` and `tokens` [S] say where and how many.

    A token attends to those of its own run up to itself, and to all of the run that its own continues, which begins at
    `before_start` and has `before` tokens (0: none).
    """

    start: Ints
    tokens: Ints
    before_start: Ints
    before: Ints


@dataclass(frozen=True)
class Packed:
    """N tokens in one row: `ids` and `positions` [N], and what is read of them.

    Of the rows' response tokens, row after row, `targets` [n] are the ids, and `reads` [n] the places before them,
    where a model tells of them. `shape` is the rows' own [B, T], `lengths` [B].
    """

    ids: Ints
    positions: Ints
    segments: Segments
    reads: Ints
    targets: Ints
    lengths: Ints
    shape: tuple[int, int]


def pack(rows: ResponseRows, multiple: int = 1) -> Packed:
    """Lay rows end to end, and tokens of id 0 after them up to a `multiple`; no rows are one token of id 0.

    A response's last token is not among them, nothing is read there. Raises LawError for an empty context.
    """
    lengths, values = rows.lengths.numpy(force=True).astype(np.int64), _values(rows.context)
    offsets, sizes, group = _distinct(rows.context, values)
    if not sizes.all():
        raise LawError("a response to 0 tokens has nothing that its first token could be read after")
    own = np.maximum(lengths - 1, 0)
    start, order = _placed(sizes, own, group)
    begins, places = start[: len(sizes)], start[len(sizes) :]
    filled = int(sizes.sum() + own.sum())
    total = max(filled, 1) + -max(filled, 1) % multiple
    ids, positions = np.zeros(total, np.int64), np.zeros(total, np.int64)
    tokens = rows.tokens.numpy(force=True).astype(np.int64, copy=False)
    firsts = np.arange(len(lengths)) * tokens.shape[1]
    ids[ranges(begins, sizes)] = values[ranges(offsets, sizes)]
    ids[ranges(places, own)] = tokens.reshape(-1)[ranges(firsts, own)]
    positions[ranges(begins, sizes)] = ranges(np.zeros_like(sizes), sizes)
    positions[ranges(places, own)] = ranges(sizes[group], own)
    positions[filled:] = np.arange(total - filled)
    reads = ranges(places - 1, lengths)
    reads[(lengths.cumsum() - lengths)[lengths > 0]] = (begins + sizes - 1)[group][lengths > 0]
    segments = _segments(start, np.concatenate([sizes, own]), begins, sizes, group, order, total)
    targets = tokens.reshape(-1)[ranges(firsts, lengths)]
    return Packed(ids, positions, segments, reads, targets, lengths, (len(lengths), tokens.shape[1]))


def packed_tokens(rows: ResponseRows, *, shared: bool = True) -> Ints:
    """Count what each row adds to a pass [B]: its response, and its context if the row before has not the same.

    With `shared` False, what it takes by itself.
    """
    lengths = rows.lengths.numpy(force=True).astype(np.int64)
    _, sizes, group = _distinct(rows.context, _values(rows.context))
    new = np.diff(group, prepend=-1) != 0 if shared else np.ones(len(group), bool)
    return np.maximum(lengths - 1, 0) + new * sizes[group]


def ranges(start: Ints, count: Ints) -> Ints:
    """Give `count[i]` whole numbers from `start[i]` on, for each i, one after another.

    >>> import numpy as np
    >>> ranges(np.array([5, 1]), np.array([2, 3])).tolist()
    [5, 6, 1, 2, 3]
    """
    ends = count.cumsum()
    return np.repeat(start - ends + count, count) + np.arange(int(ends[-1]) if len(ends) else 0)


def laid_out(stats: Mapping[str, Tensor], packed: Packed, device: Any) -> dict[str, Tensor]:
    """Give statistics [n] of the response tokens as [B, T], zero beyond a row's length."""
    inside = torch.arange(packed.shape[1]) < torch.from_numpy(packed.lengths)[:, None]
    inside = inside.to(device)
    return {
        name: stat.new_zeros(packed.shape, device=device).masked_scatter(inside, stat.to(device))
        for name, stat in stats.items()
    }


def _values(context: Any) -> Ints:
    """Give the tokens of all contexts [tokens], as they lie in the Arrow array."""
    values: Ints = context.values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return values


def _distinct(context: Any, values: Ints) -> tuple[Ints, Ints, Ints]:
    """Give where each distinct context begins in `values` and its tokens [G], and which one each row has [B]."""
    offsets = context.offsets.to_numpy().astype(np.int64) if len(context) else np.zeros(1, np.int64)
    place = dict[bytes, int]()
    pairs = list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
    group = np.array([place.setdefault(values[a:b].tobytes(), len(place)) for a, b in pairs], np.int64)
    if not len(group):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), group
    first = np.unique(group, return_index=True)[1]
    return offsets[:-1][first], np.diff(offsets)[first], group


def _placed(sizes: Ints, own: Ints, group: Ints) -> tuple[Ints, Ints]:
    """Give where contexts and then responses begin [G + B], each context before what continues it; and that order."""
    count = np.concatenate([sizes, own])
    order = np.lexsort((np.arange(len(count)), np.concatenate([np.arange(len(sizes)), group])))
    start = np.zeros(len(count), np.int64)
    start[order] = count[order].cumsum() - count[order]
    return start, order


def _segments(start: Ints, count: Ints, begins: Ints, sizes: Ints, group: Ints, order: Ints, total: int) -> Segments:
    """Give the runs in order; what was filled up is a run by itself."""
    none = np.zeros(len(sizes), np.int64)
    kept = order[count[order] > 0]
    columns = (start, count, np.concatenate([none, begins[group]]), np.concatenate([none, sizes[group]]))
    start, count, before_start, before = (each[kept] for each in columns)
    filled = int(count.sum())
    if total > filled:
        more = ((start, filled), (count, total - filled), (before_start, 0), (before, 0))
        return Segments(*(np.append(each, last) for each, last in more))
    return Segments(start, count, before_start, before)
