"""Hold forecasts against published measurements: `python -m benchmarks.forecast FILE.csv|FOLDER ...`.

A file is known by the columns of its header, so any file of these formats will do. Nothing is fitted here, but where a
view says that it calibrates, as a user would, on some rows and is held against the others.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import pkgutil
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2])]  # so that `python benchmarks/forecast` works too

from benchmarks.forecast.report import Row, Table, view_text  # noqa: E402 - after the path above

MEASURED = Path(__file__).parents[1] / "measured"


def tables() -> list[Table]:
    """Give every format that is known: the TABLES of each module here."""
    names = sorted(each.name for each in pkgutil.iter_modules([str(Path(__file__).parent)]) if each.name != "__main__")
    modules = [importlib.import_module(f"benchmarks.forecast.{name}") for name in names]
    return [table for module in modules for table in getattr(module, "TABLES", ())]


def read(path: Path) -> list[Row]:
    """Read the rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def tables_of(rows: list[Row], known: list[Table]) -> list[Table]:
    """Give the formats of these rows: those whose columns they all have."""
    has = set(rows[0]) if rows else set[str]()
    return [each for each in known if each.columns <= has]


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
        rows = read(file)
        fitting = tables_of(rows, known)
        print(f"{file.name}: {len(rows)} rows" + ("" if fitting else ", no known format"))
        for table in fitting:
            print(f"  {table.name}")
            for view in table.views:
                print(view_text(view, list(view.cases(rows))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
