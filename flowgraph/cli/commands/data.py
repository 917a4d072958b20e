"""`data`: make a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import completion as complete
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
        str | None,
        typer.Argument(
            help="digits, digits:max, addition, gsm8k or rg/NAME. Default: list them.",
            metavar="NAME",
            autocompletion=complete.one_of(*(name for name, _ in ABOUT if "/" not in name), "rg/"),
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The folder to write. Default: data/NAME.", metavar="FOLDER")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="For gsm8k: the folder with train.jsonl and test.jsonl.", metavar="FOLDER"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed.", metavar="N")] = 0,
    cache: opt.Cache = None,
    json: opt.Json = False,
) -> None:
    """Make a data set, as Parquet in the schema of verl."""
    if name is None:
        rows = [{"name": each, "about": about} for each, about in ABOUT]
        print_json(rows) if json else print_table(["data", "what it is"], ABOUT)
        return
    files = app.make_data(name, out=out, source=source, seed=seed, cache=cache)
    if json:
        print_json([{"path": str(path), "rows": count} for path, count in files.items()])
    else:
        print_table(["file", "rows"], list(files.items()))
