"""Balance rows over ranks: whole groups are dealt by their amount of work, not by their number.

The work follows from the lengths of the responses and contexts that a task reads. A task that reads none deals the same
number of groups to each rank. Values that were dealt by the same guide are already in place and do not move.
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
"""The length at which attention is as much work as the rest of a row: 6 times the hidden size, here 4,096.

Source: verl's balancing of sequence lengths, 24576 n + n^2; per layer 12 h^2 n + 2 h n^2 multiplications.
"""


@dataclass(frozen=True)
class Guide:
    """The value by whose lengths a task's rows are dealt, and the paths of its contexts and lengths."""

    value: str
    context: str
    lengths: str


@dataclass(frozen=True)
class Shares:
    """The rank of each group: `groups` [G] int64, unique and sorted, and `ranks` [G]."""

    groups: NDArray[Any]
    ranks: NDArray[Any]

    def of(self, groups: NDArray[Any], rank: int, count: int) -> NDArray[Any]:
        """Return the groups of one of `count` ranks among `groups` [R]; groups without a rank are dealt by number."""
        import numpy as np

        mine = self.groups[self.ranks == rank]
        rest = np.setdiff1d(groups, self.groups)
        return np.concatenate([mine, np.array_split(rest, count)[rank]])


def guide_of(task: Run, types: Mapping[str, type[Value]]) -> Guide | None:
    """Return the first value a task reads that has responses and their contexts; `types` are those of values."""
    for name in task.reads:
        if not issubclass(types[name], Record):
            continue
        paths = {part: path for path, part in reversed(leaf_paths(types[name]))}
        parts = dict(task.parts).get(name, ())
        guides = [paths.get(Context, ""), paths.get(Lengths, "")]
        if all(path and (not parts or f"{path}.".startswith(tuple(f"{part}." for part in parts))) for path in guides):
            return Guide(name, *guides)
    return None


def by_work(table: pa.Table, guide: Guide, count: int) -> Shares:
    """Deal the groups of a table to `count` ranks: the largest remaining group goes to the least busy rank.

    Source: Graham 1969, Bounds on multiprocessing timing anomalies: at most 4/3 of the optimum.
    """
    import numpy as np

    tokens = table.column(guide.context).combine_chunks().value_lengths().to_numpy().astype(np.float64)
    tokens += table.column(guide.lengths).to_numpy()
    groups, place = np.unique(table.column("#group").to_numpy(), return_inverse=True)
    works = np.bincount(place, weights=LINEAR_TOKENS * tokens + tokens**2, minlength=len(groups))
    return Shares(groups, np.array(shared_out(works.tolist(), count), dtype=np.int64))


def shared_out(works: Sequence[float], count: int) -> list[int]:
    """Return the rank of each piece of work, so that the busiest of `count` ranks has little more than its share.

    >>> shared_out([1, 5, 2, 2], 2)
    [1, 0, 1, 1]
    """
    ranks, busy = [0] * len(works), [(0.0, rank) for rank in range(count)]
    for place in sorted(range(len(works)), key=lambda i: -works[i]):
        load, rank = heapq.heappop(busy)
        ranks[place] = rank
        heapq.heappush(busy, (load + works[place], rank))
    return ranks
