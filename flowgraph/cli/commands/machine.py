"""`doctor` and `engines`: the facts of this machine, and the engines that run in separate environments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import completion as complete
from flowgraph.cli import options as opt
from flowgraph.cli.help_pages import CONTEXT, Commands, OneCommand
from flowgraph.cli.output import note, print_json, print_table, say
from flowgraph.cluster.cluster import show_bytes
from flowgraph.errors.distribution import DISTRIBUTION

Cache = Annotated[Path | None, opt.option("--cache FOLDER", "Folder of the installed environments.")]


def doctor(json: opt.Json = False) -> None:
    """Show what this machine has: versions, memory, GPUs."""
    facts = app.machine_facts()
    if json:
        print_json(facts)
        return
    rows = list[tuple[str, str]]()
    for name, value in facts.items():
        if isinstance(value, list):
            text = "\n".join(map(str, value)) or "none"
        elif isinstance(value, int) and value > 1_000_000:
            text = show_bytes(value)
        else:
            text = "not installed" if value is None else str(value)
        rows.append((name.replace("_", " "), text))
    print_table(["what", "here"], rows)
    if conflicts := facts["other_projects_of_the_same_name"]:
        names = " ".join(conflict.partition(" ")[0] for conflict in conflicts)
        note(f"{', '.join(conflicts)}: another project, whose packages have names of ours, so that one hides the other")
        note(f"  hint: pip uninstall {names}, and install {DISTRIBUTION} again")


group = typer.Typer(cls=Commands, rich_markup_mode=None, context_settings=CONTEXT)


@group.callback(invoke_without_command=True)
def engines(context: typer.Context, cache: Cache = None, as_json: opt.Json = False) -> None:
    """List the inference engines, or install one.

    The list shows the supported and the installed versions.
    """
    context.obj = cache  # of both places where --cache may stand, the nearer counts
    if context.invoked_subcommand is not None:
        return
    facts = app.engine_facts(cache)
    if as_json:
        print_json(facts)
    else:
        cells = [(row["name"], row["known"], row["installed"] or "no", row["about"]) for row in facts]
        print_table(["engine", "known", "installed", "what it is"], cells)


@group.command(cls=OneCommand)
def install(
    context: typer.Context,
    name: Annotated[str, opt.argument("NAME", "An environment, e.g. sglang-cpu.", complete.environments)],
    cache: Cache = None,
) -> None:
    """Install an engine into an environment of its own."""
    say(app.install_engine(name, cache or context.obj, note))
