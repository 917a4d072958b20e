"""Rows of any table as rows of a data set: columns by other names, and prompts that are texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from flowgraph.errors import DataError, UsageError
from nodes.data.arrow import Array, Table
from nodes.data.checks import PROMPT_HINT, is_messages, is_text

COLUMNS_HINT = "--columns prompt=problem,answer=solution"
TRUTHS = ("answer", "ground_truth")
"""Names for the ground truth."""
STORED_TRUTH = "reward_model.ground_truth"
MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])

Columns = Mapping[str, Sequence[str]]
"""The columns to read each of ours from: the first that a table has."""


def parse_columns(texts: Sequence[str]) -> Columns:
    """Return the source columns to read each column from, given texts such as `prompt=problem,answer=solution`.

    A column that comes twice has alternative sources, for files that differ; `answer` means `ground_truth`. Raises
    UsageError for a part that is not COLUMN=SOURCE.

    >>> parse_columns(["prompt=problem,answer=solution", "prompt=question"])
    {'prompt': ['problem', 'question'], 'ground_truth': ['solution']}
    """
    columns = dict[str, list[str]]()
    for text in texts:
        for pair in text.split(","):
            name, _, source = (part.strip() for part in pair.partition("="))
            if not (name and source):
                raise UsageError(f"`{pair}` should be COLUMN=SOURCE", where="--columns", hint=COLUMNS_HINT)
            columns.setdefault("ground_truth" if name in TRUTHS else name, []).append(source)
    return columns


def with_columns(table: Table, columns: Columns, *, file: str, where: Callable[[int], str]) -> Table:
    """Return a table in which each column named in `columns` is read from the first of its sources that the table has.

    A source may be a path into a struct: `extra_info.question`. Source columns stay. A ground truth is stored in
    `reward_model`, and a prompt that is a text becomes one message of the user. `file` names the table in errors;
    `where` returns the name of a row, given its index. Raises DataError if the table has neither a column nor any
    source for that column, for a source with a null, and for a source of prompts that are neither texts nor lists of
    messages.
    """
    for name, sources in columns.items():
        present = ((source, values) for source in sources if (values := _at(table, source)) is not None)
        source, values = next(present, (sources[0], None))
        if values is not None:
            missing: int = values.is_null().index(True).as_py()
            if missing >= 0:
                raise DataError.bad_row(where(missing), source, "is null or missing")
            if name == "prompt" and not (is_text(values.type) or is_messages(values.type)):
                kinds = "a text or a list of messages"
                raise DataError.wrong_type(file, source, values.type, kinds, hint=PROMPT_HINT)
            table = _with_truths(table, values) if name == "ground_truth" else _with_column(table, name, values)
        elif name not in table.column_names and (name != "ground_truth" or _at(table, STORED_TRUTH) is None):
            raise DataError.lacks_column(file, source, table.column_names)
    if "prompt" in table.column_names and is_text(table.schema.field("prompt").type):
        prompts: list[str | None] = table.column("prompt").to_pylist()
        chats = [None if text is None else [{"role": "user", "content": text}] for text in prompts]
        table = _with_column(table, "prompt", pa.array(chats, pa.list_(MESSAGE)))
    return table


def with_source(table: Table, name: str) -> Table:
    """Return a table whose column `data_source` is `name` where it was null, or in all rows if it was missing."""
    if "data_source" in table.column_names:
        sources = _one(table, "data_source")
        return _with_column(table, "data_source", sources.cast(pa.string()).fill_null(name))
    return table.append_column("data_source", pa.array([name] * table.num_rows, pa.string()))


def _at(table: Table, path: str) -> Array | None:
    if path in table.column_names:
        return _one(table, path)
    name, *rest = path.split(".")
    values = _one(table, name) if name in table.column_names else None
    for part in rest:
        if values is None or not pa.types.is_struct(values.type) or values.type.get_field_index(part) < 0:
            return None
        values = values.flatten()[values.type.get_field_index(part)]
    return values if rest else None


def _one(table: Table, name: str) -> Array:
    column = table.column(table.column_names.index(name))
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _with_truths(table: Table, values: Array) -> Table:
    texts = [value if isinstance(value, str) else json.dumps(value, default=str) for value in values.to_pylist()]
    style = pa.array(["rule"] * len(texts), pa.string())
    truths = pa.StructArray.from_arrays([style, pa.array(texts, pa.string())], names=["style", "ground_truth"])
    if "ground_truth" in table.column_names:
        table = _with_column(table, "ground_truth", pa.array(texts, pa.string()))
    return _with_column(table, "reward_model", truths)


def _with_column(table: Table, name: str, values: Array) -> Table:
    index = table.column_names.index(name) if name in table.column_names else None
    return table.append_column(name, values) if index is None else table.set_column(index, name, values)
