"""Who gets which rows: whole groups are shared out over ranks by the work that their rows are, not by their number.

A task is shared out by the one value that it reads of responses with their contexts, whose lengths tell the work; a
task without one by the number of groups. Whatever is shared out by the same value lies alike, and need not move.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowgraph.language.rows import leaf_paths
from flowgraph.language.values import Context, Lengths, Record, Value
from flowgraph.lowering.program import Run

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

LINEAR_TOKENS = 24576
"""The length at which a row's attention is as much work as all else: 6 times the hidden size, here 4,096.

Source: verl's balancing of sequence lengths, 24576 n + n^2; per layer 12 h^2 n + 2 h n^2 multiplications.
"""


@dataclass(frozen=True)
class Guide:
    """The value that a task is shared out by, and the paths of its contexts and lengths."""

    value: str
    context: str
    lengths: str


@dataclass(frozen=True)
class Shares:
    """The rank of each group: `groups` [G] int64, each once and in order, and `ranks` [G]."""

    groups: NDArray[Any]
    ranks: NDArray[Any]

    def of(self, groups: NDArray[Any], rank: int, count: int) -> NDArray[Any]:
        """Give the groups of one of `count` ranks among `groups` [R]; those that are not shared out go by number."""
        import numpy as np

        mine = self.groups[self.ranks == rank]
        rest = np.setdiff1d(groups, self.groups)
        return np.concatenate([mine, np.array_split(rest, count)[rank]])


def guide_of(task: Run, types: Mapping[str, type[Value]]) -> Guide | None:
    """Give what a task is shared out by, if it reads responses with their contexts; `types` are those of values."""
    parts = dict(task.parts)
    for name in task.reads:
        guide = _guide(name, types[name])
        if guide is not None and all(_is_read(path, parts.get(name, ())) for path in (guide.context, guide.lengths)):
            return guide
    return None


def _guide(name: str, kind: type[Value]) -> Guide | None:
    paths = {part: path for path, part in reversed([*leaf_paths(kind)])} if issubclass(kind, Record) else {}
    return Guide(name, paths[Context], paths[Lengths]) if Context in paths and Lengths in paths else None


def _is_read(path: str, parts: Sequence[str]) -> bool:
    return not parts or any(path == part or path.startswith(f"{part}.") for part in parts)


def by_work(table: pa.Table, guide: Guide, count: int) -> Shares:
    """Share the groups of a whole table out over `count` ranks: the one with most work left to the least busy rank.

    Source: Graham 1969, Bounds on multiprocessing timing anomalies: at most 4/3 of the best.
    """
    import numpy as np

    tokens = table.column(guide.context).combine_chunks().value_lengths().to_numpy().astype(np.float64)
    tokens += table.column(guide.lengths).to_numpy()
    groups, place = np.unique(table.column("#group").to_numpy(), return_inverse=True)
    works = np.bincount(place, weights=LINEAR_TOKENS * tokens + tokens**2, minlength=len(groups))
    return Shares(groups, np.array(shared_out(works.tolist(), count), dtype=np.int64))


def shared_out(works: Sequence[float], count: int) -> list[int]:
    """Give the rank of each work, so that the busiest of `count` ranks has little more than its share.

    >>> shared_out([1, 5, 2, 2], 2)
    [1, 0, 1, 1]
    """
    ranks, busy = [0] * len(works), [(0.0, rank) for rank in range(count)]
    for place in sorted(range(len(works)), key=lambda each: -works[each]):
        load, rank = heapq.heappop(busy)
        ranks[place] = rank
        heapq.heappush(busy, (load + works[place], rank))
    return ranks
