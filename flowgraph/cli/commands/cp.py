"""`cp`: a shipped flow as a file of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph.cli import options as opt
from flowgraph.cli.output import say
from flowgraph.errors import UsageError
from flowgraph.flows.flow_files import find_flow


def cp(
    flow: opt.ShippedFlow,
    path: Annotated[Path, typer.Argument(help="The file to write.", metavar="FILE.py")],
) -> None:
    """Copy a shipped flow to a file of your own."""
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
