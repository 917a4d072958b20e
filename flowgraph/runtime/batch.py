"""Convert values to ragged Arrow tables and back: one column per value, lists for token columns, no padding."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from flowgraph.errors import DataError, LawError
from flowgraph.files.untrusted import parse_json, read_json
from flowgraph.language.values import Kind, Lengths, Record, Value, fields

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

V = TypeVar("V", bound=Value)

SCALARS = b"flowgraph.scalars"
PLAIN = "value"  # the column of a value that is not a record
EXTRAS = ".extras"  # after the name of a column: what else is known of its rows, a JSON object each


def to_table(value: Value, lengths: Tensor | None = None) -> pa.Table:
    """Return a value with real data as an Arrow table, with one column for each part of a record.

    Token columns [B, T] become lists that are cut to the lengths of their rows, in tokens: those of their record or of
    the nearest record around it, or else `lengths` [B]; without either, all T are kept. Columns of an inner table are
    named `part.column`. Scalars are stored as JSON in the schema's metadata, and extras in a column `part.extras`.

    `from_table` returns the same data to the last bit, with these exceptions: bfloat16 becomes float32; tokens that
    were cut off become zeros, or their columns narrower where no row is as long; Arrow arrays of numbers without nulls
    become tensors; measures and extras are lost. Raises LawError for a scalar that JSON lacks.
    """
    import numpy as np
    import pyarrow as pa
    import torch

    columns, scalars = dict[str, Any](), dict[str, Any]()
    parts = _parts(value, "", lengths) if isinstance(value, Record) else [(PLAIN, value, lengths)]
    for name, part, row_lengths in parts:
        if part.kind is Kind.TOKEN:
            rows, width = part.data.shape
            counts = np.full(rows, width) if row_lengths is None else row_lengths.numpy(force=True)
            offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
            inside = np.arange(width)[None] < counts[:, None]
            columns[name] = pa.ListArray.from_arrays(offsets, pa.array(_numbers(part.data)[inside]))
        elif part.kind is not Kind.ROW:
            scalars[name] = part.data
        elif isinstance(part.data, pa.Table):
            columns |= {f"{name}.{column}": part.data.column(column) for column in part.data.column_names}
        elif isinstance(part.data, torch.Tensor):  # [B, ...] numbers become fixed-size lists
            columns[name] = pa.array(_numbers(part.data).reshape(-1))
            for size in reversed(part.data.shape[1:]):
                columns[name] = pa.FixedSizeListArray.from_arrays(columns[name], size)
        else:
            columns[name] = part.data if isinstance(part.data, pa.Array | pa.ChunkedArray) else None
        if part.extras:
            columns[f"{name}{EXTRAS}"] = pa.array(part.extras, pa.string())
    try:
        metadata = {SCALARS: json.dumps(scalars).encode()}
    except TypeError:
        what = f"a {type(value).__name__} cannot be sent: a scalar is a number, a text, or lists of them"
        raise LawError(what) from None
    return pa.table(columns).replace_schema_metadata(metadata)


def _numbers(tensor: Tensor) -> Any:
    import torch

    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy(force=True)


def _parts(record: Record, prefix: str, outer: Tensor | None) -> Iterator[tuple[str, Value, Tensor | None]]:
    """Yield each part of a record as (dotted name, value, row lengths of the nearest enclosing record)."""
    lengths = next((part.data for part in record.parts.values() if isinstance(part, Lengths)), outer)
    for name, part in record.parts.items():
        if isinstance(part, Record):
            yield from _parts(part, f"{prefix}{name}.", lengths)
        else:
            yield f"{prefix}{name}", part, lengths


def from_table(kind: type[V], table: pa.Table, where: str, parts: Sequence[str] = ()) -> V:
    """Return a value of type `kind` from a table that `to_table` wrote; columns that belong to no part are ignored.

    `parts` are dotted paths: if not empty, only these parts of a record are read. `where` names the file or transfer in
    errors. Raises DataError, with `where` and the column, for a missing column, a token column that is not lists of
    numbers, a missing scalar, and unreadable scalars.
    """
    try:
        scalars = parse_json((table.schema.metadata or {}).get(SCALARS, b"{}"))
    except ValueError as error:
        raise DataError.unusable(where, f"its scalars cannot be read: {error}") from None
    if not isinstance(scalars, dict):
        raise DataError.unusable(where, "its scalars are not a JSON object")
    return cast("V", _read(kind, "" if issubclass(kind, Record) else PLAIN, table, scalars, where, parts))


def select(table: pa.Table, parts: Sequence[str]) -> pa.Table:
    """Return a table with only the columns that belong to `parts` (dotted paths) or that identify rows.

    The path of a nested record selects all columns below it. Columns that identify rows have names that begin with `#`.
    """
    prefixes = ("#", *(f"{part}." for part in parts))
    return table.select([name for name in table.column_names if name in parts or name.startswith(prefixes)])


def _read(
    kind: type[Value], name: str, table: pa.Table, scalars: Mapping[str, Any], where: str, only: Sequence[str]
) -> Value:
    if issubclass(kind, Record):
        parts = dict[str, Value]()
        for field, part in fields(kind).items():
            path = f"{name}.{field}" if name else field
            if not only or any(part_path == path or part_path.startswith(f"{path}.") for part_path in only):
                parts[field] = _read(part, path, table, scalars, where, () if path in only else only)
        return kind.of(parts)
    if kind.kind not in (Kind.ROW, Kind.TOKEN):
        if name not in scalars:
            raise DataError.lacks_part(where, name, list(scalars))
        return kind(scalars[name])
    if name not in table.column_names:
        inner = [column for column in table.column_names if column.startswith(f"{name}.")]
        if not inner:
            raise DataError.lacks_part(where, name, table.column_names)
        return kind(table.select(inner).rename_columns([column[len(name) + 1 :] for column in inner]))
    column = table.column(name).combine_chunks()
    return kind(_padded(column, name, where) if kind.kind is Kind.TOKEN else _row_data(column))


def _padded(column: Any, name: str, where: str) -> Tensor:
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


def _row_data(column: Any) -> Any:
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


def write_rows(table: pa.Table, path: Path) -> None:
    """Write a table in Arrow's file format, which `read_rows` reads; an existing file is replaced.

    Raises OSError if the file cannot be written, for example because its folder does not exist.
    """
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def read_rows(path: Path) -> pa.Table:
    """Return the table that `write_rows` wrote. Raises DataError if the file cannot be read or is not such a table."""
    import pyarrow as pa

    try:
        with pa.OSFile(str(path), "rb") as file:
            return pa.ipc.open_file(file).read_all()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError.failed(path, "is not a table of rows", error) from error


def write_carried(tables: Sequence[pa.Table], path: Path) -> None:
    """Write the table of a value that a run carries to its next step as a JSON file, without loss.

    The file has the Arrow schema in base64, and the columns; `read_carried` reads it. `tables` must contain exactly one
    table, or ValueError is raised; it is a sequence because `Places.apply` passes one. Parent folders are created, and
    an existing file is replaced. Raises OSError if writing fails.
    """
    (table,) = tables
    schema = base64.b64encode(table.schema.serialize().to_pybytes()).decode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": schema, "columns": table.to_pydict()}), "utf-8")


def read_carried(kind: type[Value], path: Path) -> Value:
    """Return the value of type `kind` that `write_carried` wrote to `path`.

    Raises DataError if the file cannot be read, or does not contain such a value.
    """
    import pyarrow as pa

    try:
        contents = read_json(path)
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(contents["schema"])))
        table = pa.table(contents["columns"], schema=schema)
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise DataError.failed(path, "is not a carried value", error) from error
    return from_table(kind, table, str(path))
