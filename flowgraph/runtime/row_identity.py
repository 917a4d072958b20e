"""Split rows over ranks in whole groups, and join and align them by their ids.

In a table, the ids of rows are the columns `#group`, `#sample` and `#trajectory`; `#place` is each row's position in
the batch that was split. Groups are assigned to ranks by amount of work, which is computed from the lengths of the
responses and contexts that a task reads; a task that reads none assigns the same number of groups to each rank. Values
that were split by the same lengths are already on the right ranks and do not move.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flowgraph.errors import LawError
from flowgraph.language.rows import find, leaf_paths, leaves, take
from flowgraph.language.values import Context, Group, Kind, Lengths, Measure, Record, Sample, Trajectory, Value
from flowgraph.lowering.program import Run

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

IDS: Mapping[str, type[Value]] = {"#group": Group, "#sample": Sample, "#trajectory": Trajectory}
PLACE = "#place"
LAST = 2**62  # the place of rows that come from no row of the batch


@dataclass(frozen=True)
class StoredValue:
    """A value in a store, with the `ids` [B] int64 of its rows by name (see IDS and PLACE); empty if unknown.

    A chunk of a value also has the `terms` of measures, by (node, metric); see `Measure.rows`.
    """

    value: Value
    ids: Mapping[str, NDArray[Any]]
    terms: Mapping[tuple[str, str], Measure] = field(default_factory=dict[tuple[str, str], Measure])

    @classmethod
    def of(cls, value: Value, inputs: Sequence[StoredValue] = ()) -> StoredValue:
        """Return a node's result with the ids of its rows: those in `value`, or else those of one of `inputs`.

        If `value` has no group ids, only inputs with as many rows are considered. Of the inputs with ids, the one with
        the most kinds of ids is used: responses before prompts. If it has the positions of its rows in the batch that
        was split (`#place`), the result has positions too. The ids are empty if neither has any, and for a value
        without rows.
        """
        counts = [len(leaf.data) for leaf in leaves([value]) if leaf.kind in (Kind.ROW, Kind.TOKEN)]
        value_ids = ids_of(value) if counts else {}
        for source in sorted(inputs, key=lambda stored: -len(stored.ids)):
            if counts and source.ids and (len(source) == counts[0] or "#group" in value_ids):
                ids = value_ids or _identity(source)
                return cls(value, ids | _places(value_ids or source.ids, source.ids))
        return cls(value, value_ids)

    def __len__(self) -> int:
        return len(next(iter(self.ids.values()), ()))


def ids_of(value: Value) -> dict[str, NDArray[Any]]:
    """Return the group, sample and trajectory ids [B] of a record's rows, by column name, such as "#group".

    Ids that the record lacks are left out.
    """
    parts = {name: find([value], kind) for name, kind in IDS.items()}
    return {name: part.data.numpy(force=True) for name, part in parts.items() if part is not None}


def with_ids(table: pa.Table, ids: Mapping[str, NDArray[Any]]) -> pa.Table:
    """Return a table with the ids of its rows appended as columns; `ids` has them by the columns' names."""
    for name, column in ids.items():
        table = table.append_column(name, [column])
    return table


def ids_in(table: pa.Table) -> dict[str, NDArray[Any]]:
    """Return the columns of a table that identify its rows (`IDS`, `PLACE`), by name; missing ones are left out."""
    return {column: table.column(column).to_numpy() for column in (*IDS, PLACE) if column in table.column_names}


def _identity(stored: StoredValue) -> dict[str, NDArray[Any]]:
    return {name: column for name, column in stored.ids.items() if name != PLACE}


