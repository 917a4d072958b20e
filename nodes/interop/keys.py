"""The keys that each known version of a system reads, with their defaults: facts, read from its own source.

One file per version, `keys/SYSTEM-VERSION.json`; it names the source files that it was read from. Not here: what a key
means to a plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from flowgraph.errors import UnknownNameError, nearest

System = Literal["verl", "openrlhf", "nemo-rl"]
SYSTEMS: tuple[System, ...] = ("verl", "openrlhf", "nemo-rl")
FOLDER = Path(__file__).with_name("keys")
TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Keys:
    """What one version of a system reads: its keys with their defaults, None where there is none.

    Below a key of `open` it takes keys of a library's own, which are not listed. Those of `added` are read, but not in
    its configuration: on a command line they stand with a `+`. `values` says of a flag how many values follow, where
    that is not one.
    """

    system: System
    version: str
    read_from: tuple[str, ...]
    defaults: Mapping[str, Any] = field(repr=False, hash=False)
    open: frozenset[str] = frozenset()
    added: frozenset[str] = frozenset()
    values: Mapping[str, int | str] = field(default_factory=dict[str, "int | str"], hash=False)

    def knows(self, key: str) -> bool:
        """Return whether this version reads a key, or a key above it that takes any.

        >>> keys("verl", "0.9.1").knows("algorithm.gamma"), keys("verl", "0.9.1").knows("algorithm.gama")
        (True, False)
        """
        above = (key[:place] for place, letter in enumerate(key) if letter == ".")
        return key in self.defaults or key in self.added or key in self.open or any(each in self.open for each in above)

    def hint(self, key: str) -> str:
        """Name the nearest key that there is: one of the same last name first."""
        last = key.rpartition(".")[2]
        same = [each for each in self.defaults if each.rpartition(".")[2] == last]
        return nearest(key, same or self.defaults)


@cache
def keys(system: System, version: str) -> Keys:
    """Read the keys of one version. Raises UnknownNameError for one that is not known."""
    if version not in versions(system):
        raise UnknownNameError.of(f"version of {system}", version, versions(system))
    told = json.loads((FOLDER / f"{system}-{version}.json").read_text(encoding="utf-8"))
    return Keys(
        system,
        version,
        tuple(told["read_from"]),
        told["keys"],
        frozenset(told["open"]),
        frozenset(told.get("added", ())),
        told.get("values", {}),
    )


@cache
def versions(system: System) -> tuple[str, ...]:
    """List the versions whose keys are known, oldest first: those of commands that can be read."""
    names = (path.stem.removeprefix(f"{system}-") for path in FOLDER.glob(f"{system}-*.json"))
    return tuple(sorted(names, key=_release))


@cache
def exported_versions(system: System) -> tuple[str, ...]:
    """List the versions that plans are exported for, oldest first."""
    return tuple(each for each in versions(system) if (TEMPLATES / system / f"{each}.j2").is_file())


def system_of(name: str) -> System:
    """Return the system of this name; raises UnknownNameError with the nearest."""
    for system in SYSTEMS:
        if name.casefold() == system:
            return system
    raise UnknownNameError.of("system", name, SYSTEMS)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
