"""Which row is which: rows are split over ranks by whole groups, and put back and lined up by identity.

On the wire a table carries its rows' ids as columns `#group`, `#sample`, `#trajectory`, and `#place`, the place of each
row in the batch that was split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowgraph.errors import LawError
from flowgraph.language.rows import find, leaves, take
from flowgraph.language.values import Group, Kind, Lengths, Sample, Trajectory, Value

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from torch import Tensor

    from flowgraph.runtime.row_sharding import Shares

IDS: Mapping[str, type[Value]] = {"#group": Group, "#sample": Sample, "#trajectory": Trajectory}
PLACE = "#place"
LAST = 2**62  # the place of rows that were made of none


@dataclass(frozen=True)
class StoredValue:
    """A value as a store holds it: `ids` [B] int64 by name (see IDS, PLACE), none if nothing tells its rows apart."""

    value: Value
    ids: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, value: Value, inputs: Sequence[StoredValue] = ()) -> StoredValue:
        """Hold what a node made of `inputs`: its rows are told by its own ids, else they are those of an input.

        Of several inputs with as many rows it is the one that tells its rows apart best: responses, not prompts.
        """
        rows = _rows(value)
        own = ids_of(value) if rows is not None else {}
        for each in sorted(inputs, key=lambda held: -len(held.ids)):
            if rows is not None and each.ids and (len(each) == rows or "#group" in own):
                return cls(value, (own or _without_place(each.ids)) | _places(own or each.ids, each.ids))
        return cls(value, own)

    def __len__(self) -> int:
        return len(next(iter(self.ids.values()), ()))


def _rows(value: Value) -> int | None:
    counts = [len(each.data) for each in leaves([value]) if each.kind in (Kind.ROW, Kind.TOKEN)]
    return counts[0] if counts else None


def ids_of(value: Value) -> dict[str, NDArray[Any]]:
    """Give the ids that a record says of its rows; none for a plain value."""
    found = {name: find([value], kind) for name, kind in IDS.items()}
    return {name: part.data.numpy(force=True) for name, part in found.items() if part is not None}


def _without_place(ids: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: column for name, column in ids.items() if name != PLACE}


def _places(ids: Mapping[str, NDArray[Any]], source: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Give each row the place of the row it was made of: the same row, else its sample's or its prompt's, else last."""
    import numpy as np

    if PLACE not in source:
        return {}
    shared = [name for name in IDS if name in ids and name in source]
    if all(np.array_equal(ids[name], source[name]) for name in shared):
        return {PLACE: source[PLACE]}
    first, places = dict[tuple[int, ...], int](), source[PLACE].tolist()
    for row, place in zip(_id_rows(source, shared), places, strict=True):
        for width in range(1, len(shared) + 1):
            first.setdefault(row[:width], place)
    found = [_nearest(row, first) for row in _id_rows(ids, shared)]
    return {PLACE: np.array(found, dtype=np.int64)}


def _nearest(row: tuple[int, ...], first: Mapping[tuple[int, ...], int]) -> int:
    known = (first[row[:width]] for width in range(len(row), 0, -1) if row[:width] in first)
    return next(known, LAST)


def _id_rows(ids: Mapping[str, NDArray[Any]], names: Sequence[str]) -> list[tuple[int, ...]]:
    return list(zip(*(ids[name].tolist() for name in names), strict=True))


def lined_up(inputs: Mapping[str, StoredValue]) -> dict[str, StoredValue]:
    """Give a node's inputs with the same rows in one order: that of the first input that has them.

    Inputs of different rows, such as greedy responses beside sampled ones, stay as they are. Raises LawError for the
    same rows in another order when ids do not tell all of them apart.
    """
    done, firsts = dict[str, StoredValue](), dict[tuple[str, ...], list[str]]()
    for name, held in inputs.items():
        others = firsts.setdefault(tuple(_without_place(held.ids)), [])
        moved = (found for other in others if (found := _like((name, held), (other, done[other]))) is not None)
        done[name] = next(moved, held) if held.ids else held
        others.append(name)
    return done


def _like(moving: tuple[str, StoredValue], other: tuple[str, StoredValue]) -> StoredValue | None:
    """Give the rows in the order of another value's, or None if they are not the same rows."""
    import numpy as np
    import torch

    (name, held), (first, there) = moving, other
    kind = _without_place(held.ids)
    if all(np.array_equal(column, there.ids[key]) for key, column in kind.items()):
        return held
    rows, wanted = _id_rows(held.ids, list(kind)), _id_rows(there.ids, list(kind))
    if sorted(wanted) != sorted(rows):
        return None
    place = {row: i for i, row in enumerate(rows)}
    if len(place) < len(rows):
        raise LawError.not_aligned(name, first, "they come in another order, and several have the same ids")
    index = torch.tensor([place[row] for row in wanted], dtype=torch.int64)
    return StoredValue(take(held.value, index), {key: column[index.numpy()] for key, column in held.ids.items()})


def lengths_for(value: Value, inputs: Sequence[StoredValue]) -> Any:
    """Give the lengths of a token value's rows, as one of the node's inputs says them; None if none does.

    Lengths of other rows are told by what they would cut: more than zeros, or whole columns.
    """
    told = (find([each.value], Lengths) for each in inputs)
    return next((each.data for each in told if each is not None and _fits(each.data, value)), None)


def _fits(lengths: Tensor, value: Value) -> bool:
    import torch

    width = int(lengths.max()) if len(lengths) else 0
    beyond = torch.arange(width)[None] >= lengths[:, None].cpu()
    tokens = [each.data for each in leaves([value]) if each.kind is Kind.TOKEN]
    return all(data.shape == beyond.shape and not data.cpu()[beyond].any() for data in tokens)


def deal(table: pa.Table, rank: int, count: int, name: str, shares: Shares | None = None) -> pa.Table:
    """Give one rank's rows of a whole table: the groups that `shares` gives it, else an even number, in their order.

    No group is cut, and the groups' ids alone say whose they are, so values of the same rows are shared alike in
    whatever order they come. Raises LawError for rows without identity. A table of a scalar goes to every rank.
    """
    import numpy as np

    if count == 1 or not table.num_columns:
        return table
    if "#group" not in table.column_names:
        raise LawError.no_identity(name, count)
    groups = table.column("#group").to_numpy()
    found = np.unique(groups)
    mine = np.array_split(found, count)[rank] if shares is None else shares.of(found, rank, count)
    kept = np.flatnonzero(np.isin(groups, mine))
    places = table.drop([PLACE]) if PLACE in table.column_names else table
    return places.take(kept).append_column(PLACE, [kept])


def joined(tables: Sequence[pa.Table], name: str) -> pa.Table:
    """Put the ranks' rows back into one table, in the order of the batch that was split.

    Raises LawError when ranks give different scalars, which then depend on how the batch was cut.
    """
    import numpy as np
    import pyarrow as pa

    if len(tables) == 1:
        return tables[0].drop([PLACE]) if PLACE in tables[0].column_names else tables[0]
    if any(table.schema.metadata != tables[0].schema.metadata for table in tables):
        raise LawError.not_aligned(name, name, "its ranks give different scalars")
    told = [table for table in tables if table.num_rows] or tables[:1]  # no row says nothing of a column's type
    whole = pa.concat_tables(told).combine_chunks()
    if PLACE not in whole.column_names:
        return whole
    places = whole.column(PLACE).to_numpy()
    whole = whole.drop([PLACE])
    return whole if np.all(places[:-1] <= places[1:]) else whole.take(np.argsort(places, kind="stable"))
