"""Engine constants in a profile file that a user writes. Not here: fitting them (`benchmarks.forecast`)."""

from __future__ import annotations

from typing import Any

from flowgraph.errors import DataError, UnknownNameError
from flowgraph.files.untrusted import parse_toml
from placements.hardware.engine_constants import bounds, engines


def read_profile(text: str, where: str = "profile") -> dict[str, dict[str, float]]:
    """Return the constants in the TOML text of a profile as {engine: {constant: value}}; nothing is read from disk.

    `text` is the content of the file, and `where` its name for errors. A constant is a number, or a table with a
    `value`. Raises DataError for text that is not TOML, for an engine whose entry is not a table, and for a value that
    is not a number or is out of bounds; UnknownNameError for other engines or constants.
    """
    try:
        tables = parse_toml(text)
    except ValueError as error:
        raise DataError.failed(where, "no TOML", error) from None
    return {engine: constants_in(engine, table, where) for engine, table in tables.items()}


def constants_in(engine: str, table: Any, where: str) -> dict[str, float]:
    """Check one engine's table of a profile, and return its constants by name.

    An entry of `table` is a number, or a table with a `value`. `where` is the file's name for errors. Raises DataError
    if `table` is not a table, or a value is not a number or out of bounds; UnknownNameError for an unknown engine or
    constant.
    """
    if engine not in engines():
        raise UnknownNameError.of("engine", engine, engines(), where)
    shipped = bounds(engine)
    if not isinstance(table, dict):
        raise DataError.unusable(where, f"`{engine}` must be a table of constants")
    constants = dict[str, float]()
    for name, entry in table.items():
        if name not in shipped:
            raise UnknownNameError.of("constant", name, shipped, where)
        value, limits = entry.get("value") if isinstance(entry, dict) else entry, shipped[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DataError.unusable(where, f"`{engine}.{name}` must be a number")
        if not limits.low <= value <= limits.high:
            raise DataError.out_of_range(where, f"{engine}.{name}", value, f"{limits.low:g} to {limits.high:g}")
        constants[name] = float(value)
    return constants
