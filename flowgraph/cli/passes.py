"""`--pass`: a user's own passes, by file and name or as an installed package offers them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from flowgraph.errors import UnknownNameError, UsageError
from flowgraph.flows.entry_points import load
from flowgraph.flows.flow_files import import_file
from flowgraph.passes import Pass


def find_passes(names: Sequence[str]) -> tuple[Pass, ...]:
    """Give the passes of these names: `my.py:name`, or one of the entry points `flowgraph.passes`.

    Raises UnknownNameError for a name that is not there, UsageError for one that is no function.
    """
    return tuple(_find(name) for name in names)


def _find(name: str) -> Pass:

    file, colon, function = name.rpartition(":")
    if not (colon and file.endswith(".py")):
        return _checked(load("flowgraph.passes", name), name)
    if not Path(file).is_file():
        raise UnknownNameError(f"there is no file {file}", where="--pass")
    module = import_file(Path(file))
    if not hasattr(module, function):
        functions = (each for each, thing in vars(module).items() if callable(thing) and not each.startswith("_"))
        raise UnknownNameError.of("pass", function, functions, where=file)
    return _checked(getattr(module, function), name)


def _checked(found: object, name: str) -> Pass:
    if not callable(found):
        raise UsageError(f"`{name}` is no function", where="--pass", hint="a pass takes a Graph and gives one")
    return cast("Pass", found)
