"""The digest of a table's contents: the same for equal tables, however they are chunked, sliced or stored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from nodes.data.arrow import Array, ChunkedArray, DataType, Table

Feed = Callable[[bytes], object]


def table_digest(table: Table) -> str:
    """Digest the names, types and values of a table as 64 hexadecimal digits of SHA-256.

    >>> one = pa.table({"a": [1, None, 3]})
    >>> two = pa.concat_tables([one.slice(0, 1), one.slice(1)])
    >>> table_digest(one) == table_digest(two) != table_digest(one.slice(1))
    True
    """
    sha = hashlib.sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        sha.update(repr(name).encode())
        _feed(sha.update, _one_chunk(column))
    return sha.hexdigest()


def join_digests(*digests: str) -> str:
    """Digest several digests in order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _one_chunk(column: ChunkedArray) -> Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _feed(feed: Feed, array: Array) -> None:
    """Feed an array's type, length, nulls and values, in that order, so that no two arrays feed alike."""
    feed(f"{_type_name(array.type)}|{len(array)}|{array.null_count}|".encode())
    if array.null_count:
        feed(np.packbits(array.is_valid().to_numpy(zero_copy_only=False)).tobytes())
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        _feed_lists(feed, array)
    elif pa.types.is_struct(array.type):
        _feed_structs(feed, array)
    else:
        _feed_leaves(feed, array.drop_null())


def _type_name(found: DataType) -> str:
    """Name a type; of a nested one the outermost part, since Parquet renames the item of a list."""
    return type(found).__name__ if pa.types.is_nested(found) else str(found)


def _feed_lists(feed: Feed, array: Array) -> None:
    _feed_leaves(feed, array.value_lengths().drop_null())
    _feed(feed, array.flatten())


def _feed_structs(feed: Feed, array: Array) -> None:
    for field, values in zip(array.type, array.flatten(), strict=True):
        feed(repr(field.name).encode())
        _feed(feed, values)


def _feed_leaves(feed: Feed, array: Array) -> None:
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        feed(array.to_numpy(zero_copy_only=False).tobytes())
    else:
        values: list[Any] = array.to_pylist()
        feed(repr(values).encode())
