"""The file of generations: one row per response, with its prompt and the columns of its data, to be scored again.

Each batch is written as a separate part; the parts are joined and renamed at the end, so that the file is complete or
absent. Not here: sampling (`sampling`) and scoring (`evaluating`).
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.errors import DataError, UsageError
from flowgraph.files.untrusted import parse_json
from flowgraph.runtime.scratch import make, remove

if TYPE_CHECKING:
    import pyarrow as pa

FACTS = b"flowgraph.generations"  # the key of what is known of all rows, as JSON, in the schema's metadata
OWN = "data."  # before a column of the data whose name is one of ours
READ_ROWS = 4096

# Our columns, by the rollout's part that each is.
PARTS: Mapping[str, str] = {
    "prompt_index": "group",
    "sample_index": "sample",
    "prompt_ids": "context",
    "response": "text",
    "response_ids": "tokens",
    "logprobs": "logprobs",
    "finished": "finished",
}
CONSTANT = ("model", "step", "temperature", "seed")
COLUMNS = (*PARTS, *CONSTANT, "score")
# What a rule is given under other names than a file has them.
RULE_NAMES: Mapping[str, str] = {
    "response": "response",
    "finished": "finished",
    "prompt_index": "prompt_id",
    "sample_index": "sample",
}


def generations_table(tables: Sequence[pa.Table], facts: Mapping[str, Any]) -> pa.Table:
    """Return the rows of a generations file as a table, made from a rollout's table and, if given, that of its scores.

    `tables` has these one or two tables, with equal rows. Columns of the data whose names are taken get the prefix
    `data.`. `facts` become metadata; they must have the model, step, temperature and seed, which also become columns.
    """
    import pyarrow as pa

    rollout, *scores = tables
    columns = dict[str, Any]()
    for name in rollout.column_names:
        if name.startswith("columns."):
            data_name = name.removeprefix("columns.")
            columns[f"{OWN}{data_name}" if data_name in COLUMNS else data_name] = rollout.column(name)
    columns |= {name: rollout.column(part) for name, part in PARTS.items()}
    for name in CONSTANT:
        kind = {str: pa.string(), float: pa.float64()}.get(type(facts[name]), pa.int64())
        columns[name] = pa.array([facts[name]] * rollout.num_rows, kind)
    if scores:
        columns["score"] = scores[0].column("value")
    return pa.table(columns).replace_schema_metadata({FACTS: json.dumps(facts).encode()})


def write_part(tables: Sequence[pa.Table], facts: Mapping[str, Any], path: Path) -> None:
    """Write the rows of `generations_table` as a Parquet file. Raises DataError if the file cannot be written."""
    import pyarrow.parquet as pq

    try:
        pq.write_table(generations_table(tables, facts), path, write_page_checksum=True, compression="zstd")
    except OSError as fault:
        raise DataError.failed(path, "cannot be written", fault) from fault


def join_parts(folder: Path, out: Path, facts: Mapping[str, Any]) -> None:
    """Join the Parquet files of a folder, sorted by name, into the file `out`; the folder must have at least one.

    `facts` become the metadata of `out`, as JSON. The joined file is written in the folder and then moved, so `out` is
    complete or unchanged; the folder must be on the file system of `out`. Columns get the types of the first file.
    Raises DataError if `out` cannot be written, if the names or the order of columns differ, or if a column cannot be
    converted to its type in the first file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    draft = folder / "joined"
    first, *rest = sorted(folder.glob("*.parquet"))
    table = pq.read_table(first, page_checksum_verification=True)
    schema = table.schema.with_metadata({FACTS: json.dumps(facts).encode()})
    try:
        with draft.open("wb") as sink:
            with pq.ParquetWriter(sink, schema, write_page_checksum=True, compression="zstd") as writer:
                writer.write_table(table.cast(schema))
                for path in rest:
                    writer.write_table(pq.read_table(path, page_checksum_verification=True).cast(schema))
            sink.flush()
            os.fsync(sink.fileno())
        draft.replace(out)
    except (OSError, ValueError, pa.ArrowException) as fault:
        raise DataError.failed(out, "cannot be written", fault) from fault


@contextlib.contextmanager
def temporary_parts(out: Path | None) -> Generator[Path]:
    """Open a context with a temporary folder for the parts of `out`, and remove the folder on exit.

    The folder is made next to `out`, whose own folder is created, or in the system's temporary folder if `out` is None.
    Raises UsageError if a folder cannot be created.
    """
    try:
        if out is None:
            folder = make()
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".parts", dir=out.parent))
    except OSError as error:
        where = tempfile.gettempdir() if out is None else out.parent
        raise UsageError(f"cannot be written to: {error.strerror}", where=str(where)) from error
    try:
        yield folder.absolute()
    finally:
        remove(folder)


