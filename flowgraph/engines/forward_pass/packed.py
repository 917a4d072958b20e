"""One forward pass over packed tokens: one call of the model, whatever the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flowgraph.engines.forward_pass.attention import PackedAttention, Way, switch
from flowgraph.engines.forward_pass.chunked_head import read_logits, stats_head
from flowgraph.engines.forward_pass.decode import full_precision
from flowgraph.engines.forward_pass.packing import Packed, laid_out, pack
from flowgraph.engines.forward_pass.sequence_parallel import all_stats
from flowgraph.engines.model_state.handle_rules import device_of
from flowgraph.language.handle import ResponseRows, TokenStats
from flowgraph.models.heads import head_of

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.engines.forward_pass.sequence_parallel import SequenceRanks


@dataclass(frozen=True)
class Packing:
    """How a model reads packed tokens: its attention, and whether its head gives statistics chunk by chunk.

    `chunk_tokens` bounds a chunk's response tokens; None: so that its logits take 64 MiB in float32.
    """

    attention: Way = "segments"
    chunked: bool = True
    chunk_tokens: int | None = None


@dataclass(frozen=True)
class PeerSlice:
    """What one peer runs: the packed tokens from `start` on, and of the response tokens those that are read there.

    `ids` and `positions` are [1, N / P], `reads` and `targets` [m] as many on each peer, and one at least. `order` [n]
    says where in the peers' statistics, one after another, each response token stands.
    """

    ids: Tensor
    positions: Tensor
    reads: Tensor
    targets: Tensor
    order: Tensor


def read_packed(
    model: Any, rows: ResponseRows, wanted: Sequence[str], packing: Packing, sequence: SequenceRanks | None = None
) -> TokenStats:
    """Give the statistics of each response token: [B, T] each, on every peer of `sequence` all of them."""
    told = run_packed(model, rows, wanted, packing, sequence)[0]
    return told


def run_packed(
    model: Any,
    rows: ResponseRows,
    wanted: Sequence[str],
    packing: Packing,
    sequence: SequenceRanks | None = None,
    *,
    masked: bool = True,
) -> tuple[TokenStats, PackedAttention]:
    """Read rows and say what their attention was asked for; `masked` False lets the model ask for masks."""
    sequence = sequence if sequence is not None and sequence.count > 1 else None
    device = device_of(model)
    packed = pack(rows, 1 if sequence is None else sequence.count)
    own = sliced(packed, 0 if sequence is None else sequence.rank, 1 if sequence is None else sequence.count, device)
    attending = PackedAttention(packed.segments, packing.attention, device, sequence)
    given = {
        "input_ids": own.ids,
        "position_ids": own.positions,
        "packed": attending,
        "use_cache": False,
        # A mask of four dimensions is taken as made: the model makes none.
        "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device) if masked else None,
    }
    switch(model)
    stats = _stats(model, given, own, wanted, packing, rows.temperature)
    if sequence is not None:
        stats = all_stats(stats, sequence)
    columns = stats.index_select(0, own.order).unbind(-1)
    named = dict(zip(wanted, columns, strict=True))
    return TokenStats(**laid_out(named, packed, rows.tokens.device)), attending


def _stats(
    model: Any, given: dict[str, Any], own: PeerSlice, wanted: Sequence[str], packing: Packing, temperature: float
) -> Tensor:
    """Give the statistics [m, wanted] of the slice's response tokens."""
    told: Tensor
    if head_of(model) == "values":
        told = full_precision(model(**given).logits)[0].index_select(0, own.reads)
    elif packing.chunked:
        with stats_head(model, own.reads, own.targets, wanted, temperature, packing.chunk_tokens):
            told = model(**given).logits[0]
    else:
        logits = model(**given).logits[0].index_select(0, own.reads)
        told = torch.stack(read_logits(logits, own.targets, wanted, temperature), -1)
    return told


def sliced(packed: Packed, rank: int, count: int, device: Any) -> PeerSlice:
    """Cut packed tokens into `count` equal slices and give one of them.

    A slice in which nothing is read reads its first token: so that each has a gradient, if of zero.
    """
    wide = len(packed.ids) // count
    peer = packed.reads // wide
    counts = np.bincount(peer, minlength=count)
    most, mine = max(1, int(counts.max())), peer == rank
    order = np.empty_like(packed.reads)
    by_peer = np.argsort(peer, kind="stable")
    order[by_peer] = np.arange(len(peer)) - np.repeat(counts.cumsum() - counts, counts) + peer[by_peer] * most
    reads, targets = np.zeros(most, np.int64), np.zeros(most, np.int64)
    reads[: counts[rank]], targets[: counts[rank]] = packed.reads[mine] - rank * wide, packed.targets[mine]
    part = slice(rank * wide, (rank + 1) * wide)
    columns = (packed.ids[None, part], packed.positions[None, part], reads, targets, order)
    return PeerSlice(*(torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in columns))
