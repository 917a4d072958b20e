"""Data sets that can be made, as Parquet in verl's row schema."""

from __future__ import annotations

from pathlib import Path

from flowgraph.app.planning.flow_inputs import cache_folder
from flowgraph.errors import UsageError

ABOUT = (
    ("digits", "copy three digits; also digits:max, digits:sort, digits:reverse"),
    ("addition", "sums of two numbers up to 12"),
    ("gsm8k", "grade-school maths, from its JSONL: --from FOLDER"),
    ("rg/NAME", "any task of reasoning-gym"),
)


def make_data(
    name: str, *, out: Path | None = None, source: Path | None = None, seed: int = 0, cache: Path | None = None
) -> dict[Path, int]:
    """Write train and held-out rows of a task; return the files with their numbers of rows."""
    written = _gsm8k(source, out, cache) if name == "gsm8k" else _task(name, out, seed, cache)
    return {path: _count(path) for path in written}


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
