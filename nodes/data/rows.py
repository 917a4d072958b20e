"""The rows of a data set, in verl's schema, and the files that hold them.

Only the column `prompt` is required, since a rule need not read the others; their types are checked where they are
present. Names and splits of data sets are in `sets`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from flowgraph.errors import DataError
from nodes.data.arrow import Schema, Table
from nodes.data.checks import check_rows
from nodes.data.columns import Columns, with_columns
from nodes.data.json_lines import read_json_lines
from nodes.data.parquet import read_parquet

ROW_SCHEMA: Schema = pa.schema(
    [
        pa.field("data_source", pa.string()),
        pa.field("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        pa.field("ability", pa.string()),
        pa.field("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
    ]
)
"""The typed columns, in verl's order. The column `extra_info` has any type. Source: verl, "Prepare Data"."""

Row = dict[str, Any]
NO_COLUMNS: Columns = {}


def row(source: str, question: str, truth: str | None, *, ability: str, extra_info: Mapping[str, object]) -> Row:
    """Return a row whose prompt is `question` as a single user message, and whose ground truth, for a rule, is `truth`.

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
    """Return a table with the columns of `ROW_SCHEMA` and `extra_info`, given rows in the form that `row` returns."""
    extra_info = pa.array([values["extra_info"] for values in rows])
    schema = ROW_SCHEMA.append(pa.field("extra_info", extra_info.type))
    return pa.Table.from_pylist(list(rows), schema=schema)


def read(path: Path, columns: Columns = NO_COLUMNS, *, name: str = "") -> Table:
    """Return the checked rows of a `.parquet` or `.jsonl` file, with columns renamed by `columns` (`with_columns`).

    `name` is the file's name in errors, by default its path. Raises DataError, with file, row and column, if the file
    is missing, corrupt, empty or of another format, and for the first fault that `check_rows` finds.
    """
    if not path.is_file():
        raise DataError.missing(path)
    if path.suffix not in READERS:
        raise DataError.unusable(path, f"not a data file: its name must end in {' or '.join(READERS)}")
    (table, lines), file = READERS[path.suffix](path), name or str(path)

    def where(index: int) -> str:
        return f"{file}:{lines[index]}" if lines else f"{file} row {index} (from 0)"

    if len(set(table.column_names)) == table.num_columns and table.num_rows:  # else the check refuses it
        table = with_columns(table, columns, file=file, where=where)
    check_rows(table, file=file, where=where)
    return table


READERS: Mapping[str, Callable[[Path], tuple[Table, Sequence[int]]]] = {
    ".parquet": lambda path: (read_parquet(path), ()),
    ".jsonl": read_json_lines,
}
"""How a file is read by its suffix: into its table, and the line of each row if it has lines."""
