"""Runs of packed tokens in buckets of similar lengths: one attention call per bucket, padded to its longest run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flowgraph.engines.forward_pass.packing import Segments, ranges

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.engines.forward_pass.packing import Ints

CALL = 400_000
"""The overhead of a call, in products of a query and a key: measured on one core, in float32."""


@dataclass(frozen=True, eq=False)
class Bucket:
    """Runs that one attention call computes, as indices of queries [runs * Q] and keys [runs * K], padded with index 0.

    `tokens` [runs] and `sizes` [runs] are the numbers of queries and of keys in each run, without padding.
    """

    runs: int
    queries: Tensor
    keys: Tensor
    tokens: Tensor
    sizes: Tensor

    def mask(self, window: int | None, dtype: Any) -> Tensor | None:
        """Return the additive mask [runs or 1, 1, Q, K] of 0 and -inf; None if plain causal attention gives the same.

        `window` is the largest number of tokens that a token attends to, including itself; None means no limit. Padding
        has the same mask as the last real query, so that no softmax is empty.
        """
        width, key_width = len(self.queries) // self.runs, len(self.keys) // self.runs
        tokens, sizes = self.tokens, self.sizes
        if bool((tokens == width).all()) and bool((sizes == key_width).all()):
            if width == key_width and (window is None or window >= key_width):
                return None
            tokens, sizes = tokens[:1], sizes[:1]
        query = torch.arange(width, device=tokens.device)[None].minimum(tokens[:, None] - 1)
        position, key = (sizes - tokens)[:, None] + query, torch.arange(key_width, device=tokens.device)
        hidden = key > position[..., None]
        if window is not None:
            hidden = hidden | (key <= position[..., None] - window)
        return torch.zeros(hidden.shape, dtype=dtype, device=tokens.device).masked_fill(hidden, -torch.inf)[:, None]


def bucketed(segments: Segments, width: int, device: Any) -> tuple[list[Bucket], Tensor]:
    """Return buckets that group runs of similar lengths, and the index [N] of each token in the concatenated outputs.

    A run is one context or one response in the packed row. The outputs [runs * Q] of the buckets are concatenated in
    order, padding included. `width` is the number of query heads times the head size. A bucket contains either runs
    that continue another run or runs that do not.
    """
    keys = segments.before + segments.tokens
    cuts = [
        part
        for chosen in (segments.before == 0, segments.before > 0)
        for part in _partition(np.flatnonzero(chosen), segments.tokens, keys, CALL / width)
    ]
    back, filled = np.zeros(int(segments.tokens.sum()), np.int64), 0
    buckets = list[Bucket]()
    for runs in cuts:
        tokens, sizes = segments.tokens[runs], keys[runs]
        longest, widest = int(tokens.max()), int(sizes.max())
        rows = np.arange(len(runs))
        back[ranges(segments.start[runs], tokens)] = filled + ranges(rows * longest, tokens)
        filled += len(runs) * longest
        query_index, key_index = np.zeros(len(runs) * longest, np.int64), np.zeros(len(runs) * widest, np.int64)
        query_index[ranges(rows * longest, tokens)] = ranges(segments.start[runs], tokens)
        before = segments.before[runs]
        key_index[ranges(rows * widest, before)] = ranges(segments.before_start[runs], before)
        key_index[ranges(rows * widest + before, tokens)] = ranges(segments.start[runs], tokens)
        columns = (query_index, key_index, tokens, sizes)
        buckets.append(Bucket(len(runs), *(torch.from_numpy(column).to(device) for column in columns)))
    return buckets, torch.from_numpy(back).to(device)


def _partition(runs: Ints, tokens: Ints, keys: Ints, call: float) -> list[Ints]:
    """Split runs, sorted by length, into the parts with the least cost of calls and padding."""
    if not len(runs):
        return []
    runs = runs[np.lexsort((keys[runs], tokens[runs]))]
    shapes, first = np.unique(np.stack([tokens[runs], keys[runs]], 1), axis=0, return_index=True)
    ends = np.append(first[1:], len(runs))
    best, origin = np.zeros(len(shapes) + 1), np.zeros(len(shapes), np.int64)
    for last, (longest, _) in enumerate(shapes):
        widest = np.maximum.accumulate(shapes[last::-1, 1])[::-1]  # of the shapes from each one up to this
        cost = best[: last + 1] + call + (ends[last] - first[: last + 1]) * longest * widest
        origin[last] = cost.argmin()
        best[last + 1] = cost[origin[last]]
    parts, until = list["Ints"](), len(shapes)
    while until:
        parts.append(runs[first[origin[until - 1]] : ends[until - 1]])
        until = int(origin[until - 1])
    return parts[::-1]
