"""The records of a published data set by split: Parquet, JSON, JSON Lines, and folders with a file for each field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from flowgraph.errors import DataError
from flowgraph.files.untrusted import read_json
from nodes.data.json_lines import objects

SPLITS: Mapping[str, str] = {
    "train": "train",
    "test": "test",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
}
"""Words in the names of files and folders, and the split that each means."""
SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".json")
QUESTION = "question.txt"
FIELD_FILES: Mapping[str, str] = {
    "question": QUESTION,
    "solutions": "solutions.json",
    "input_output": "input_output.json",
    "starter_code": "starter_code.py",
    "metadata": "metadata.json",
}
"""The files of a problem that is a folder, by field. Source: Hendrycks et al. 2021 (APPS), arXiv 2105.09938."""
_SPLIT_WORD = re.compile(rf"({'|'.join(SPLITS)})(?=[-_.]|$)", re.IGNORECASE)


@dataclass(frozen=True)
class SourceRecord:
    """One record: its fields, its file or folder, and its place in that file, such as `:3`, for errors."""

    values: Mapping[str, Any]
    path: Path
    place: str = ""

    @property
    def where(self) -> str:
        """Return the path and the place of the record, as errors print them."""
        return f"{self.path}{self.place}"

    def text(self, *names: str) -> str:
        """Return the text in the first of the fields `names` (in lower case) that the record has, ignoring case.

        Raises DataError if the record has none of the fields, or if the field is not a text.
        """
        name, value = self.field(*names)
        if not isinstance(value, str):
            raise DataError.unusable(self.where, f"`{name}` is not a string")
        return value

    def field(self, *names: str) -> tuple[str, Any]:
        """Return the name and value of the first of the fields `names` (lower case) that the record has, ignoring case.

        Raises DataError if the record has none of the fields, or if the value is null.
        """
        lower = {name.lower(): name for name in self.values}
        key = next((lower[name] for name in names if name in lower), None)
        if key is None:
            raise DataError.lacks_column(self.where, names[0], self.values)
        if self.values[key] is None:
            raise DataError.unusable(self.where, f"`{key}` is null")
        return key, self.values[key]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of the field with exactly this name, or `default` if it is missing or null."""
        value = self.values.get(name)
        return default if value is None else value


class Skipped(str):
    """The reason why a record is left out, as text."""


def records_by_split(source: Path, split: str, *, only: bool = False) -> dict[str, Iterator[SourceRecord]]:
    """Return an iterator over the records of each split of a file or folder, in the order train, test, valid.

    The name of a file, or else of a folder above it, tells its split. If no name does, or if `only`, all files belong
    to `split`; if some names do, the other files are ignored. Raises DataError without files to read; the
    iterators raise DataError for a file or record that is broken.
    """
    if source.is_file():
        if not source.name.endswith(SUFFIXES):
            raise DataError.unusable(source, f"its name must end in {', '.join(SUFFIXES)}")
        files = {_split(Path(source.name)): [source]}
    elif source.is_dir():
        files = dict[str, list[Path]]()
        for path in sorted(source.rglob("*")):
            is_problem = path.name == QUESTION
            in_problem = path.name in FIELD_FILES.values() and (path.parent / QUESTION).is_file()
            if path.is_file() and (is_problem or (path.name.endswith(SUFFIXES) and not in_problem)):
                relative = path.parent.relative_to(source) if is_problem else path.relative_to(source)
                files.setdefault(_split(relative) or _split(Path(source.name)), []).append(path)
    else:
        raise DataError.missing(source)
    if only:
        files = {split: sorted(path for paths in files.values() for path in paths)} if files else {}
    named = {name: paths for name, paths in files.items() if name}
    files = named or {split: files[""]} if files else {}
    if not files:
        raise DataError.unusable(source, f"has no files {', '.join(SUFFIXES)} and no folders with {QUESTION}")
    order = {name: place for place, name in enumerate(SPLITS.values())}
    return {name: _records(files[name]) for name in sorted(files, key=lambda name: order.get(name, 0))}


def _split(relative: Path) -> str:
    for part in reversed(relative.parts):
        match = _SPLIT_WORD.match(part)
        if match:
            return SPLITS[match[1].lower()]
    return ""


def _records(paths: list[Path]) -> Iterator[SourceRecord]:
    for path in paths:
        if path.name == QUESTION:
            yield _problem(path.parent)
        elif path.suffix == ".parquet":
            yield from _parquet_records(path)
        elif path.suffix == ".json":
            yield from _json_records(path)
        else:
            yield from (SourceRecord(values, path, f":{line}") for line, values in objects(path))


def _problem(folder: Path) -> SourceRecord:
    values = dict[str, Any]()
    for field, name in FIELD_FILES.items():
        try:
            values[field] = (folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as fault:
            raise DataError.failed(folder / name, "cannot be read", fault) from fault
    return SourceRecord({**values, "problem_id": folder.name}, folder)


def _parquet_records(path: Path) -> Iterator[SourceRecord]:
    index = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=64):
                for values in batch.to_pylist():
                    yield SourceRecord(values, path, f" row {index} (from 0)")
                    index += 1
    except DataError:
        raise
    except Exception as fault:  # a damaged file can raise almost any exception
        raise DataError.corrupt(path, fault) from fault


def _json_records(path: Path) -> Iterator[SourceRecord]:
    """Yield the object of a JSON file, or the objects of its list; a file of several objects is read line by line."""
    try:
        content = read_json(path)
    except (ValueError, OSError):
        yield from (SourceRecord(values, path, f":{line}") for line, values in objects(path))
        return
    for index, values in enumerate(content if isinstance(content, list) else [content]):
        place = f" item {index} (from 0)" if isinstance(content, list) else ""
        if not isinstance(values, dict):
            raise DataError.unusable(f"{path}{place}", "is not a JSON object")
        yield SourceRecord(values, path, place)
