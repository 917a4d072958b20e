"""`engines`: which engines run in an environment of their own, what of them is installed, and how to install one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import completion as complete
from flowgraph.cli.help_pages import CONTEXT, Commands, OneCommand
from flowgraph.cli.output import note, print_json, print_table, say

group = typer.Typer(cls=Commands, rich_markup_mode=None, context_settings=CONTEXT)

Cache = Annotated[Path | None, typer.Option("--cache", help="Folder of the installed environments.", metavar="FOLDER")]


@group.callback(invoke_without_command=True)
def engines(
    context: typer.Context,
    cache: Cache = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the inference engines, and install one.

    The list shows the supported and the installed versions.
    """
    context.obj = cache  # of both places where --cache may stand, the nearer counts
    if context.invoked_subcommand is not None:
        return
    facts = app.engine_facts(cache)
    if as_json:
        print_json(facts)
    else:
        cells = [(each["name"], each["known"], each["installed"] or "no", each["about"]) for each in facts]
        print_table(["engine", "known", "installed", "what it is"], cells)


@group.command(cls=OneCommand)
def install(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(help="An environment, e.g. sglang-cpu.", metavar="NAME", autocompletion=complete.environments),
    ],
    cache: Cache = None,
) -> None:
    """Install an engine into an environment of its own."""
    say(app.install_engine(name, cache or context.obj, note))
