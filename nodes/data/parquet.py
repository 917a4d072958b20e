"""Parquet files, written completely or not at all, and verified when they are read.

Page checksums cover the values; a digest in the footer covers names, types and the footer's description of the pages.
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
    """Write `table` to a temporary file and rename it to `path`, so that `path` is always a complete file.

    Raises DataError if the folder cannot be created or written.
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
    """Read a Parquet file and verify its checksums and digest, if it has them.

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
