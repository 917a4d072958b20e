"""Hold forecasts against published measurements: `python -m benchmarks.forecast FILE.csv|FOLDER ...`.

A file is known by the columns of its header, so any file of these formats will do; a measured column may also come as
the bounds of an interval (`intervals`). A row that cannot be read is left out, counted and named. Nothing is fitted
here, but where a view says that it calibrates, as a user would, on some rows and is held against the others.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2])]  # so that `python benchmarks/forecast` works too

from benchmarks.forecast.cells import (  # noqa: E402 - after the path above
    Numbered,
    Unread,
    cases_of,
    read_file,
    readable,
    unread_text,
)
from benchmarks.forecast.intervals import (  # noqa: E402
    Bounded,
    bounded_cases,
    bounded_column,
    bounded_rows,
    within_text,
)
from benchmarks.forecast.report import Row, Table, view_text  # noqa: E402

MEASURED = Path(__file__).parents[1] / "measured"


def tables() -> list[Table]:
    """Return every format that is known: the TABLES of each module here."""
    names = sorted(each.name for each in pkgutil.iter_modules([str(Path(__file__).parent)]) if each.name != "__main__")
    modules = [importlib.import_module(f"benchmarks.forecast.{name}") for name in names]
    return [table for module in modules for table in getattr(module, "TABLES", ())]


def read(path: Path) -> list[Row]:
    """Return the rows of a CSV file."""
    return [each.row for each in read_file(path)[0]]


def tables_of(rows: Sequence[Row], known: Sequence[Table]) -> list[tuple[Table, Bounded | None]]:
    """Return the formats of these rows: those whose columns they all have, or all but one that comes as bounds."""
    header = set(rows[0]) if rows else set[str]()
    bounded = [(each, bounded_column(header, each)) for each in known]
    return [(each, column) for each, column in bounded if each.columns <= header or column is not None]


def file_text(path: Path, known: Sequence[Table]) -> str:
    """Return the errors of every view of a file, and the rows that could not be read."""
    try:
        rows, unread = read_file(path)
    except (OSError, ValueError) as error:
        return f"{path.name}: not read: {error}"
    fitting = tables_of([each.row for each in rows], known)
    lines = [f"{path.name}: {len(rows) + len(unread)} rows" + ("" if fitting else ", no known format")]
    lines += [f"  {line}" for line in unread_text(unread)]
    for table, column in fitting:
        lines += [f"  {table.name}", *_table_lines(table, column, rows)]
    return "\n".join(lines)


def _table_lines(table: Table, column: Bounded | None, rows: Sequence[Numbered]) -> Iterator[str]:
    known, unbounded = (rows, list[Unread]()) if column is None else bounded_rows(rows, column)
    fine, unread = readable(known, table.numbers)
    unread = sorted([*unbounded, *unread], key=lambda each: each.row)
    yield from (f"    {line}" for line in unread_text(unread))
    for view in table.views:
        cases, failed = cases_of(view, fine) if column is None else bounded_cases(view, fine, column)
        yield view_text(view, cases)
        if column is not None:
            yield f"      {within_text(cases)}"
        yield from (f"      {line}" for line in unread_text(failed))


def main() -> int:
    """Print the errors of every view of every file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=[MEASURED], help="CSV files, or folders of them")
    paths = parser.parse_args().paths
    files = [file for path in paths for file in (sorted(path.glob("*.csv")) if path.is_dir() else [path])]
    if not files:
        print(f"no CSV file in {', '.join(map(str, paths))}", file=sys.stderr)
        return 2
    known = tables()
    for file in files:
        print(file_text(file, known))
    return 0


if __name__ == "__main__":
    sys.exit(main())
