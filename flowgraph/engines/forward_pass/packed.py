"""One forward pass over packed tokens: a single call of the model, for any rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flowgraph.engines.forward_pass.attention import PackedAttention, Way, set_attention
from flowgraph.engines.forward_pass.chunked_head import read_logits, stats_head
from flowgraph.engines.forward_pass.decode import device_of, full_precision
from flowgraph.engines.forward_pass.packing import Packed, pack, stats_by_row
from flowgraph.engines.forward_pass.sequence_parallel import all_stats
from flowgraph.language.handle import ResponseRows, TokenStats
from flowgraph.models.heads import head_of

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.engines.fsdp.ranks import ProcessRanks


@dataclass(frozen=True)
class Packing:
    """How a model runs on packed tokens: its attention kernel, and whether its head computes statistics in chunks.

    `chunk_tokens` is the largest number of response tokens in a chunk; None means that a chunk has at most 2**24 logits
    (64 MiB in float32).
    """

    attention: Way = "segments"
    chunked: bool = True
    chunk_tokens: int | None = None


@dataclass(frozen=True)
class PeerSlice:
    """The inputs of one peer: a slice of the packed tokens, and the response tokens whose statistics it computes.

    `ids` and `positions` are [1, N / P]. `reads` and `targets` are [m]; m is the same on each peer, and at least 1.
    `order` [n] is the index of each response token in the concatenated statistics of all peers.
    """

    ids: Tensor
    positions: Tensor
    reads: Tensor
    targets: Tensor
    order: Tensor


def read_packed(
    model: Any,
    rows: ResponseRows,
    names: Sequence[str],
    packing: Packing,
    sequence: ProcessRanks | None = None,
    *,
    masked: bool = True,
) -> tuple[TokenStats, PackedAttention]:
    """Return the statistics `names` of each response token [rows, tokens], and the attention object of the pass.

    Values beyond the length of a response are zero. The model is called once; its attention is replaced by packed
    attention, in place and for good. `packing` selects the attention kernel, and whether the head computes statistics
    in chunks. Each rank of `sequence` runs a slice of the tokens, and gets the statistics of all tokens. With `masked`
    False, the model computes its own attention masks. Raises LawError for an empty context, if the model needs an
    attention option that packed attention lacks, or if the ranks do not divide the number of attention heads.
    """
    sequence = sequence if sequence is not None and sequence.count > 1 else None
    rank, count = (0, 1) if sequence is None else (sequence.rank, sequence.count)
    device = device_of(model)
    packed = pack(rows, count)
    part = peer_slice(packed, rank, count, device)
    attention = PackedAttention(packed.segments, packing.attention, device, sequence)
    inputs = {
        "input_ids": part.ids,
        "position_ids": part.positions,
        "packed": attention,
        "use_cache": False,
        # A mask of four dimensions counts as prepared: the model makes none.
        "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device) if masked else None,
    }
    set_attention(model)
    if head_of(model) == "values":
        stats = full_precision(model(**inputs).logits)[0].index_select(0, part.reads)
    elif packing.chunked:
        distribution = rows.temperature, packing.chunk_tokens, rows.truncation
        with stats_head(model, part.reads, part.targets, names, *distribution):
            stats = model(**inputs).logits[0]
    else:
        logits = model(**inputs).logits[0].index_select(0, part.reads)
        stats = torch.stack(read_logits(logits, part.targets, names, rows.temperature, rows.truncation), -1)
    if sequence is not None:
        stats = all_stats(stats, sequence)
    columns = dict(zip(names, stats.index_select(0, part.order).unbind(-1), strict=True))
    return TokenStats(**stats_by_row(columns, packed, rows.tokens.device)), attention


def peer_slice(packed: Packed, rank: int, count: int, device: Any) -> PeerSlice:
    """Return slice `rank` of the packed tokens, cut into `count` equal slices, as tensors on `device`.

    `count` must divide the number of tokens. All slices compute equally many statistics, and at least one, so that
    every rank has a gradient: a slice with fewer response tokens repeats its first token.
    """
    width = len(packed.ids) // count
    peer = packed.reads // width
    counts = np.bincount(peer, minlength=count)
    size, is_local = max(1, int(counts.max())), peer == rank
    order = np.empty_like(packed.reads)
    by_peer = np.argsort(peer, kind="stable")
    order[by_peer] = np.arange(len(peer)) - np.repeat(counts.cumsum() - counts, counts) + peer[by_peer] * size
    reads, targets = np.zeros(size, np.int64), np.zeros(size, np.int64)
    reads[: counts[rank]] = packed.reads[is_local] - rank * width
    targets[: counts[rank]] = packed.targets[is_local]
    part = slice(rank * width, (rank + 1) * width)
    columns = (packed.ids[None, part], packed.positions[None, part], reads, targets, order)
    return PeerSlice(*(torch.from_numpy(np.ascontiguousarray(column)).to(device) for column in columns))
