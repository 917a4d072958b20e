"""JSON Lines, read into a table with the line of each row. Blank lines are skipped.

Written on `json` and not on `pyarrow.json`, which turns strings that look like dates into dates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from flowgraph.errors import DataError
from nodes.data.arrow import Array, Table
from nodes.data.checks import check_value

UNCONVERTIBLE = (pa.ArrowException, OverflowError, UnicodeError)


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line's number (from 1) and its object.

    Raises DataError, naming the line, where a line is not JSON in UTF-8, or not an object.
    """
    try:
        with path.open("rb") as source:
            for number, line in enumerate(source, start=1):
                if line.strip():
                    yield number, _object(path, number, line)
    except OSError as fault:
        raise DataError.failed(path, "cannot be read", fault) from fault


def read_json_lines(path: Path) -> tuple[Table, Sequence[int]]:
    """Read a file into a table, and the line number of each of its rows.

    A key that a line lacks is null there. Raises DataError for a broken line, and for a column whose
    values are not all of one type.
    """
    numbered = list(objects(path))
    lines = [number for number, _ in numbered]
    names = list(dict.fromkeys(name for _, each in numbered for name in each))
    columns: Mapping[str, list[Any]] = {name: [each.get(name) for _, each in numbered] for name in names}
    return pa.table({name: _array(path, lines, name, columns[name]) for name in names}), lines


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as fault:
        raise DataError.bad_line(path, number, "not UTF-8") from fault
    except (ValueError, RecursionError) as fault:
        raise DataError.bad_line(path, number, f"not JSON: {fault}") from fault
    if not isinstance(found, dict):
        raise DataError.bad_line(path, number, f"a JSON {_json_type(found)}, not an object")
    return cast("dict[str, Any]", found)


def _json_type(found: object) -> str:
    names: Mapping[type, str] = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(found), "null")


def _array(path: Path, lines: Sequence[int], name: str, values: list[Any]) -> Array:
    try:
        return pa.array(values)
    except UNCONVERTIBLE as fault:
        for line, value in zip(lines, values, strict=True):
            check_value(name, value, where=f"{path}:{line}")
        first = _first_unlike(values)
        raise DataError.mixed_types(f"{path}:{lines[first]}", name, fault) from fault


def _first_unlike(values: list[Any]) -> int:
    """Find the first value that no array can hold together with those before it, by bisection."""
    good, bad = 0, len(values)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if _fits(values[:middle]) else (good, middle)
    return bad - 1


def _fits(values: list[Any]) -> bool:
    try:
        pa.array(values)
    except UNCONVERTIBLE:
        return False
    return True
