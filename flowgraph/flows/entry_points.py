"""What installed packages bring: flows, scoring rules and passes, found by what a package's metadata says of them.

A package names them once, `[project.entry-points."flowgraph.flows"] NAME = "package.module:function"`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from typing import Literal

from flowgraph.errors import FlowError, UnknownNameError, UserCodeError

Group = Literal["flowgraph.flows", "flowgraph.rules", "flowgraph.passes"]
WORDS: dict[Group, str] = {"flowgraph.flows": "flow", "flowgraph.rules": "rule", "flowgraph.passes": "pass"}


def named(group: Group, shipped: Collection[str] = ()) -> dict[str, EntryPoint]:
    """Give what installed packages bring to a group, by name, in order of name; nothing is imported.

    Raises `UnknownNameError` for a name that two packages bring, or that is among the `shipped` ones.
    """
    return {name: entry for name in names(group) if (entry := find(group, name, shipped)) is not None}


def names(group: Group) -> list[str]:
    """List the names that installed packages bring to a group, each once; nothing is imported."""
    return sorted({each.name for each in entry_points(group=group)})


def find(group: Group, name: str, shipped: Collection[str] = ()) -> EntryPoint | None:
    """Give what a package brings under this name, or None; nothing is imported.

    Raises `UnknownNameError` where two packages bring it, or one does and it is among the `shipped` ones.
    """
    found = list(entry_points(group=group, name=name))
    packages = [package_of(each) for each in found]
    if found and name in shipped:
        what = f"the {WORDS[group]} `{name}` is a shipped one, and {packages[0]} brings one of that name too"
        raise UnknownNameError(what, hint="rename it there, or uninstall it")
    if len(found) > 1:
        what = f"two packages bring a {WORDS[group]} `{name}`: {packages[0]} and {packages[1]}"
        raise UnknownNameError(what, hint="uninstall one of them")
    return found[0] if found else None


def load(group: Group, name: str, shipped: Collection[str] = ()) -> object:
    """Import what a package brings under this name.

    Raises `UnknownNameError` for a name that no package brings, with the nearest, or that several do; `UserCodeError`
    that names the package when its module does not import or lacks what it says.
    """
    entry = find(group, name, shipped)
    if entry is None:
        raise UnknownNameError.of(WORDS[group], name, [*shipped, *names(group)])
    return load_entry(entry)


def load_entry(entry: EntryPoint) -> object:
    """Import what an entry point names; raises `UserCodeError` that names its package."""
    module, path = target(entry)
    try:
        __import__(module)  # not importlib's function, whose frames would stand in the error
    except FlowError:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError.raised(f"importing {module}", error, package_of(entry)) from error
    found: object = sys.modules[module]
    for part in path.split("."):
        if not hasattr(found, part):
            raise _wrong(entry, "which is not there")
        found = getattr(found, part)
    return found


def target(entry: EntryPoint) -> tuple[str, str]:
    """Give the module that an entry point names, and the name in it; raises `UserCodeError` for any other text."""
    module, _, path = entry.value.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), *path.split(".")]):
        raise _wrong(entry, "which is no package.module:name")
    return module, path


def _wrong(entry: EntryPoint, why: str) -> UserCodeError:
    what = f"its entry point `{entry.name}` names `{entry.value}`, {why}"
    return UserCodeError(what, where=package_of(entry))


def package_of(entry: EntryPoint) -> str:
    """Name the package that brings an entry point, with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "a package without a name"
