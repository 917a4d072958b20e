"""Lengths of rows as a command line names them: numbers, or a column of a Parquet file. No torch is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.errors import DataError, UsageError

if TYPE_CHECKING:
    from placements import LengthDistribution


def lengths(option: str, text: str) -> LengthDistribution:
    """Read lengths from their text, or from a column of a Parquet file.

    Raises SettingError for a text that tells no lengths, DataError for a file that cannot be read.
    """
    from placements import LengthDistribution

    file, column = _file_and_column(text)
    if not file:
        return LengthDistribution.parse(text, option)
    if not column:
        raise UsageError("names no column", where=f"{option} {text}", hint=f"{option} {text}:tokens")
    return LengthDistribution.of_column(_column(Path(file), column), option)


def _file_and_column(text: str) -> tuple[str, str]:
    """Return the Parquet file that lengths are in, and its column, each "" if the text names none.

    >>> _file_and_column("a/b.parquet:tokens"), _file_and_column("b.parquet"), _file_and_column("mean=2k")
    (('a/b.parquet', 'tokens'), ('b.parquet', ''), ('', ''))
    """
    file, _, column = text.rpartition(":")
    if file.endswith(".parquet"):
        return file, column
    return (text, "") if text.endswith(".parquet") else ("", "")


def anywhere(text: str) -> str:
    """Return lengths as they are read from any folder: the path of a file in full."""
    file, column = _file_and_column(text)
    return f"{Path(file).expanduser().absolute()}:{column}" if file and column else text


def _column(path: Path, column: str) -> object:
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        known = parquet.read_schema(path.expanduser()).names
        if column not in known:
            raise DataError.lacks_column(str(path), column, known)
        return parquet.read_table(path.expanduser(), columns=[column]).column(column)
    except pyarrow.ArrowInvalid as error:
        raise DataError.corrupt(path, error) from None
    except OSError as error:
        raise DataError.missing(str(path), str(error)) from None
