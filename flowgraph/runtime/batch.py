"""Values as ragged Arrow tables and back: a column a value, lists for token columns, no padding. Parquet the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from flowgraph.errors import DataError, LawError
from flowgraph.files.untrusted import parse_json
from flowgraph.language.values import Kind, Lengths, Record, Value, fields

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

V = TypeVar("V", bound=Value)

SCALARS = b"flowgraph.scalars"
PLAIN = "value"  # the column of a value that is no record


def to_table(whole: Value, lengths: Tensor | None = None) -> pa.Table:
    """Lay a real value out as a table: token columns cut to each row's length, table columns as `part.column`.

    A record has a column for each part; for a plain value of tokens `lengths` [B] says its rows'. Scalars go to the
    schema's metadata. `from_table` gives the same value back, to the last bit. Raises LawError for a scalar that JSON
    cannot hold.
    """
    import pyarrow as pa

    columns, scalars = dict[str, Any](), dict[str, Any]()
    flat = _flat(whole, "", lengths) if isinstance(whole, Record) else [(PLAIN, whole, lengths)]
    for name, value, lengths in flat:
        if value.kind is Kind.TOKEN:
            columns[name] = _ragged(value.data, lengths)
        elif value.kind is not Kind.ROW:
            scalars[name] = value.data
        elif isinstance(value.data, pa.Table):
            columns |= {f"{name}.{column}": value.data.column(column) for column in value.data.column_names}
        else:
            columns[name] = row_column(value)
    try:
        told = json.dumps(scalars)
    except TypeError:
        what = f"a {type(whole).__name__} holds what cannot travel: a scalar is a number, a text, or lists of them"
        raise LawError(what) from None
    return pa.table(columns).replace_schema_metadata({SCALARS: told.encode()})


def row_column(value: Value) -> Any:
    """Give the data of a row value as an Arrow array: [B, ...] numbers become fixed-size lists. None for a table."""
    import pyarrow as pa
    import torch

    if not isinstance(value.data, torch.Tensor):
        return value.data if isinstance(value.data, pa.Array | pa.ChunkedArray) else None
    column = pa.array(_numbers(value.data).reshape(-1))
    for size in reversed(value.data.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _numbers(tensor: Tensor) -> Any:
    import torch

    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy(force=True)


def _flat(record: Record, prefix: str, outer: Tensor | None) -> Iterator[tuple[str, Value, Tensor | None]]:
    """Give each part by its dotted name, with the lengths of its rows: those of its own record, else of the outer."""
    own = next((part.data for part in record.parts.values() if isinstance(part, Lengths)), outer)
    for name, part in record.parts.items():
        if isinstance(part, Record):
            yield from _flat(part, f"{prefix}{name}.", own)
        else:
            yield f"{prefix}{name}", part, own


def _ragged(padded: Tensor, lengths: Tensor | None) -> Any:
    import numpy as np
    import pyarrow as pa

    rows, width = padded.shape
    kept = np.full(rows, width) if lengths is None else lengths.numpy(force=True)
    inside = np.arange(width)[None] < kept[:, None]
    offsets = np.concatenate([[0], np.cumsum(kept)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(_numbers(padded)[inside]))


def from_table(kind: type[V], table: pa.Table, where: str, parts: Sequence[str] = ()) -> V:
    """Read a value of this type back from a table that `to_table` made; columns it has no part for are left out.

    Of a record only `parts` are read, dotted paths, if any are named. Raises `DataError` that names the file and the
    column it lacks, or that is of another type, or why its scalars cannot be read.
    """
    try:
        scalars = parse_json((table.schema.metadata or {}).get(SCALARS, b"{}"))
    except ValueError as error:
        raise DataError.unusable(where, f"its scalars cannot be read: {error}") from None
    if not isinstance(scalars, dict):
        raise DataError.unusable(where, "its scalars are no JSON object")
    return cast("V", _part(kind, "" if issubclass(kind, Record) else PLAIN, table, scalars, where, parts))


def select(table: pa.Table, parts: Sequence[str]) -> pa.Table:
    """Give the columns of these parts of a record, dotted paths, and those that say which row is which."""
    inside = tuple(f"{part}." for part in parts)
    kept = [name for name in table.column_names if name in parts or name.startswith(("#", *inside))]
    return table.select(kept)


def _record(
    kind: type[Record], table: pa.Table, scalars: Mapping[str, Any], prefix: str, where: str, only: Sequence[str]
) -> Record:
    parts = dict[str, Value]()
    for name, part in fields(kind).items():
        path = f"{prefix}{name}"
        if not only or any(each == path or each.startswith(f"{path}.") for each in only):
            parts[name] = _part(part, path, table, scalars, where, () if path in only else only)
    return kind.of(parts)


def _part(
    part: type[Value], name: str, table: pa.Table, scalars: Mapping[str, Any], where: str, only: Sequence[str]
) -> Value:
    if issubclass(part, Record):
        return _record(part, table, scalars, f"{name}." if name else "", where, only)
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
    return part(_pad(column, name, where) if part.kind is Kind.TOKEN else _rows(column))


def _pad(column: Any, name: str, where: str) -> Tensor:
    """Lay lists of numbers out as [B, T], zero beyond each list's end."""
    import numpy as np
    import pyarrow as pa
    import torch

    if not (pa.types.is_list(column.type) and _is_number(column.type.value_type)) or column.null_count:
        raise DataError.wrong_type(where, name, column.type, "a list of numbers in each row")
    if column.flatten().null_count:
        raise DataError.wrong_type(where, name, f"{column.type} with nulls inside", "a list of numbers in each row")
    lengths = column.value_lengths().to_numpy()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    padded = np.zeros((len(lengths), lengths.max(initial=0)), flat.dtype)
    padded[np.arange(padded.shape[1])[None] < lengths[:, None]] = flat
    return torch.from_numpy(padded)


def _rows(column: Any) -> Any:
    """Give numbers as a tensor [B, ...]; anything else stays an Arrow array."""
    import pyarrow as pa
    import torch

    shape, inner = [len(column)], column
    while pa.types.is_fixed_size_list(inner.type):
        shape.append(inner.type.list_size)
        inner = inner.flatten()
    if not _is_number(inner.type) or inner.null_count:
        return column
    return torch.from_numpy(inner.to_numpy(zero_copy_only=False).copy()).reshape(shape)


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))
