"""The keys that each version of a system reads, with their defaults: facts, taken from its source.

Each system has a folder: `keys/VERSION.json` names the source files that the keys were read from, `irrelevant_keys.txt`
lists those that change nothing of what a step computes. Not here: what a key means to a plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from flowgraph.errors import UnknownNameError, nearest

System = Literal["verl", "openrlhf", "nemo-rl"]
NAMES: Mapping[System, str] = {"verl": "verl", "openrlhf": "OpenRLHF", "nemo-rl": "NeMo RL"}
SYSTEMS: tuple[System, ...] = tuple(NAMES)
FOLDERS: Mapping[System, Path] = {system: Path(__file__).with_name(system.replace("-", "_")) for system in SYSTEMS}


@dataclass(frozen=True)
class Keys:
    """The keys that one version of a system reads, with their defaults; None for a key without a default.

    Below a key in `open`, the system accepts any key of a library. Keys in `added` are read although they are not in
    its configuration: a command line writes them with a `+`. `values` has the flags that do not take one value, with
    their number of values: "+" means one or more, "*" any number.
    """

    system: System
    version: str
    defaults: Mapping[str, Any] = field(repr=False, hash=False)
    open: frozenset[str] = frozenset()
    added: frozenset[str] = frozenset()
    values: Mapping[str, int | str] = field(default_factory=dict[str, "int | str"], hash=False)

    def knows(self, key: str) -> bool:
        """Return whether this version reads a key, or accepts any key below one of its parents.

        >>> keys("verl", "0.9.1").knows("algorithm.gamma"), keys("verl", "0.9.1").knows("algorithm.gama")
        (True, False)
        """
        parents = (key[: dot.start()] for dot in re.finditer(r"\.", key))
        return key in self.defaults or key in self.added or key in self.open or any(p in self.open for p in parents)

    def irrelevant(self, key: str) -> bool:
        """Return whether a key is listed as one that does not affect the results of a step.

        >>> verl = keys("verl", "0.9.1")
        >>> verl.irrelevant("trainer.project_name"), verl.irrelevant("distillation.enabled")
        (True, False)
        """
        return self.irrelevant_keys.fullmatch(key) is not None

    @cached_property
    def irrelevant_keys(self) -> re.Pattern[str]:
        """Return the pattern that matches the system's keys that do not affect the results of a step. Cached."""
        lines = (FOLDERS[self.system] / "irrelevant_keys.txt").read_text(encoding="utf-8").splitlines()
        return re.compile("|".join(line for line in lines if not line.startswith("#")))

    def hint(self, key: str) -> str:
        """Return a hint: the most similar key, preferably with the same last name, or some keys if none is similar."""
        last = key.rpartition(".")[2]
        same = [name for name in self.defaults if name.rpartition(".")[2] == last]
        return nearest(key, same or self.defaults)


@cache
def keys(system: System, version: str) -> Keys:
    """Return the keys that one version of a system reads. Raises UnknownNameError for a version that is not known."""
    if version not in versions(system):
        raise UnknownNameError.of(f"version of {system}", version, versions(system))
    data = json.loads((FOLDERS[system] / "keys" / f"{version}.json").read_text(encoding="utf-8"))
    added, values = frozenset(data.get("added", ())), data.get("values", {})
    return Keys(system, version, data["keys"], frozenset(data["open"]), added, values)


@cache
def versions(system: System) -> tuple[str, ...]:
    """Return the versions of a system whose keys are known, oldest first."""
    names = (path.stem for path in (FOLDERS[system] / "keys").glob("*.json"))
    return tuple(sorted(names, key=lambda version: [int(part) for part in version.split(".")]))


@cache
def exported_versions(system: System) -> tuple[str, ...]:
    """Return the versions of a system to which plans can be exported, oldest first."""
    return tuple(v for v in versions(system) if (FOLDERS[system] / "templates" / f"{v}.j2").is_file())


def system_of(name: str) -> System:
    """Return the system with this name, ignoring case. Raises UnknownNameError for an unknown one."""
    for system in SYSTEMS:
        if name.casefold() == system:
            return system
    raise UnknownNameError.of("system", name, SYSTEMS)
