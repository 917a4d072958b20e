"""`data` and `models`: generate a data set, and list the models that need no folder or hub."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from flowgraph import app
from flowgraph.cli import completion as complete
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_json, print_table


def data_command(
    name: Annotated[
        str | None,
        opt.argument(
            "NAME",
            "digits, digits:max, addition, rg/NAME, gsm8k, math, aime, apps, codecontests or hh. Default: list them.",
            complete.one_of(*complete.DATA_SETS),
        ),
    ] = None,
    out: Annotated[
        Path | None,
        opt.option(
            "-o, --out FOLDER",
            "The folder to write, or one file.parquet. Default: data/NAME, and the cache for published data sets.",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        opt.option("--from FOLDER", "The files of a published data set, such as gsm8k: a folder or a file."),
    ] = None,
    seed: Annotated[int, opt.option("--seed N", "Random seed.", min=0)] = 0,
    cache: opt.Cache = None,
    json: opt.Json = False,
) -> None:
    """Make or convert a data set, as Parquet in the schema of verl.

    Without NAME, list the data sets.
    """
    if name is None:
        listed = app.listed_data()
        rows = [{"name": data_set, "about": about} for data_set, about in listed]
        print_json(rows) if json else print_table(["data", "what it is"], listed)
        return
    files = app.make_data(name, out=out, source=source, seed=seed, cache=cache, say=note)
    if json:
        print_json([{"path": str(path), "rows": count} for path, count in files.items()])
    else:
        print_table(["file", "rows"], list(files.items()))


def models(
    everything: Annotated[
        bool, opt.option("--all", "Also list the Hugging Face models that can be planned without a download.")
    ] = False,
    cache: opt.Cache = None,
    json: opt.Json = False,
) -> None:
    """List the built-in models, and with --all those with known sizes."""
    built_in, sized = app.listed_models(cache)
    if json:
        rows = [asdict(model) for model in built_in]
        rows += [{"name": m.name, "kind": "hub", "parameters": m.parameters} for m in sized] if everything else []
        print_json(rows, default=str)
        return
    cells = [(m.name, f"{m.parameters:,}", m.origin, "yes" if m.ready else "no") for m in built_in]
    if everything:
        cells += [(m.name, f"{m.parameters:,}", "Hugging Face; its sizes are known here", "") for m in sized]
    print_table(["model", "parameters", "where it comes from", "ready"], cells, right=(1,))
    if not everything:
        why = "because their sizes are known: flowgraph models --all"
        note(f"you can plan {len(sized)} more without a download, {why}")
