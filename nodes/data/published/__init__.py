"""Published data sets that are converted from their files, by name: `flowgraph data NAME --from FOLDER`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flowgraph.errors import DataError, UsageError
from nodes.data.arrow import Table
from nodes.data.parquet import write_parquet
from nodes.data.published import code, competition, gsm8k, hh
from nodes.data.published.records import Skipped, SourceRecord, records_by_split
from nodes.data.rows import Row, table_of

MOST_CHARACTERS = 1_500_000_000
"""Ground truths of one table; a column of more text does not fit into one array of Arrow."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published data set: what it is, the files to convert, and the row of each record.

    Records of a file whose name has no split belong to `split`; with `only_split`, the records of all files do.
    """

    about: str
    needs: str
    row: Callable[[SourceRecord], Row | Skipped]
    split: str = "train"
    only_split: bool = False


@dataclass(frozen=True)
class Converted:
    """The rows of one split, and how many records were left out, by reason."""

    table: Table
    skipped: Mapping[str, int]


PUBLISHED: Mapping[str, Published] = {
    "gsm8k": Published(about="grade-school maths", needs="a folder with train.jsonl and test.jsonl", row=gsm8k.row_of),
    "math": Published(
        about="MATH, competition maths",
        needs="its folders train/ and test/, or JSONL or Parquet files",
        row=competition.math_row,
    ),
    "aime": Published(
        about="AIME problems, to check on",
        needs="JSONL or Parquet files",
        row=competition.aime_row,
        split="test",
        only_split=True,
    ),
    "apps": Published(
        about="programming problems", needs="its folders train/ and test/, or train.jsonl", row=code.apps_row
    ),
    "codecontests": Published(about="competitive programming", needs="its Parquet files", row=code.contest_row),
    "hh": Published(
        about="dialogues with a chosen and a rejected reply", needs="JSONL files, also as .jsonl.gz", row=hh.row_of
    ),
}


def converted(name: str, source: Path) -> dict[str, Converted]:
    """Return the rows of a published data set by split (train, test, valid), from its file or folder.

    `name` is a key of `PUBLISHED`. Raises DataError without files to read, for a record that is broken or lacks a field
    (with file and row), for a split without rows to use, and for ground truths of over 1.5 billion characters in one
    split.
    """
    published = PUBLISHED[name]
    splits = dict[str, Converted]()
    for split, records in records_by_split(source, published.split, only=published.only_split).items():
        rows, skipped, characters = list[Row](), Counter[str](), 0
        for record in records:
            row = published.row(record)
            if isinstance(row, Skipped):
                skipped[str(row)] += 1
                continue
            row["extra_info"] = {"split": split, "index": len(rows), **row["extra_info"]}
            _refuse_half_characters(row, record.where)
            characters += len(row["reward_model"]["ground_truth"] or "")
            if characters > MOST_CHARACTERS:
                what = f"has tests of more than {MOST_CHARACTERS:,} characters"
                raise DataError.unusable(
                    source, what, hint="convert its files one by one: --from FILE -o OTHER.parquet"
                )
            rows.append(row)
        if not rows:
            reasons = "; ".join(f"{count:,} {reason}" for reason, count in skipped.items())
            raise DataError.unusable(
                source, f"has no {split} rows to use", hint=f"left out: {reasons}" if reasons else ""
            )
        splits[split] = Converted(table_of(rows), skipped)
    return splits


def prepare(name: str, source: Path, out: Path) -> dict[Path, Converted]:
    """Convert a published data set, write its splits to files, and return the converted rows by file.

    The files are train.parquet, test.parquet and valid.parquet in the folder `out`; if `out` ends in `.parquet`, the
    only split is written to that file. Existing files are replaced. Raises DataError as `converted` does, and
    UsageError for several splits and one file, both before a file is written; and DataError if a file cannot be
    written.
    """
    splits = converted(name, source)
    if out.suffix != ".parquet":
        files = {out / f"{split}.parquet": converted_rows for split, converted_rows in splits.items()}
    elif len(splits) == 1:
        files = dict(zip([out], splits.values(), strict=True))
    else:
        what = f"is one file, and {source} has {' and '.join(splits)} rows"
        raise UsageError(what, where=f"--out {out}", hint=f"-o {out.with_suffix('')}, a folder; or --from one split")
    for path, converted_rows in files.items():
        write_parquet(converted_rows.table, path)
    return files


def _refuse_half_characters(row: Row, where: str) -> None:
    """Raise DataError for a text that UTF-8 cannot write: JSON can escape half of a character."""
    prompts = (message["content"] for message in row["prompt"])
    try:
        for text in (*prompts, row["reward_model"]["ground_truth"], *row["extra_info"].values()):
            if isinstance(text, str):
                text.encode()
    except UnicodeEncodeError as fault:
        raise DataError.unusable(where, "has half of a character, which no UTF-8 text can hold") from fault
