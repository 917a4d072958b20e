"""Records as ragged Arrow tables and back: one column a value, lists for token columns, no padding; the same in Parquet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from flowgraph.errors import DataError
from flowgraph.rows import find
from flowgraph.values import Kind, Lengths, Record, Value, fields

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R", bound=Record)

SCALARS = b"flowgraph.scalars"


def to_table(record: Record) -> pa.Table:
    """Lay a real record out as a table: token columns cut to each row's length, table columns as `part.column`.

    Scalars go to the schema's metadata. `from_table` gives the same record back, to the last bit.
    """
    import pyarrow as pa

    found = find([record], Lengths)
    lengths = found.data.tolist() if found is not None else []
    columns, scalars = dict[str, Any](), dict[str, Any]()
    for name, value in _flat(record, "").items():
        if value.kind is Kind.TOKEN:
            columns[name] = _ragged(value.data, lengths)
        elif value.kind is not Kind.ROW:
            scalars[name] = value.data
        elif isinstance(value.data, pa.Table):
            columns |= {f"{name}.{column}": value.data.column(column) for column in value.data.column_names}
        else:
            columns[name] = value.data if isinstance(value.data, pa.Array) else pa.array(value.data.numpy())
    return pa.table(columns).replace_schema_metadata({SCALARS: json.dumps(scalars).encode()})


def _flat(record: Record, prefix: str) -> dict[str, Value]:
    flat = dict[str, Value]()
    for name, part in record.parts.items():
        flat |= _flat(part, f"{prefix}{name}.") if isinstance(part, Record) else {f"{prefix}{name}": part}
    return flat


def _ragged(padded: Any, lengths: list[int]) -> Any:
    import numpy as np
    import pyarrow as pa

    width = padded.shape[1]
    inside = np.arange(width)[None] < np.asarray(lengths)[:, None]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(padded.cpu().numpy()[inside]))


def from_table(kind: type[R], table: pa.Table, where: str) -> R:
    """Read a record of this type back from a table that `to_table` made.

    Raises `DataError` that names the file and the column it lacks.
    """
    scalars = json.loads((table.schema.metadata or {}).get(SCALARS, b"{}"))
    return _record(kind, table, scalars, "", where)


def _record(kind: type[R], table: pa.Table, scalars: Mapping[str, Any], prefix: str, where: str) -> R:
    parts = dict[str, Value]()
    for name, part in fields(kind).items():
        parts[name] = _part(part, f"{prefix}{name}", table, scalars, where)
    return kind(**parts)


def _part(part: type[Value], name: str, table: pa.Table, scalars: Mapping[str, Any], where: str) -> Value:
    import torch

    if issubclass(part, Record):
        return _record(part, table, scalars, f"{name}.", where)
    if part.kind not in (Kind.ROW, Kind.TOKEN):
        if name not in scalars:
            raise DataError.lacks_part(where, name, list(scalars))
        return part(scalars[name])
    inside = [column for column in table.column_names if column.startswith(f"{name}.")]
    if name not in table.column_names and inside:
        return part(table.select(inside).rename_columns([column[len(name) + 1 :] for column in inside]))
    if name not in table.column_names:
        raise DataError.lacks_part(where, name, table.column_names)
    column = table.column(name).combine_chunks()
    if part.kind is Kind.TOKEN:
        rows = [torch.from_numpy(row.values.to_numpy(zero_copy_only=False).copy()) for row in column]
        return part(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True))
    plain = str(column.type) in ("int64", "float", "double", "bool", "int32")
    return part(torch.from_numpy(column.to_numpy(zero_copy_only=False).copy()) if plain else column)