def partial_path(out: Path) -> Path:
    """Return the path of the file with the finished part of an interrupted job that was to write `out`.

    >>> partial_path(Path("a/out.parquet")).name
    'out.partial.parquet'
    """
    return out.with_name(f"{out.stem}.partial{out.suffix}")


def refuse_output(out: Path, endings: Sequence[str], overwrite: bool) -> None:
    """Raise UsageError for an output file that must not be written.

    The file must have one of the suffixes `endings`, must not be a folder, and must not exist unless `overwrite`.
    """
    if out.suffix not in endings:
        what = f"its name ends in `{out.suffix}`, not in {' or '.join(endings)}"
        raise UsageError(what, where=str(out), hint=f"-o FILE{endings[0]}")
    if out.is_dir():
        raise UsageError("is a folder", where=str(out), hint=f"-o {out / f'out{endings[0]}'}")
    if out.exists() and not overwrite:
        raise UsageError("exists; nothing was written", where=str(out), hint="--overwrite replaces it")


@dataclass(frozen=True)
class GenerationsFile:
    """An existing file of generations: its path, its number of rows, its facts, and the columns to read."""

    path: Path
    rows: int
    facts: Mapping[str, Any]
    renamed: Mapping[str, str]
    """The columns that are read, under the names that we give them: a run's rollout has others."""

    @classmethod
    def open(cls, path: Path) -> GenerationsFile:
        """Return a generations file, or the rollouts of a run as one; only its columns and facts are read.

        Raises DataError for a file that does not exist, cannot be read, is not Parquet, has no rows or unreadable
        facts, or lacks the columns `response` or `prompt_index`.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not path.is_file():
            raise DataError.missing(path)
        try:
            with pq.ParquetFile(path) as file:
                schema, rows = file.schema_arrow, file.metadata.num_rows
        except PermissionError as fault:
            raise DataError.failed(path, "cannot be read", fault) from fault
        except (OSError, pa.ArrowException) as fault:
            raise DataError.corrupt(path, fault) from fault
        names = list(schema.names)
        renamed = {name: name for name in names}
        if "text" in names and "group" in names:  # a run's rollout
            columns = {name: name.removeprefix("columns.") for name in names if name.startswith("columns.")}
            renamed = {name: f"{OWN}{column}" if column in COLUMNS else column for name, column in columns.items()}
            renamed |= {part: name for name, part in PARTS.items() if part in names}
        for name in ("response", "prompt_index"):
            if name not in renamed.values():
                notes = [f"it has: {', '.join(sorted(names))}"]
                hint = "`flowgraph generate` writes such a file, and a run's rollouts are such files"
                raise DataError(f"lacks column `{name}`", where=str(path), notes=notes, hint=hint)
        if not rows:
            raise DataError.unusable(path, "has no rows")
        try:
            facts = parse_json((schema.metadata or {}).get(FACTS, b"{}"))
        except ValueError as error:
            raise DataError.unusable(path, f"its facts cannot be read: {error}") from None
        if not isinstance(facts, dict):
            raise DataError.unusable(path, "its facts are not a JSON object")
        return cls(path, rows, facts, renamed)

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows in tables of up to 4,096 rows, with our column names. Raises DataError for a damaged file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self.path, page_checksum_verification=True) as file:
                for batch in file.iter_batches(READ_ROWS):
                    table = pa.Table.from_batches([batch])
                    yield table.select(list(self.renamed)).rename_columns(list(self.renamed.values()))
        except (OSError, pa.ArrowException) as fault:
            raise DataError.corrupt(self.path, fault) from fault


def rule_rows(table: pa.Table) -> list[dict[str, object]]:
    """Return, for each row of a generations table, the values that a scoring rule receives, by the rule's names.

    These are the columns of the data and, if the table has them, `response`, `finished`, `prompt_id` and `sample`.
    """
    sources = {name.removeprefix(OWN): name for name in table.column_names if name not in COLUMNS}
    sources |= {RULE_NAMES[name]: name for name in table.column_names if name in RULE_NAMES}
    rows: list[dict[str, object]] = table.select(list(sources.values())).rename_columns(list(sources)).to_pylist()
    return rows
