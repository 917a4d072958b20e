"""`engines`: which engines run in an environment of their own, what of them is installed, and how to install one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="List the engines that run beside us, and install one.")

Cache = Annotated[Path | None, typer.Option("--cache", help="where environments are kept")]


@app.callback(invoke_without_command=True)
def engines(
    context: typer.Context,
    cache: Cache = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """List the engines, with the versions that are known and installed."""
    context.obj = cache  # of both places where --cache may stand, the nearer counts
    if context.invoked_subcommand is None:
        list_engines(cache, as_json)


@app.command()
def install(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="an environment: sglang-cpu", metavar="NAME")],
    cache: Cache = None,
) -> None:
    """Make an engine's environment, unless it is there."""
    from flowgraph.cli.listings import cache_folder
    from flowgraph.engines.servers import environments
    from flowgraph.engines.table import environment

    wanted = environment(name)
    print(
        environments.install(wanted, cache_folder(cache or context.obj), say=lambda line: print(line, file=sys.stderr))
    )


def list_engines(cache: Path | None, as_json: bool) -> None:
    """Print each environment, and this one, with what they hold."""
    from flowgraph.cli.listings import cache_folder, print_table
    from flowgraph.engines.servers.environments import folder_of, installed
    from flowgraph.engines.table import ENGINES

    where = cache_folder(cache)
    told = [
        {
            "name": each.environment.name,
            "about": each.environment.about,
            "known": str(each.versions),
            "installed": installed(each.environment, where).get(each.environment.package, ""),
            "folder": str(folder_of(each.environment, where)),
        }
        for each in ENGINES.values()
        if each.environment is not None
    ]
    told += [
        {
            "name": each.name,
            "about": f"{each.versions.engine} on GPUs: pip install 'flowgraph[{each.extra}]'",
            "known": str(each.versions),
            "installed": _here(each.name),
            "folder": sys.prefix,
        }
        for each in ENGINES.values()
        if each.extra and each.versions is not None
    ]
    if as_json:
        print(json.dumps(told, indent=1))
    else:
        print_table(
            ["engine", "known", "installed", "what it is"],
            [(e["name"], e["known"], e["installed"] or "no", e["about"]) for e in told],
        )


def _here(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""
