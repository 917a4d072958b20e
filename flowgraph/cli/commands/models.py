"""`models`: the models that need no folder or hub."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_json, print_table


def models(
    everything: Annotated[
        bool, typer.Option("--all", help="Also list the Hugging Face models that can be planned without a download.")
    ] = False,
    cache: opt.Cache = None,
    json: opt.Json = False,
) -> None:
    """List the built-in models, and those with known sizes."""
    listed, sized = app.listed_models(cache)
    if json:
        rows = [asdict(each) for each in listed]
        rows += [{"name": m.name, "kind": "hub", "parameters": m.parameters} for m in sized] if everything else []
        print_json(rows, default=str)
        return
    cells = [(m.name, f"{m.parameters:,}", m.origin, "yes" if m.ready else "no") for m in listed]
    if everything:
        cells += [(m.name, f"{m.parameters:,}", "Hugging Face; its sizes are known here", "") for m in sized]
    print_table(["model", "parameters", "where it comes from", "ready"], cells, right=(1,))
    if not everything:
        note(
            f"you can plan {len(sized)} more without a download, because their sizes are known: flowgraph models --all"
        )
