"""Parquet files that are written whole and read with verification.

Page checksums cover the values; a digest in the footer covers names, types and what the footer says of the pages.
Nothing here knows what the rows mean.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import pyarrow.parquet as pq

from flowgraph.errors import DataError
from nodes.data.arrow import Table
from nodes.data.digest import table_digest

DIGEST_KEY = b"flowgraph.sha256"


def write_parquet(table: Table, path: Path) -> None:
    """Write `table` beside `path` and rename it there, so that `path` is always a whole file.

    Raises DataError where the folder cannot be made or written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_synced(_with_digest(_as_stored(table)), part)
        part.replace(path)
    except OSError as fault:
        raise DataError.failed(path, "cannot be written", fault) from fault
    finally:
        part.unlink(missing_ok=True)


def read_parquet(path: Path) -> Table:
    """Read one Parquet file, verifying every checksum that it holds.

    A file of another writer may hold none: that is no fault. Raises DataError for a file that cannot be opened,
    is truncated, or differs from what was written.
    """
    try:
        with path.open("rb") as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
            table = file.read()
        table.validate(full=True)
    except PermissionError as fault:
        raise DataError.failed(path, "cannot be read", fault) from fault
    except Exception as fault:  # a damaged footer surfaces as almost any exception
        raise DataError.corrupt(path, fault) from fault
    return _verified(table, path)


def _write_synced(table: Table, path: Path) -> None:
    with path.open("wb") as sink:
        pq.write_table(table, sink, write_page_checksum=True)
        sink.flush()
        os.fsync(sink.fileno())


def _as_stored(table: Table) -> Table:
    """Cast to the types that Parquet gives back (it has no seconds, say), so that the digest is of what is read."""
    sink = io.BytesIO()
    pq.write_table(table.schema.empty_table(), sink)
    return table.cast(pq.read_schema(sink))


def _with_digest(table: Table) -> Table:
    kept = dict(table.schema.metadata or {})
    return table.replace_schema_metadata({**kept, DIGEST_KEY: table_digest(table).encode()})


def _verified(table: Table, path: Path) -> Table:
    metadata = dict(table.schema.metadata or {})
    written = metadata.pop(DIGEST_KEY, None)
    if written is not None and written != table_digest(table).encode():
        raise DataError.altered(path)
    return table.replace_schema_metadata(metadata or None)
