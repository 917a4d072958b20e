"""Data sets by name, as `--data` takes them: made here, from files, or from the Hugging Face hub.

The package `datasets` is imported only when one of the hub is loaded. Tasks and readers of files are in other modules.
"""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from flowgraph.errors import DataError
from nodes.data import gsm8k
from nodes.data.arrow import Table
from nodes.data.checks import check_rows
from nodes.data.gym import reasoning_gym_rows
from nodes.data.parquet import table_digest, write_parquet
from nodes.data.rows import READERS, read
from nodes.data.tasks import KINDS, Kind, addition, digits

NAMES: tuple[str, ...] = ("digits", *(f"digits:{kind}" for kind in KINDS), "addition", "gsm8k")
PREPARE_HINT = "flowgraph data gsm8k --from FOLDER, a folder with train.jsonl and test.jsonl"
GYM_PREFIXES = ("reasoning_gym/", "rg/")

Parts = tuple[str, Table, Table | None, str, tuple[Path, ...]]
"""Name, train, held-out, origin, and the files that were read."""


@dataclass(frozen=True)
class DataSet:
    """The rows to train on, the held-out rows, if any, and their origin."""

    name: str
    train: Table
    held_out: Table | None
    origin: str
    """A path, `hf:…`, or "made"."""
    digest: str
    """SHA-256 of the contents of both."""
    files: tuple[Path, ...] = ()
    """The files that were read; empty for generated data and data from the hub."""

    @property
    def data_source(self) -> str:
        """Return the `data_source` of the rows to train on, or the set's name if they have more than one."""
        if "data_source" not in self.train.column_names:
            return self.name
        sources = self.train["data_source"].unique().to_pylist()
        return str(sources[0]) if len(sources) == 1 and sources[0] is not None else self.name


def load(spec: str, *, cache: Path, held_out: str | None = None, seed: int = 0) -> DataSet:
    """Load the data set of `--data`.

    `spec` is a shipped name (`NAMES`), `reasoning_gym/NAME` or `rg/NAME`, a file, a folder with train and test
    files, or `hf:ID[:CONFIG]`. The file `held_out` replaces the set's held-out rows; `seed` is used for generated sets.
    Raises DataError if something is missing, unknown or broken.
    """
    name, train, test, origin, files = _parts(spec, cache, seed)
    if held_out is not None:
        path = Path(held_out)
        test, files = read(path), (*files, path)
    digests = "\n".join(table_digest(table) for table in (train, test) if table is not None)
    return DataSet(name, train, test, origin, hashlib.sha256(digests.encode()).hexdigest(), files)


def save(data: DataSet, folder: Path) -> tuple[Path, ...]:
    """Write a data set as train.parquet and test.parquet to a folder that `load` reads, and return their paths."""
    tables = {"train": data.train, "test": data.held_out}
    paths = {folder / f"{split}.parquet": table for split, table in tables.items() if table is not None}
    for path, table in paths.items():
        write_parquet(table, path)
    return tuple(paths)


def _parts(spec: str, cache: Path, seed: int) -> Parts:
    if spec.startswith("hf:"):
        return spec.removeprefix("hf:"), *_hub_rows(spec), spec, ()
    if spec == "gsm8k":
        train, test = gsm8k.prepared(cache)
        if not (train.is_file() and test.is_file()):
            raise DataError.unusable("gsm8k", f"not prepared: no train and test in {train.parent}", hint=PREPARE_HINT)
        return spec, read(train), read(test), str(train.parent), (train, test)
    if spec == "addition":
        return spec, *addition(seed=seed), "made", ()
    if spec.partition(":")[0] == "digits":
        return spec, *digits(cast("Kind", spec.partition(":")[2] or "copy"), seed=seed), "made", ()
    if spec.startswith(GYM_PREFIXES):
        task = spec.partition("/")[2]
        return f"reasoning_gym/{task}", *reasoning_gym_rows(task, seed=seed), "made", ()
    return _files(spec)


def _files(spec: str) -> Parts:
    path = Path(spec)
    if path.is_dir():
        train, test = _split_file(path, "train"), _split_file(path, "test")
        if train is None:
            names = sorted(entry.name for entry in path.iterdir())
            listing = f"it has {', '.join(names[:6])}{' …' if len(names) > 6 else ''}" if names else "it is empty"
            raise DataError.unusable(path, "has no train.parquet or train.jsonl", hint=listing)
        files = (train, test) if test else (train,)
        return path.resolve().name, read(train), read(test) if test else None, str(path), files
    if path.exists() or path.suffix in READERS:
        return path.stem, read(path), None, spec, (path,)
    if "/" in spec:
        raise DataError.missing(path, hint=f"from the Hugging Face hub: hf:{spec}")
    raise DataError.unknown("data set", spec, [*NAMES, *(f"{prefix}NAME" for prefix in GYM_PREFIXES)])


def _split_file(folder: Path, split: str) -> Path | None:
    files = [path for suffix in READERS if (path := folder / f"{split}{suffix}").is_file()]
    if len(files) > 1:
        raise DataError.unusable(folder, f"has both {' and '.join(file.name for file in files)}")
    return files[0] if files else None


def _hub_rows(spec: str) -> tuple[Table, Table | None]:
    """Return the train and held-out rows of `hf:ID` or `hf:ID:CONFIG`; the split `test`, else `validation`, if any."""
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as fault:
        raise DataError.lacks_package(spec, "datasets") from fault
    name, _, config = spec.removeprefix("hf:").partition(":")
    try:
        splits = datasets.load_dataset(name, config or None)
    except Exception as fault:  # the package passes on any exception of its network and file layers
        raise DataError.failed(spec, "cannot be fetched", fault) from fault
    if "train" not in splits:
        raise DataError.unusable(spec, f"has no split `train`, only {', '.join(splits) or 'none'}")
    held_out = next((name for name in ("test", "validation") if name in splits), None)

    def table(split: str) -> Table:
        rows, where = splits[split].with_format("arrow")[:].replace_schema_metadata(None), f"{spec} {split}"
        check_rows(rows, file=where, where=lambda index: f"{where} row {index} (from 0)")
        return rows

    return table("train"), table(held_out) if held_out else None
