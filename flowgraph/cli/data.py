"""`data`: make a data set as Parquet in verl's row schema."""

from __future__ import annotations

import json
from pathlib import Path

from flowgraph.cli.listings import cache_folder, print_table
from flowgraph.errors import UsageError

ABOUT = (
    ("digits", "copy three digits; also digits:max, digits:sort, digits:reverse"),
    ("addition", "sums of two numbers up to 12"),
    ("gsm8k", "grade-school maths, from its JSONL: --from FOLDER"),
    ("rg/NAME", "any task of reasoning-gym"),
)


def make_data(
    name: str | None, out: Path | None, source: Path | None, seed: int, cache: Path | None, as_json: bool
) -> None:
    """Write train and held-out rows of a task, and say where; without a name list the tasks."""
    if name is None:
        rows = [{"name": each, "about": about} for each, about in ABOUT]
        print(json.dumps(rows, indent=1)) if as_json else print_table(["data", "what it is"], ABOUT)
        return
    written = _gsm8k(source, out, cache) if name == "gsm8k" else _task(name, out, seed, cache)
    if as_json:
        print(json.dumps([{"path": str(path), "rows": _count(path)} for path in written], indent=1))
    else:
        print_table(["file", "rows"], [(path, _count(path)) for path in written])


def _gsm8k(source: Path | None, out: Path | None, cache: Path | None) -> tuple[Path, ...]:
    from nodes.data import gsm8k

    if source is None:
        raise UsageError(
            "gsm8k is made from its files", hint="flowgraph data gsm8k --from FOLDER (train.jsonl, test.jsonl)"
        )
    return gsm8k.prepare(source, cache_folder(cache) if out is None else out)


def _task(name: str, out: Path | None, seed: int, cache: Path | None) -> tuple[Path, ...]:
    from nodes.data import sets

    data = sets.load(name, cache=cache_folder(cache), seed=seed)
    return sets.save(data, out or Path("data") / name.replace("/", "-").replace(":", "-"))


def _count(path: Path) -> int:
    import pyarrow.parquet as pq

    rows: int = pq.read_metadata(path).num_rows
    return rows
