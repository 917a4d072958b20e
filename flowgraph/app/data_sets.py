"""Data sets that can be made, as Parquet in verl's row schema."""

from __future__ import annotations

from pathlib import Path

from flowgraph.app.planning.flow_inputs import cache_folder
from flowgraph.errors import UsageError


def make_data(
    name: str, *, out: Path | None = None, source: Path | None = None, seed: int = 0, cache: Path | None = None
) -> dict[Path, int]:
    """Write the train and held-out rows of a data set as Parquet files; return the number of rows by file.

    `out` is the folder, by default `data/NAME`; for gsm8k, the cache. `source` is the folder of the original gsm8k
    files. Raises UsageError for gsm8k without `source`.
    """
    import pyarrow.parquet as pq

    from nodes.data import gsm8k, sets

    if name != "gsm8k":
        data = sets.load(name, cache=cache_folder(cache), seed=seed)
        files = sets.save(data, out or Path("data") / name.replace("/", "-").replace(":", "-"))
    elif source is not None:
        files = gsm8k.prepare(source, out or cache_folder(cache))
    else:
        hint = "flowgraph data gsm8k --from FOLDER (train.jsonl, test.jsonl)"
        raise UsageError("gsm8k needs its source files", hint=hint)
    return {path: pq.read_metadata(path).num_rows for path in files}
