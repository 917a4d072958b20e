"""Data sets that can be made, as Parquet in verl's row schema."""

from __future__ import annotations

from pathlib import Path

from flowgraph.app.planning.flow_inputs import cache_folder
from flowgraph.app.request import Say
from flowgraph.app.running.training import silent
from flowgraph.errors import UsageError
from nodes.data import published, sets

GENERATED = (
    ("digits", "copy three digits; also digits:max, digits:sort, digits:reverse"),
    ("addition", "sums of two numbers up to 12"),
    ("rg/NAME", "any task of reasoning-gym"),
)


def listed_data() -> list[tuple[str, str]]:
    """Return the name and a description of each data set that can be made: generated sets, then published ones."""
    known = published.PUBLISHED.items()
    return [*GENERATED, *((name, f"{data_set.about}, from {data_set.needs}") for name, data_set in known)]


def make_data(
    name: str,
    *,
    out: Path | None = None,
    source: Path | None = None,
    seed: int = 0,
    cache: Path | None = None,
    say: Say = silent,
) -> dict[Path, int]:
    """Write the rows of a data set as a Parquet file for each split; return the number of rows by file.

    `out` is the folder to write, by default `data/NAME` in the working folder, or the folder of a published data set in
    the cache, where `--data gsm8k` finds it; for a published set with one split, it may be a `.parquet` file. Existing
    files are replaced. `seed` is that of generated rows, and `source` the file or folder that a published data set is
    converted from. `say` receives how many records were left out, and why. Raises UsageError for a published data set
    without `source`, and for `source` with any other data set; DataError for an unknown name and for files that cannot
    be converted or written.
    """
    if name not in published.PUBLISHED:
        if source is not None:
            hint = f"these are converted from files: {', '.join(published.PUBLISHED)}"
            raise UsageError(f"{name} is not made from files", where=f"--from {source}", hint=hint)
        data = sets.load(name, cache=cache_folder(cache), seed=seed)
        paths = sets.save(data, out or Path("data") / name.replace("/", "-").replace(":", "-"))
        rows = (table.num_rows for table in (data.train, data.held_out) if table is not None)
        return dict(zip(paths, rows, strict=True))
    if source is None:
        hint = f"flowgraph data {name} --from FOLDER: {published.PUBLISHED[name].needs}"
        raise UsageError(f"{name} is made from its files", hint=hint)
    files = published.prepare(name, source, out or cache_folder(cache) / name)
    for path, converted in files.items():
        for reason, count in converted.skipped.items():
            say(f"{path}: left out {count:,} records {reason}")
    return {path: converted.table.num_rows for path, converted in files.items()}
