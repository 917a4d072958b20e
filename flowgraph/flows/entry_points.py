"""Flows, scoring rules and passes that installed packages register as entry points.

A package registers one with `[project.entry-points."flowgraph.flows"] NAME = "package.module:function"`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Literal

from flowgraph.errors import FlowError, UnknownNameError, UserCodeError

Group = Literal["flowgraph.flows", "flowgraph.rules", "flowgraph.passes"]
WORDS: dict[Group, str] = {"flowgraph.flows": "flow", "flowgraph.rules": "rule", "flowgraph.passes": "pass"}


def named(group: Group, shipped: Collection[str] = ()) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, sorted by name, without importing them.

    Raises UnknownNameError if a package registers a name of `shipped`, or if two packages register the same name.
    """
    return {name: entry for name in names(group) if (entry := find(group, name, shipped)) is not None}


def names(group: Group) -> list[str]:
    """Return the distinct names of the entry points of a group, sorted, without importing them."""
    return sorted({entry.name for entry in _registered(group)})


def find(group: Group, name: str, shipped: Collection[str] = ()) -> EntryPoint | None:
    """Return the entry point called `name` in a group, without importing it; None if no package registers it.

    Raises UnknownNameError if two packages register the name, or if a package registers it although it is in `shipped`.
    """
    entries = list(_registered(group).select(name=name))
    packages = [package_of(entry) for entry in entries]
    if entries and name in shipped:
        what = f"the {WORDS[group]} `{name}` is shipped with flowgraph, but {packages[0]} has one with that name"
        raise UnknownNameError(what, hint="rename it there, or uninstall it")
    if len(entries) > 1:
        what = f"two packages provide a {WORDS[group]} `{name}`: {packages[0]} and {packages[1]}"
        raise UnknownNameError(what, hint="uninstall one of them")
    return entries[0] if entries else None


def _registered(group: Group) -> EntryPoints:
    folders = [Path(folder) for folder in sys.path if Path(folder).is_dir()]
    return _read(group, tuple((folder, folder.stat().st_mtime_ns) for folder in folders))


@lru_cache(maxsize=len(WORDS))
def _read(group: Group, folders: tuple[tuple[Path, int], ...]) -> EntryPoints:
    # Every installed package's metadata is read: 20 ms. A package that is installed meanwhile changes its folder.
    return entry_points(group=group)


def load(group: Group, name: str, shipped: Collection[str] = ()) -> object:
    """Import and return the object that a package registers as `name` in a group.

    `shipped` are names that packages may not register. Raises UnknownNameError if `name` is one of these and
    registered, or if no package or more than one registers it; and the errors of `load_entry`.
    """
    entry = find(group, name, shipped)
    if entry is None:
        raise UnknownNameError.of(WORDS[group], name, [*shipped, *names(group)])
    return load_entry(entry)


def load_entry(entry: EntryPoint) -> object:
    """Import and return the object that an entry point names.

    Raises UserCodeError, which names the package, if the entry is not `package.module:name`, if importing the module
    fails, or if the module lacks the object. A FlowError that the module raises is raised unchanged.
    """
    module, path = target(entry)
    try:
        __import__(module)  # not importlib's function, whose frames would stand in the error
    except FlowError:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError.raised(f"importing {module}", error, package_of(entry)) from error
    value: object = sys.modules[module]
    for part in path.split("."):
        if not hasattr(value, part):
            raise _wrong(entry, "which does not exist")
        value = getattr(value, part)
    return value


def target(entry: EntryPoint) -> tuple[str, str]:
    """Return (module, dotted name in it) of an entry point. Raises UserCodeError for an entry of another form."""
    module, _, path = entry.value.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), *path.split(".")]):
        raise _wrong(entry, "which is not package.module:name")
    return module, path


def _wrong(entry: EntryPoint, why: str) -> UserCodeError:
    what = f"its entry point `{entry.name}` names `{entry.value}`, {why}"
    return UserCodeError(what, where=package_of(entry))


def package_of(entry: EntryPoint) -> str:
    """Return name and version of the package that registers an entry point; `a package without a name` if unknown."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "a package without a name"
