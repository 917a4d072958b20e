"""Data sets of the Hugging Face hub, as `hf:ID` or `hf:ID:CONFIG`, through the hub's own client.

The hub keeps a Parquet copy of every public data set, as `CONFIG/SPLIT/NUMBER.parquet` of the revision
`refs/convert/parquet`. Where the copy is not complete, the data set's own Parquet and JSON Lines files are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from flowgraph.errors import DataError, ModelError
from flowgraph.models import hub
from nodes.data.arrow import Table
from nodes.data.columns import Columns, with_source
from nodes.data.mixing import joined
from nodes.data.rows import read

COPY = "refs/convert/parquet"
HELD_OUT = ("test", "validation")
"""Splits to check on: the first that a data set has."""
FILES_HINT = "download it, and name its files: --data train.parquet"
_COPIED = re.compile(r"(?P<config>[^/]+)/(?P<split>[^/]+)/\d+\.parquet")
_FILE = re.compile(r"(?:(?P<config>[^/]+)/)?(?P<split>train|test|validation)(?:-\d+-of-\d+[^/]*)?\.(?:parquet|jsonl)")
_HERE = ("data", "default", "")
"""Folders whose files belong to no configuration, or to the one that is meant without a name."""


def hub_rows(spec: str, columns: Columns) -> tuple[Table, Table | None]:
    """Return the rows of `hf:ID` or `hf:ID:CONFIG` as (train, held-out), with columns renamed by `columns`.

    The files are downloaded unless they are cached. Held out is the split `test`, else `validation`; None if there is
    neither. A data set with only one split has this as its train rows. Raises DataError if the hub is not reached, if
    it has no such data set, configuration or rows, if a configuration must be named, if there are several splits but no
    `train`, or if rows have a fault.
    """
    name, _, config = spec.removeprefix("hf:").partition(":")
    splits = _splits(spec, name, config, _COPIED, COPY) or _splits(spec, name, config, _FILE, "main")
    if not splits:
        raise DataError.unusable(spec, "has no Parquet or JSON Lines files of a train or test split", hint=FILES_HINT)
    if len(splits) > 1 and "train" not in splits:
        raise DataError.unusable(spec, f"has no split `train`, only {', '.join(splits)}")
    train = splits.get("train") or next(iter(splits.values()))
    held_out = next((splits[split] for split in HELD_OUT if split in splits and splits[split] != train), None)
    return _rows(spec, name, train, columns), None if held_out is None else _rows(spec, name, held_out, columns)


def _splits(spec: str, name: str, config: str, form: re.Pattern[str], revision: str) -> dict[str, list[Path]]:
    split_of = dict[str, str]()

    def choose(files: Sequence[str]) -> list[str]:
        matches = {file: match for file in sorted(files) if (match := form.fullmatch(file))}
        if any(match["split"].startswith("partial-") for match in matches.values()):
            return []  # the copy of a large data set has only its first rows
        configs = dict.fromkeys((match["config"] or "") for match in matches.values())
        chosen = _config(spec, config, configs)
        split_of.update({file: match["split"] for file, match in matches.items() if (match["config"] or "") in chosen})
        return [
            file
            for file, split in split_of.items()
            if split in ("train", *HELD_OUT) or len(set(split_of.values())) == 1
        ]

    try:
        paths = hub.fetch_data(name, choose, revision)
    except ModelError as error:
        notes = [note for note in (error.hint, *error.notes) if note]
        raise DataError(error.what, where=spec, notes=notes, hint=FILES_HINT) from error
    splits = dict[str, list[Path]]()
    for path in paths:
        file = next(file for file in split_of if path.as_posix().endswith(f"/{file}"))
        splits.setdefault(split_of[file], []).append(path)
    return splits


def _config(spec: str, config: str, configs: Iterable[str]) -> set[str]:
    names = list(configs)
    if not names:
        return set()
    if config in names:
        return {config}
    unnamed = {name for name in names if name in _HERE}
    if config in ("", "default") and (unnamed or len(names) == 1):
        return unnamed or set(names)
    what = f"has no configuration `{config}`" if config else "has several configurations"
    raise DataError.unusable(
        spec, what, hint=f"{spec.rpartition(':')[0] if config else spec}:NAME with one of {', '.join(names)}"
    )


def _rows(spec: str, name: str, files: Sequence[Path], columns: Columns) -> Table:
    named = [(f"{spec} {path.parent.name}/{path.name}", path) for path in files]
    tables = [(file, read(path, columns, name=file)) for file, path in named]
    return with_source(joined(tables) if len(tables) > 1 else tables[0][1], name)
