"""JSON Lines, read into a table with the line of each row. Blank lines are skipped.

`json` parses them, because `pyarrow.json` turns strings that look like dates into dates.
"""

from __future__ import annotations

import gzip
import json
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from flowgraph.errors import DataError
from nodes.data.arrow import Array, Table
from nodes.data.checks import check_value

JSON_TYPES = {list: "array", str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}
UNCONVERTIBLE = (pa.ArrowException, OverflowError, UnicodeError)


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number (from 1) and the object of each line of a JSON Lines file, which may be compressed (`.gz`).

    Blank lines are skipped. Raises DataError with the line's number if a line is not JSON in UTF-8 or not an object,
    and for an unreadable file.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as source:
            for number, line in enumerate(source, start=1):
                if not line.strip():
                    continue
                try:
                    value = json.loads(line.decode("utf-8-sig"))
                except UnicodeDecodeError as fault:
                    raise DataError.bad_line(path, number, "not UTF-8") from fault
                except (ValueError, RecursionError) as fault:
                    raise DataError.bad_line(path, number, f"not JSON: {fault}") from fault
                if not isinstance(value, dict):
                    raise DataError.bad_line(path, number, f"a JSON {JSON_TYPES[type(value)]}, not an object")
                yield number, cast("dict[str, Any]", value)
    except (OSError, EOFError, zlib.error) as fault:
        raise DataError.failed(path, "cannot be read", fault) from fault


def read_json_lines(path: Path) -> tuple[Table, Sequence[int]]:
    """Return the rows of a JSON Lines file as a table, and the line number of each row, from 1.

    A key that a line lacks is null there. Raises DataError as `objects` does, and for a column whose values have
    different types or do not fit in a table.
    """
    numbered = list(objects(path))
    lines, rows = [number for number, _ in numbered], [row for _, row in numbered]
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _array(path, lines, name, [row.get(name) for row in rows]) for name in names}), lines


def _array(path: Path, lines: Sequence[int], name: str, values: list[Any]) -> Array:
    try:
        return pa.array(values)
    except UNCONVERTIBLE as fault:
        for line, value in zip(lines, values, strict=True):
            check_value(name, value, where=f"{path}:{line}")
        # The first value of another type than those before it: with it, the values no longer fit in one array.
        first = bisect_left(range(1, len(values)), True, key=lambda count: not _fits(values[:count]))
        raise DataError.mixed_types(f"{path}:{lines[first]}", name, fault) from fault


def _fits(values: list[Any]) -> bool:
    try:
        pa.array(values)
    except UNCONVERTIBLE:
        return False
    return True
