"""`data`: make a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import print_json, print_table

ABOUT = (
    ("digits", "copy three digits; also digits:max, digits:sort, digits:reverse"),
    ("addition", "sums of two numbers up to 12"),
    ("gsm8k", "grade-school maths, from its JSONL: --from FOLDER"),
    ("rg/NAME", "any task of reasoning-gym"),
)


def data_command(
    name: Annotated[
        str | None, typer.Argument(help="digits, digits:max, addition, gsm8k, rg/NAME; none lists them")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="the folder to write; default data/NAME")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="gsm8k: the folder with train.jsonl and test.jsonl")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    cache: opt.Cache = None,
    json: opt.Json = False,
) -> None:
    """Make a data set as Parquet in verl's schema."""
    if name is None:
        rows = [{"name": each, "about": about} for each, about in ABOUT]
        print_json(rows) if json else print_table(["data", "what it is"], ABOUT)
        return
    files = app.make_data(name, out=out, source=source, seed=seed, cache=cache)
    if json:
        print_json([{"path": str(path), "rows": count} for path, count in files.items()])
    else:
        print_table(["file", "rows"], list(files.items()))
