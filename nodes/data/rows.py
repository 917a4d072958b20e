"""The rows of a data set, in verl's schema, and the files that hold them.

Only `prompt` must be there; the other columns are checked for type where present, since a scoring rule
need not ask for them. How a data set is named and split is in `sets`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from flowgraph.errors import DataError
from nodes.data.arrow import Schema, Table
from nodes.data.checks import check_rows
from nodes.data.json_lines import read_json_lines
from nodes.data.parquet import read_parquet, write_parquet

ROW_SCHEMA: Schema = pa.schema(
    [
        pa.field("data_source", pa.string()),
        pa.field("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        pa.field("ability", pa.string()),
        pa.field("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
    ]
)
"""The typed columns, in verl's order. `extra_info`, of any type, follows them. Source: verl, "Prepare Data"."""

Row = dict[str, Any]


def row(source: str, question: str, truth: str | None, *, ability: str, extra_info: Mapping[str, object]) -> Row:
    """Build one row that asks `question` in a single user message.

    >>> row("digits", "374", "743", ability="sort", extra_info={"index": 0})["prompt"]
    [{'role': 'user', 'content': '374'}]
    """
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": question}],
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": dict(extra_info),
    }


def table_of(rows: Sequence[Row]) -> Table:
    """Put rows that `row` built into a table of `ROW_SCHEMA` and `extra_info`."""
    extra_info = pa.array([each["extra_info"] for each in rows])
    schema = ROW_SCHEMA.append(pa.field("extra_info", extra_info.type))
    return pa.Table.from_pylist(list(rows), schema=schema)


def write(table: Table, path: Path) -> None:
    """Write a table as Parquet with checksums, whole or not at all.

    Raises DataError where the folder cannot be written.
    """
    write_parquet(table, path)


def read(path: Path) -> Table:
    """Read and check the rows of one file, `.parquet` or `.jsonl`.

    Raises DataError, naming file, row and column, for a file that is missing, corrupt, empty or of another kind.
    """
    if not path.is_file():
        raise DataError.missing(path)
    if path.suffix not in READERS:
        raise DataError.unusable(path, f"not a data file: its name ends in none of {', '.join(READERS)}")
    table, where = READERS[path.suffix](path)
    check_rows(table, file=str(path), where=where)
    return table


def _read_parquet(path: Path) -> tuple[Table, Callable[[int], str]]:
    return read_parquet(path), lambda index: f"{path} row {index} (from 0)"


def _read_json_lines(path: Path) -> tuple[Table, Callable[[int], str]]:
    table, lines = read_json_lines(path)
    return table, lambda index: f"{path}:{lines[index]}"


READERS: Mapping[str, Callable[[Path], tuple[Table, Callable[[int], str]]]] = {
    ".parquet": _read_parquet,
    ".jsonl": _read_json_lines,
}
