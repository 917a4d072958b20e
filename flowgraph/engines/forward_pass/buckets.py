"""Runs of packed tokens, sorted into buckets of near lengths: each is one call of attention, padded to its longest."""

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
"""What a call costs beside its work, in products of a query and a key: measured on one core, in float32."""


@dataclass(frozen=True, eq=False)
class Bucket:
    """So many `runs` read at once: places of their queries [runs * Q] and keys [runs * K], padded with place 0.

    `tokens` [runs] and `sizes` [runs] count the queries and keys that are real.
    """

    runs: int
    queries: Tensor
    keys: Tensor
    tokens: Tensor
    sizes: Tensor

    def mask(self, window: int | None, dtype: Any) -> Tensor | None:
        """Give what is added to products [runs or 1, 1, Q, K]: 0 or -inf; None where all are plainly causal.

        What is padded attends as the last query that is real, so that no softmax is of nothing.
        """
        most, wide = len(self.queries) // self.runs, len(self.keys) // self.runs
        tokens, sizes = self.tokens, self.sizes
        if bool((tokens == most).all()) and bool((sizes == wide).all()):
            if most == wide and (window is None or window >= wide):
                return None
            tokens, sizes = tokens[:1], sizes[:1]
        query = torch.arange(most, device=tokens.device)[None].minimum(tokens[:, None] - 1)
        place, key = (sizes - tokens)[:, None] + query, torch.arange(wide, device=tokens.device)
        hidden = key > place[..., None]
        if window is not None:
            hidden = hidden | (key <= place[..., None] - window)
        return torch.zeros(hidden.shape, dtype=dtype, device=tokens.device).masked_fill(hidden, -torch.inf)[:, None]


def bucketed(segments: Segments, width: int, device: Any) -> tuple[list[Bucket], Tensor]:
    """Sort runs into buckets, and say where in these, laid end to end, each packed token is [N].

    `width` is the numbers of a query in all heads. Runs that continue another are apart from those that do not.
    """
    keys = segments.before + segments.tokens
    cuts = [
        part
        for chosen in (segments.before == 0, segments.before > 0)
        for part in _cut(np.flatnonzero(chosen), segments.tokens, keys, CALL / width)
    ]
    back, filled = np.zeros(int(segments.tokens.sum()), np.int64), 0
    buckets = list[Bucket]()
    for runs in cuts:
        tokens, sizes = segments.tokens[runs], keys[runs]
        most, wide = int(tokens.max()), int(sizes.max())
        first = np.arange(len(runs))
        back[ranges(segments.start[runs], tokens)] = filled + ranges(first * most, tokens)
        filled += len(runs) * most
        queries, places = np.zeros(len(runs) * most, np.int64), np.zeros(len(runs) * wide, np.int64)
        queries[ranges(first * most, tokens)] = ranges(segments.start[runs], tokens)
        before = segments.before[runs]
        places[ranges(first * wide, before)] = ranges(segments.before_start[runs], before)
        places[ranges(first * wide + before, tokens)] = ranges(segments.start[runs], tokens)
        told = (torch.from_numpy(each).to(device) for each in (queries, places, tokens, sizes))
        buckets.append(Bucket(len(runs), *told))
    return buckets, torch.from_numpy(back).to(device)


def _cut(runs: Ints, tokens: Ints, keys: Ints, call: float) -> list[Ints]:
    """Cut runs, sorted by length, where that costs least: a call, and products of padded queries and keys.

    Exact for that order, by the cheapest way to end at each shape.
    """
    if not len(runs):
        return []
    runs = runs[np.lexsort((keys[runs], tokens[runs]))]
    shapes, first = np.unique(np.stack([tokens[runs], keys[runs]], 1), axis=0, return_index=True)
    ends = np.append(first[1:], len(runs))
    best, origin = np.zeros(len(shapes) + 1), np.zeros(len(shapes), np.int64)
    for last, (most, _) in enumerate(shapes):
        wide = np.maximum.accumulate(shapes[last::-1, 1])[::-1]  # of shapes from each one up to this
        cost = best[: last + 1] + call + (ends[last] - first[: last + 1]) * most * wide
        origin[last] = cost.argmin()
        best[last + 1] = cost[origin[last]]
    parts, until = list["Ints"](), len(shapes)
    while until:
        parts.append(runs[first[origin[until - 1]] : ends[until - 1]])
        until = int(origin[until - 1])
    return parts[::-1]
