"""Parquet files, written completely or not at all, and verified when they are read.

Page checksums cover the values; a digest in the footer covers names, types and the footer's description of the pages.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flowgraph.errors import DataError
from nodes.data.arrow import Array, Table

DIGEST_KEY = b"flowgraph.sha256"
Feed = Callable[[bytes], object]


def write_parquet(table: Table, path: Path) -> None:
    """Write `table` to a temporary file and rename it to `path`, so that `path` is always a complete file.

    An existing file is replaced, and a missing folder is created. Raises DataError if the folder or the file cannot be
    written.
    """
    schema = io.BytesIO()
    pq.write_table(table.schema.empty_table(), schema)
    table = table.cast(pq.read_schema(schema))  # to the types that Parquet can store, so the digest is of what is read
    metadata = {**(table.schema.metadata or {}), DIGEST_KEY: table_digest(table).encode()}
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as sink:
            pq.write_table(table.replace_schema_metadata(metadata), sink, write_page_checksum=True)
            sink.flush()
            os.fsync(sink.fileno())
        part.replace(path)
    except OSError as fault:
        raise DataError.failed(path, "cannot be written", fault) from fault
    finally:
        part.unlink(missing_ok=True)


def read_parquet(path: Path) -> Table:
    """Return the table in a Parquet file, after verifying its checksums and digest, if it has them.

    Raises DataError for a file that cannot be opened, is truncated, or differs from what was written.
    """
    try:
        with path.open("rb") as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
            table = file.read()
        table.validate(full=True)
    except PermissionError as fault:
        raise DataError.failed(path, "cannot be read", fault) from fault
    except Exception as fault:  # a damaged footer can raise almost any exception
        raise DataError.corrupt(path, fault) from fault
    metadata = dict(table.schema.metadata or {})
    written = metadata.pop(DIGEST_KEY, None)
    if written is not None and written != table_digest(table).encode():
        raise DataError.altered(path)
    return table.replace_schema_metadata(metadata or None)


def table_digest(table: Table) -> str:
    """Return the SHA-256 of a table's names, types and values, as 64 hexadecimal digits; metadata does not count.

    Equal tables have one digest, however they are chunked, sliced or stored.

    >>> table = pa.table({"a": [1, None, 3]})
    >>> chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    >>> table_digest(table) == table_digest(chunked) != table_digest(table.slice(1))
    True
    """
    sha = hashlib.sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        sha.update(repr(name).encode())
        array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        _feed(sha.update, array)
    return sha.hexdigest()


def _feed(feed: Feed, array: Array) -> None:
    """Feed an array's type, length, nulls and values, in this order, so that no two arrays feed the same bytes."""
    nested = pa.types.is_nested(array.type)  # then only the outermost type, since Parquet renames the items of lists
    name = type(array.type).__name__ if nested else str(array.type)
    feed(f"{name}|{len(array)}|{array.null_count}|".encode())
    if array.null_count:
        feed(np.packbits(array.is_valid().to_numpy(zero_copy_only=False)).tobytes())
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        feed(array.value_lengths().drop_null().to_numpy(zero_copy_only=False).tobytes())
        _feed(feed, array.flatten())
    elif pa.types.is_struct(array.type):
        for field, values in zip(array.type, array.flatten(), strict=True):
            feed(repr(field.name).encode())
            _feed(feed, values)
    elif pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        feed(array.drop_null().to_numpy(zero_copy_only=False).tobytes())
    else:
        items: list[Any] = array.drop_null().to_pylist()
        feed(repr(items).encode())
