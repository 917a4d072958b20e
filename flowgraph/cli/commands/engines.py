"""`engines`: which engines run in an environment of their own, what of them is installed, and how to install one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli.output import note, print_json, print_table

group = typer.Typer(help="List the engines that run beside us, and install one.")

Cache = Annotated[Path | None, typer.Option("--cache", help="where environments are kept")]


@group.callback(invoke_without_command=True)
def engines(
    context: typer.Context,
    cache: Cache = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """List the engines, with the versions that are known and installed."""
    context.obj = cache  # of both places where --cache may stand, the nearer counts
    if context.invoked_subcommand is not None:
        return
    facts = app.engine_facts(cache)
    if as_json:
        print_json(facts)
    else:
        cells = [(each["name"], each["known"], each["installed"] or "no", each["about"]) for each in facts]
        print_table(["engine", "known", "installed", "what it is"], cells)


@group.command()
def install(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="an environment: sglang-cpu", metavar="NAME")],
    cache: Cache = None,
) -> None:
    """Make an engine's environment, unless it is there."""
    print(app.install_engine(name, cache or context.obj, note))
