"""`flows` and `cp`: the shipped flows, and one of them as a file of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from flowgraph.cli import options as opt
from flowgraph.cli.output import print_json, print_table, say
from flowgraph.errors import UsageError
from flowgraph.flows.flow_files import find_flow, known_flows


def flows(json: opt.Json = False) -> None:
    """List the shipped and the installed flows."""
    files = known_flows()
    rows = [
        {"name": name, "about": file.flow.about, "path": str(file.path), "package": file.package}
        for name, file in files.items()
    ]
    if json:
        print_json(rows)
        return
    heads = {"name": "flow", "package": "package", "about": "what it is"}
    if len({row["package"] for row in rows}) == 1:
        del heads["package"]
    print_table([*heads.values()], [[row[name] for name in heads] for row in rows])


def cp(flow: opt.ShippedFlow, path: Annotated[Path, opt.argument("FILE.py", "The file to write.")]) -> None:
    """Copy a shipped or an installed flow to a new .py file.

    The whole file of the flow is copied. A file that exists is never overwritten.
    """
    source = find_flow(flow).source
    if path.suffix != ".py":
        raise UsageError("a flow's file ends in .py", where=str(path), hint=f"{path}.py")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(source)
    except FileExistsError:
        raise UsageError("exists; nothing was written", where=str(path)) from None
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error
    say(path)
