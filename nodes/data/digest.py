"""The digest of a table's contents: equal tables have one digest, however they are chunked, sliced or stored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from nodes.data.arrow import Array, Table

Feed = Callable[[bytes], object]


def table_digest(table: Table) -> str:
    """Return the SHA-256 of a table's names, types and values, as 64 hexadecimal digits.

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


def join_digests(*digests: str) -> str:
    """Return the SHA-256 of several digests in order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _feed(feed: Feed, array: Array) -> None:
    """Feed an array's type, length, nulls and values, in this order, so that no two arrays feed the same bytes."""
    nested = pa.types.is_nested(array.type)  # then only the outermost type, since Parquet renames the items of lists
    name = type(array.type).__name__ if nested else str(array.type)
    feed(f"{name}|{len(array)}|{array.null_count}|".encode())
    if array.null_count:
        feed(np.packbits(array.is_valid().to_numpy(zero_copy_only=False)).tobytes())
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        _feed_leaves(feed, array.value_lengths().drop_null())
        _feed(feed, array.flatten())
    elif pa.types.is_struct(array.type):
        for field, values in zip(array.type, array.flatten(), strict=True):
            feed(repr(field.name).encode())
            _feed(feed, values)
    else:
        _feed_leaves(feed, array.drop_null())


def _feed_leaves(feed: Feed, array: Array) -> None:
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        feed(array.to_numpy(zero_copy_only=False).tobytes())
    else:
        values: list[Any] = array.to_pylist()
        feed(repr(values).encode())
