"""Data sets by name, as `--data` takes them: made here, from files, or from the Hugging Face hub.

Tasks, readers of files and the hub are in other modules; how several sets are mixed is in `mixing`.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import cast

from flowgraph.errors import DataError, UsageError
from nodes.data.arrow import Table
from nodes.data.columns import Columns, with_source
from nodes.data.gym import reasoning_gym_rows
from nodes.data.hub import hub_rows
from nodes.data.mixing import SetRows, joined, shares, split_weight, step_rows
from nodes.data.order import StepRows
from nodes.data.parquet import table_digest, write_parquet
from nodes.data.published import PUBLISHED
from nodes.data.rows import NO_COLUMNS, READERS, read
from nodes.data.tasks import KINDS, Kind, addition, digits

NAMES: tuple[str, ...] = ("digits", *(f"digits:{kind}" for kind in KINDS), "addition", *PUBLISHED)
GYM_PREFIXES = ("reasoning_gym/", "rg/")
_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+(:[^/]+)?")


@dataclass(frozen=True)
class DataSet:
    """The rows to train on and the held-out rows, if any, of one data set or of several joined as one."""

    name: str
    train: Table
    held_out: Table | None
    origin: str
    """A path, `hf:…`, or "made"."""
    digest: str
    """SHA-256 of the contents of both."""
    files: tuple[Path, ...] = ()
    """The files that were read; empty for generated data and data from the hub."""
    sets: tuple[SetRows, ...] = ()
    """The sets whose rows `train` joins, in order; empty for one set."""
    checks: tuple[SetRows, ...] = ()
    """The sets whose rows `held_out` joins, in order; empty for one set."""

    @property
    def data_source(self) -> str:
        """Return the `data_source` of the rows to train on; if these have several, the name of the set."""
        sources = self.data_sources
        return sources[0] if len(sources) == 1 else self.name

    @property
    def data_sources(self) -> tuple[str, ...]:
        """Return each `data_source` of the rows to train on, once; it is the set's name for rows that have none."""
        if "data_source" not in self.train.column_names:
            return (self.name,)
        sources = self.train["data_source"].unique().to_pylist()
        return tuple(dict.fromkeys(self.name if source is None else str(source) for source in sources))

    def train_sets(self) -> list[tuple[str, Table]]:
        """Return the rows to train on of each set, as (name, table), in the order of `sets`."""
        return _by_set(self.train, self.sets or (SetRows(self.name, self.train.num_rows),))

    def mixed(self, batch: int) -> tuple[tuple[int, StepRows], ...]:
        """Return for each set its number of rows and how many of them each step reads; empty if no set has a weight.

        A step reads `batch` rows of all sets. Raises DataError for a set that is smaller than its share of a step, or
        that is read less than once in 1,024 steps.
        """
        if not any(part.share for part in self.sets):
            return ()
        return tuple(zip((part.rows for part in self.sets), step_rows(self.sets, batch), strict=True))

    def check_rows(self, limit: int) -> tuple[int, ...]:
        """Return the indices of at most `limit` held-out rows for a check, spread evenly over the sets.

        From each set the first rows are taken. The result is empty without held-out rows.

        >>> import pyarrow as pa
        >>> rows = pa.table({"prompt": range(9)})
        >>> sets = SetRows("a", 6), SetRows("b", 3)
        >>> DataSet("a+b", rows, rows, "", "", checks=sets).check_rows(5)
        (0, 1, 2, 6, 7)
        """
        counts = [part.rows for part in self.checks] or [0 if self.held_out is None else self.held_out.num_rows]
        counted, left = [0] * len(counts), limit
        while left and (open_sets := [i for i, count in enumerate(counts) if counted[i] < count]):
            for i in open_sets[:left]:
                extra = min(max(1, left // len(open_sets)), counts[i] - counted[i])
                counted[i] += extra
            left = limit - sum(counted)
        firsts = accumulate(counts, initial=0)
        return tuple(first + i for first, count in zip(firsts, counted, strict=False) for i in range(count))


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """One data set as it was read; either its train rows or its held-out rows may be missing."""

    name: str
    train: Table | None
    held_out: Table | None
    origin: str
    files: tuple[Path, ...] = ()


def load(
    spec: str | Sequence[str],
    *,
    cache: Path,
    held_out: str | Sequence[str] | None = None,
    seed: int = 0,
    columns: Columns = NO_COLUMNS,
) -> DataSet:
    """Return the data set that `--data` names, or several joined as one.

    A `spec` is a shipped name (`NAMES`), `reasoning_gym/NAME` or `rg/NAME`, a file, a folder with train and test files,
    or `hf:ID[:CONFIG]`, which is downloaded unless it is cached; `SPEC:WEIGHT` gives the set a share of the prompts.
    `cache` is the folder of prepared published sets. The rows of the sets or files `held_out` replace the held-out
    rows; `seed` is used for generated sets. `columns` renames columns (`with_columns`). Raises DataError if something
    is missing, unknown or broken, UsageError for the weight of a single or a held-out set, and for weights that leave
    nothing for a set.
    """
    specs = [spec] if isinstance(spec, str) else list(spec)
    weighted = [(text, None) if Path(text).exists() else split_weight(text) for text in specs]
    if len(weighted) == 1 and weighted[0][1] is not None:
        if not specs[0].startswith("hf:"):  # a configuration may be a number
            raise UsageError("a weight has no effect on one set", where=f"--data {specs[0]}", hint="leave it out")
        weighted = [(specs[0], None)]
    loaded = _named_apart([_loaded(name, cache, seed, columns) for name, _ in weighted])
    trains = list[tuple[str, Table]]()
    for part in loaded:
        if part.train is None:
            hint = f"--held-out {part.origin} checks a run on it"
            raise DataError.unusable(part.origin, "has no rows to train on, only held-out rows", hint=hint)
        trains.append((part.name, part.train))
    if held_out is None:
        tests = [(part.name, part.held_out) for part in loaded if part.held_out is not None]
        files = [path for part in loaded for path in part.files]
    else:
        texts = [held_out] if isinstance(held_out, str) else list(held_out)
        checks = [_held_out(text, cache, seed, columns) for text in texts]
        parts = _named_apart([part for part, _ in checks])
        tests = [(part.name, table) for part, (_, table) in zip(parts, checks, strict=True)]
        files = [path for part in (*loaded, *parts) for path in part.files]
    several, mapped = len(loaded) > 1, bool(columns)
    train, test = _joined(trains, mapped or several), _joined(tests, mapped or several or len(tests) > 1)
    assert train is not None, "a set has rows to train on"
    counts = [table.num_rows for _, table in trains]
    weights = shares([weight for _, weight in weighted], counts)
    sets = map(SetRows, [name for name, _ in trains], counts, weights)
    return DataSet(
        name="+".join(part.name for part in loaded),
        train=train,
        held_out=test,
        origin=", ".join(part.origin for part in loaded),
        digest=_digest(train, test),
        files=tuple(dict.fromkeys(files)),
        sets=tuple(sets) if several else (),
        checks=tuple(SetRows(name, table.num_rows) for name, table in tests) if len(tests) > 1 else (),
    )


def _named_apart(parts: Sequence[Loaded]) -> list[Loaded]:
    counts = Counter(part.name for part in parts)
    return [
        replace(part, name=f"{Path(part.origin).resolve().parent.name}/{part.name}")
        if counts[part.name] > 1 and part.files
        else part
        for part in parts
    ]


def save(data: DataSet, folder: Path) -> tuple[Path, ...]:
    """Write a data set as train.parquet and test.parquet to a folder that `load` reads, and return their paths.

    Existing files are replaced; test.parquet is left out without held-out rows. Raises DataError if a file cannot be
    written.
    """
    tables = {"train": data.train, "test": data.held_out}
    paths = {folder / f"{split}.parquet": table for split, table in tables.items() if table is not None}
    for path, table in paths.items():
        write_parquet(table, path)
    return tuple(paths)


def kept(data: DataSet, keep: Callable[[str, Table], tuple[Table, Sequence[bool]]]) -> DataSet:
    """Return a data set with only the rows that `keep` returns; its digest is that of these rows.

    `keep` is called with "train" and the rows to train on, and with "held-out" and the held-out rows, if any. It
    returns the remaining rows, and whether each row remains.
    """
    train, stays = keep("train", data.train)
    held_out, checks = data.held_out, data.checks
    if held_out is not None:
        held_out, of_checks = keep("held-out", held_out)
        checks = _counted(checks, of_checks)
    return replace(
        data,
        train=train,
        held_out=held_out,
        digest=_digest(train, held_out),
        sets=_counted(data.sets, stays),
        checks=checks,
    )


def _digest(train: Table, held_out: Table | None) -> str:
    digests = "\n".join(table_digest(table) for table in (train, held_out) if table is not None)
    return hashlib.sha256(digests.encode()).hexdigest()


def _counted(sets: Sequence[SetRows], stays: Sequence[bool]) -> tuple[SetRows, ...]:
    ends = list(accumulate((part.rows for part in sets), initial=0))
    counts = [sum(stays[first:end]) for first, end in pairwise(ends)]
    return tuple(replace(part, rows=count) for part, count in zip(sets, counts, strict=True))


def _by_set(table: Table, sets: Sequence[SetRows]) -> list[tuple[str, Table]]:
    firsts = accumulate((part.rows for part in sets), initial=0)
    return [(part.name, table.slice(first, part.rows)) for part, first in zip(sets, firsts, strict=False)]


def _joined(tables: Sequence[tuple[str, Table]], sourced: bool) -> Table | None:
    parts = [(name, with_source(table, name) if sourced else table) for name, table in tables]
    return (joined(parts) if len(parts) > 1 else parts[0][1]) if parts else None


def _held_out(spec: str, cache: Path, seed: int, columns: Columns) -> tuple[Loaded, Table]:
    if not spec.startswith("hf:") and not Path(spec).exists() and split_weight(spec)[1] is not None:
        raise UsageError("a held-out set has no weight", where=f"--held-out {spec}", hint="leave it out")
    part = _loaded(spec, cache, seed, columns)
    table = part.train if len(part.files) == 1 and Path(spec) in part.files else part.held_out
    if table is None:
        raise DataError.unusable(spec, "has no held-out rows", hint="name a file, or a set with test rows")
    return part, table


def _loaded(spec: str, cache: Path, seed: int, columns: Columns) -> Loaded:
    if spec.startswith("hf:"):
        return _loaded_as(spec.removeprefix("hf:").partition(":")[0], hub_rows(spec, columns), spec)
    if spec in PUBLISHED and not Path(spec).exists():
        folder = cache / spec
        if not any((folder / f"{split}.parquet").is_file() for split in ("train", "test")):
            hint = f"flowgraph data {spec} --from FOLDER, {PUBLISHED[spec].needs}"
            raise DataError.unusable(spec, f"not prepared: no train and test in {folder}", hint=hint)
        return replace(_folder(folder, columns), name=spec)
    if spec == "addition":
        return _loaded_as(spec, addition(seed=seed))
    if spec.partition(":")[0] == "digits":
        return _loaded_as(spec, digits(cast("Kind", spec.partition(":")[2] or "copy"), seed=seed))
    if spec.startswith(GYM_PREFIXES):
        task = spec.partition("/")[2]
        return _loaded_as(f"reasoning_gym/{task}", reasoning_gym_rows(task, seed=seed))
    path = Path(spec)
    if spec and path.is_dir():
        return _folder(path, columns)
    if spec and (path.exists() or path.suffix in READERS):
        return _loaded_as(path.stem, (read(path, columns), None), spec, (path,))
    if "/" in spec:
        of_the_hub = _HUB_ID.fullmatch(spec)
        raise DataError.missing(path, hint=f"from the Hugging Face hub: hf:{spec}" if of_the_hub else "")
    raise DataError.unknown("data set", spec, [*NAMES, *(f"{prefix}NAME" for prefix in GYM_PREFIXES)])


def _folder(path: Path, columns: Columns) -> Loaded:
    train, test = _split_file(path, "train"), _split_file(path, "test")
    if train is None and test is None:
        names = sorted(entry.name for entry in path.iterdir())
        listing = f"it has {', '.join(names[:6])}{' …' if len(names) > 6 else ''}" if names else "it is empty"
        raise DataError.unusable(path, "has no train.parquet or train.jsonl", hint=listing)
    tables = None if train is None else read(train, columns), None if test is None else read(test, columns)
    files = tuple(file for file in (train, test) if file is not None)
    return _loaded_as(path.resolve().name, tables, str(path), files)


def _loaded_as(
    name: str, tables: tuple[Table | None, Table | None], origin: str = "made", files: tuple[Path, ...] = ()
) -> Loaded:
    return Loaded(name=name, train=tables[0], held_out=tables[1], origin=origin, files=files)


def _split_file(folder: Path, split: str) -> Path | None:
    files = [path for suffix in READERS if (path := folder / f"{split}{suffix}").is_file()]
    if len(files) > 1:
        raise DataError.unusable(folder, f"has both {' and '.join(file.name for file in files)}")
    return files[0] if files else None
