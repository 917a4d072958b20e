"""Values that are carried from step to step, as JSON files: an adaptive coefficient, rows that are left for later."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.errors import DataError
from flowgraph.files.untrusted import read_json
from flowgraph.language.values import Value
from flowgraph.runtime.batch import from_table

if TYPE_CHECKING:
    import pyarrow as pa


def write_carried(tables: Sequence[pa.Table], path: Path) -> None:
    """Write the one table of a value: its Arrow schema, and its rows as JSON holds them, to the last bit."""
    (table,) = tables
    schema = base64.b64encode(table.schema.serialize().to_pybytes()).decode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": schema, "columns": table.to_pydict()}), "utf-8")


def read_carried(kind: type[Value], path: Path) -> Value:
    """Read a value of this type back. Raises DataError for a file that holds none."""
    import pyarrow as pa

    try:
        told = read_json(path)
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(told["schema"])))
        table = pa.table(told["columns"], schema=schema)
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise DataError.failed(path, "is no value that was carried", error) from error
    return from_table(kind, table, str(path))
