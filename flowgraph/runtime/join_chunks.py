"""Put the rows of chunks together in the order of the batch: by their ids, never by the order in which they finished.

Metrics that have a term for each row or group (`Measure.rows`) travel with the rows, as columns whose names begin with
`%`, and are added in the order of the batch: so their sums are those of a batch without chunks, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from flowgraph.errors import LawError
from flowgraph.language.region import Observations
from flowgraph.language.rows import take
from flowgraph.language.values import Kind, Measure, Record, Value
from flowgraph.runtime.batch import EXTRAS, PLAIN, from_table, to_table
from flowgraph.runtime.row_identity import IDS, StoredValue, ids_in, join_shards

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from torch import Tensor

V = TypeVar("V", bound=Value)
Terms = Mapping[tuple[str, str], Measure]

NO_EXTRAS = "{}"
"""The metadata of a row of a chunk that has no other."""
ROW_TERM, GROUP_TERM = "%row", "%group"
"""What the names of columns with terms of rows and of groups begin with; node and metric follow, after tabs."""


class _RowTerm(Value):
    kind = Kind.ROW


class _TokenTerm(Value):
    kind = Kind.TOKEN


def order_of(ids: Mapping[str, NDArray[Any]], like: Mapping[str, NDArray[Any]], name: str, order: str) -> NDArray[Any]:
    """Return, for each row of `like`, the index in `ids` of the row with the same ids: [B] int64.

    `ids` and `like` have columns of ids by name (`row_identity.IDS`); only columns that both have are compared. They
    are the ids of the values `name` and `order`, for errors. Raises LawError if the chunks do not have the rows of the
    order, or if two rows have the same ids.
    """
    import numpy as np

    columns = [column for column in IDS if column in like and column in ids]
    index = dict[tuple[int, ...], int]()
    for place, row in enumerate(zip(*(ids[column].tolist() for column in columns), strict=True)):
        if row in index:
            raise LawError.not_aligned(name, order, f"two rows of its chunks have the ids {row}")
        index[row] = place
    rows = list(zip(*(like[column].tolist() for column in columns), strict=True))
    missing = [row for row in rows if row not in index]
    if missing or len(rows) != len(index):
        why = f"no chunk has the row with the ids {missing[0]}" if missing else "its chunks have more rows"
        raise LawError.not_aligned(name, order, why)
    return np.array([index[row] for row in rows], dtype=np.int64)


def joined_value(
    chunks: Sequence[StoredValue], like: StoredValue, name: str, order: str
) -> tuple[StoredValue, Observations]:
    """Return a value with the rows of all chunks in the order of the rows of `like`, the value named `order`.

    Also returned are the metrics of the whole batch whose terms the chunks have. Chunks without rows are ignored.
    Raises LawError if no chunk has rows, if the chunks do not have the rows of the order, or if a scalar of one chunk
    differs from that of another.
    """
    import numpy as np
    import torch

    filled = [chunk for chunk in chunks if len(chunk)]
    if not filled:
        raise LawError.not_aligned(name, order, "its chunks have no rows with ids")
    ids = {column: np.concatenate([chunk.ids[column] for chunk in filled]) for column in filled[0].ids}
    places = order_of(ids, like.ids, name, order)
    value = take(stacked([chunk.value for chunk in filled], name), torch.from_numpy(places))
    observed = Observations()
    for node, metric in filled[0].terms:
        measures = [chunk.terms[node, metric] for chunk in filled]
        rows = stacked([_term(measure.rows) for measure in measures], name).data
        groups = torch.cat([measure.groups for measure in measures]) if measures[0].groups is not None else None
        sorted_rows = rows[groups.argsort()] if groups is not None else rows[torch.from_numpy(places)]
        observed.add(node, [Measure.of_rows(metric, sorted_rows)])
    return StoredValue(value, {column: numbers[places] for column, numbers in ids.items()}), observed


def _term(rows: Tensor) -> Value:
    return _TokenTerm(rows) if rows.dim() == 2 else _RowTerm(rows)


def stacked(values: Sequence[V], name: str) -> V:
    """Return one value with the rows of all `values`, in their order; there must be at least one value.

    Token columns are padded with zeros to the width of the widest. `name` is the value's name in errors. Raises
    LawError if scalars differ.
    """
    import pyarrow as pa
    import torch

    first = values[0]
    if isinstance(first, Record):
        records = cast("Sequence[Record]", values)
        parts = {part: stacked([record.parts[part] for record in records], name) for part in first.parts}
        return cast("V", type(first).of(parts))
    datas: list[Any] = [value.data for value in values]
    if first.kind not in (Kind.ROW, Kind.TOKEN):
        if any(data != datas[0] for data in datas):
            raise LawError.not_aligned(name, name, "its chunks give different scalars")
        return first
    if first.kind is Kind.TOKEN:
        width = max(data.shape[1] for data in datas)
        datas = [torch.nn.functional.pad(data, (0, width - data.shape[1])) for data in datas]
    if isinstance(datas[0], torch.Tensor):
        rows: Any = torch.cat(datas)
    elif isinstance(datas[0], pa.Table):
        rows = pa.concat_tables(datas, promote_options="default").combine_chunks()
    else:
        rows = pa.concat_arrays([array for data in datas for array in getattr(data, "chunks", [data])])
    result = type(first)(rows)
    if any(value.extras for value in values):
        result.extras = tuple(extra for value in values for extra in value.extras or [NO_EXTRAS] * len(value.data))
    return result


def with_terms(table: pa.Table, terms: Terms) -> pa.Table:
    """Return the table of a chunk with a column appended for each of `terms`; `joined_table` adds up these columns.

    `terms` are measures by (node, metric). If a measure has a term for each group, each row gets that of its group, and
    the table must have the column `#group`.
    """
    import numpy as np

    for (node, metric), measure in terms.items():
        rows, prefix = measure.rows, ROW_TERM
        if measure.groups is not None:
            numbers, prefix = measure.groups.numpy(force=True), GROUP_TERM
            at = np.argsort(numbers)
            rows = rows[at[np.searchsorted(numbers, table.column("#group").to_numpy(), sorter=at)]]
        column = to_table(_term(rows)).column(PLAIN)
        table = table.append_column(f"{prefix}\t{node}\t{metric}", column)
    return table


def joined_table(
    chunks: Sequence[Sequence[pa.Table]], like: Sequence[pa.Table], name: str, order: str
) -> tuple[pa.Table, Observations]:
    """Return a table with the rows of all chunks, each the tables of its ranks, in the order of the rows of `like`.

    `like` has the tables, from ranks, of the value named `order`; only its ids are read. Also returned are the metrics
    of the whole batch whose terms the chunks have. Chunks without rows are ignored. Raises LawError if no chunk has
    rows, if the chunks do not have the rows of the order, or if a scalar of one chunk differs from that of another.
    """
    import numpy as np
    import pyarrow as pa

    filled = [[table for table in tables if table.num_columns] for tables in chunks]
    chunk_tables = [table for tables in filled if tables and (table := join_shards(tables, name)).num_rows]
    if not chunk_tables:
        raise LawError.not_aligned(name, order, "its chunks have no rows with ids")
    if any(table.schema.metadata != chunk_tables[0].schema.metadata for table in chunk_tables):
        raise LawError.not_aligned(name, name, "its chunks give different scalars")
    rows = pa.concat_tables(chunk_tables, promote_options="default").combine_chunks()
    for place, column in enumerate(rows.column_names):
        if column.endswith(EXTRAS) and rows.column(column).null_count:
            rows = rows.set_column(place, column, rows.column(column).fill_null(NO_EXTRAS))
    rows = rows.take(order_of(ids_in(rows), ids_in(join_shards(list(like), order)), name, order))
    observed, terms = Observations(), [column for column in rows.column_names if column.startswith("%")]
    for column in terms:
        prefix, node, metric = column.split("\t")
        values = rows.select([column]).rename_columns([PLAIN])
        if prefix == GROUP_TERM:
            values = values.take(np.unique(rows.column("#group").to_numpy(), return_index=True)[1])
        kind = _TokenTerm if pa.types.is_list(values.column(PLAIN).type) else _RowTerm
        observed.add(node, [Measure.of_rows(metric, from_table(kind, values, name).data)])
    return rows.drop_columns(terms), observed