def _places(ids: Mapping[str, NDArray[Any]], source: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return each row's position: that of the source row with the same ids, or else sample, or else prompt."""
    import numpy as np

    if PLACE not in source:
        return {}
    shared = [name for name in IDS if name in ids and name in source]
    if all(np.array_equal(ids[name], source[name]) for name in shared):
        return {PLACE: source[PLACE]}
    first, widths = dict[tuple[int, ...], int](), range(len(shared), 0, -1)
    for row, place in zip(_id_rows(source, shared), source[PLACE].tolist(), strict=True):
        for width in widths:
            first.setdefault(row[:width], place)
    places = [
        next((first[row[:width]] for width in widths if row[:width] in first), LAST) for row in _id_rows(ids, shared)
    ]
    return {PLACE: np.array(places, dtype=np.int64)}


def _id_rows(ids: Mapping[str, NDArray[Any]], names: Sequence[str]) -> list[tuple[int, ...]]:
    return list(zip(*(ids[name].tolist() for name in names), strict=True))


def align_rows(inputs: Mapping[str, StoredValue]) -> dict[str, StoredValue]:
    """Return a node's inputs by name; inputs that have the same rows are put in the order of the first of them.

    Rows are the same if they have the same ids. Inputs with different rows, such as greedy and sampled responses, or
    without ids are not changed. Raises LawError if rows with repeated ids are in another order.
    """
    aligned, names_by_ids = dict[str, StoredValue](), dict[tuple[str, ...], list[str]]()
    for name, stored in inputs.items():
        leaders = names_by_ids.setdefault(tuple(_identity(stored)), [])
        orders = (_in_order_of(name, stored, leader, aligned[leader]) for leader in leaders if stored.ids)
        aligned[name] = next((ordered for ordered in orders if ordered is not None), stored)
        leaders.append(name)
    return aligned


def _in_order_of(name: str, stored: StoredValue, leader_name: str, leader: StoredValue) -> StoredValue | None:
    import numpy as np
    import torch

    ids = _identity(stored)
    if all(np.array_equal(column, leader.ids[key]) for key, column in ids.items()):
        return stored
    rows, order = _id_rows(ids, list(ids)), _id_rows(leader.ids, list(ids))
    if sorted(order) != sorted(rows):
        return None
    index = {row: i for i, row in enumerate(rows)}
    if len(index) < len(rows):
        raise LawError.not_aligned(name, leader_name, "their order differs, and several have the same ids")
    moved = torch.tensor([index[row] for row in order], dtype=torch.int64)
    return StoredValue(take(stored.value, moved), {key: column[moved.numpy()] for key, column in stored.ids.items()})


def lengths_for(value: Value, inputs: Sequence[StoredValue]) -> Any:
    """Return lengths [B], in tokens, from one of `inputs` that fit the rows of a token value; None if none fit.

    Lengths fit if there is one for each row, their maximum is the width of the value, and they would cut off nothing
    but zeros. The inputs are those of the node that computed the value; the first that fits is used. For a value
    without tokens, the first lengths of any input are returned.
    """
    import torch

    tokens = [leaf.data for leaf in leaves([value]) if leaf.kind is Kind.TOKEN]
    for stored in inputs:
        if (part := find([stored.value], Lengths)) is not None:
            lengths = part.data
            width = int(lengths.max()) if len(lengths) else 0
            beyond = torch.arange(width)[None] >= lengths[:, None].cpu()
            if all(data.shape == beyond.shape and not data.cpu()[beyond].any() for data in tokens):
                return lengths
    return None


def rows_of_rank(table: pa.Table, rank: int, count: int, name: str, shares: Shares | None = None) -> pa.Table:
    """Return the rows of a table that belong to rank `rank` of `count` ranks, with their positions in the batch.

    Groups are not split: `shares` assigns each group to a rank; if it is None, groups are divided evenly, in order of
    their numbers. Only the ids of groups matter, so values of the same rows are split alike in any order. For one rank,
    or a table without columns (a scalar), the table itself is returned. `name` is the value's name in errors. Raises
    LawError if the table has columns but no group ids.
    """
    import numpy as np

    if count == 1 or not table.num_columns:
        return table
    if "#group" not in table.column_names:
        raise LawError.no_identity(name, count)
    groups = table.column("#group").to_numpy()
    unique = np.unique(groups)
    mine = np.array_split(unique, count)[rank] if shares is None else shares.of(unique, rank, count)
    rows = np.flatnonzero(np.isin(groups, mine))
    unplaced = table.drop([PLACE]) if PLACE in table.column_names else table
    return unplaced.take(rows).append_column(PLACE, [rows])


def join_shards(tables: Sequence[pa.Table], name: str) -> pa.Table:
    """Return one table with the rows of the tables of all ranks, in the order of the batch that was split.

    The column `#place` has this order, and is removed; without it, the rows are in the order of the tables, and a
    single table stays in its order. `name` is the value's name in errors. Raises LawError if ranks return different
    scalars: such scalars would depend on how the batch was split.
    """
    import numpy as np
    import pyarrow as pa

    if len(tables) == 1:
        return tables[0].drop([PLACE]) if PLACE in tables[0].column_names else tables[0]
    if any(table.schema.metadata != tables[0].schema.metadata for table in tables):
        raise LawError.not_aligned(name, name, "its ranks give different scalars")
    filled = [table for table in tables if table.num_rows] or tables[:1]  # an empty table lacks its columns' types
    table = pa.concat_tables(filled, promote_options="default").combine_chunks()  # a rank's rows may have no extras
    if PLACE not in table.column_names:
        return table
    places, rows = table.column(PLACE).to_numpy(), table.drop([PLACE])
    return rows if np.all(places[:-1] <= places[1:]) else rows.take(np.argsort(places, kind="stable"))


LINEAR_TOKENS = 24576
"""The length at which attention is as much work as the rest of a row: 6 times the hidden size, here 4,096.

Source: verl's balancing of sequence lengths, 24576 n + n^2; per layer 12 h^2 n + 2 h n^2 multiplications.
"""


@dataclass(frozen=True)
class Guide:
    """The value whose lengths determine how a task's rows are split, and the paths of its contexts and lengths."""

    value: str
    context: str
    lengths: str


@dataclass(frozen=True)
class Shares:
    """The rank of each group: `groups` [G] int64, unique and sorted, and `ranks` [G]."""

    groups: NDArray[Any]
    ranks: NDArray[Any]

    def of(self, groups: NDArray[Any], rank: int, count: int) -> NDArray[Any]:
        """Return the groups of rank `rank` of `count` ranks.

        They are all groups that are assigned to this rank, in `groups` or not, and its even part of those groups in
        `groups` that are assigned to no rank.
        """
        import numpy as np

        mine = self.groups[self.ranks == rank]
        rest = np.setdiff1d(groups, self.groups)
        return np.concatenate([mine, np.array_split(rest, count)[rank]])


def split_guide(task: Run, types: Mapping[str, type[Value]]) -> Guide | None:
    """Return the first input of a task by whose lengths the task's rows can be split evenly; None if there is none.

    Such an input is a record with contexts and with lengths of responses, and the task reads both. `types` maps the
    names of values to their types.
    """
    for name in task.reads:
        if not issubclass(types[name], Record):
            continue
        paths = {part: path for path, part in reversed(leaf_paths(types[name]))}
        parts = dict(task.parts).get(name, ())
        guides = [paths.get(Context, ""), paths.get(Lengths, "")]
        if all(path and (not parts or f"{path}.".startswith(tuple(f"{part}." for part in parts))) for path in guides):
            return Guide(name, *guides)
    return None


def balanced_shares(table: pa.Table, guide: Guide, count: int) -> Shares:
    """Return an assignment of the groups in a table to `count` ranks with nearly equal work.

    `guide` names the columns of contexts and response lengths. The largest remaining group goes to the rank with the
    least work so far. The work of a row with n tokens, context included, is 24,576 n + n^2.

    Source: Graham 1969, Bounds on multiprocessing timing anomalies: at most 4/3 of the optimum.
    """
    import numpy as np

    tokens = table.column(guide.context).combine_chunks().value_lengths().to_numpy().astype(np.float64)
    tokens += table.column(guide.lengths).to_numpy()
    groups, place = np.unique(table.column("#group").to_numpy(), return_inverse=True)
    works = np.bincount(place, weights=LINEAR_TOKENS * tokens + tokens**2, minlength=len(groups))
    return Shares(groups, np.array(balance_work(works.tolist(), count), dtype=np.int64))


def balance_work(works: Sequence[float], count: int) -> list[int]:
    """Return the rank of each piece of work, from 0, so that the `count` ranks have nearly equal sums of work.

    The largest piece goes first, to the rank with the least work so far. Of equal pieces and ranks, the first is taken.

    >>> balance_work([1, 5, 2, 2], 2)
    [1, 0, 1, 1]
    """
    ranks, busy = [0] * len(works), [(0.0, rank) for rank in range(count)]
    for place in sorted(range(len(works)), key=lambda i: -works[i]):
        load, rank = heapq.heappop(busy)
        ranks[place] = rank
        heapq.heappush(busy, (load + works[place], rank))
    return ranks
