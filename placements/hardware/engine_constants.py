"""Constants of an engine, by version: each with the bounds that a calibration may move it in, and its source.

They lie in `engines/ENGINE.toml`. Not here: numbers of a device (`device_profiles`), and the fitting of these
(`calibration.fit_constants`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

from flowgraph.errors import UnknownNameError

FOLDER = Path(__file__).with_name("engines")
C = TypeVar("C", bound="EngineConstants")


@dataclass(frozen=True)
class ConstantBounds:
    """A constant as shipped: its value, what a calibration may move it between, and where it is from."""

    value: float
    low: float
    high: float
    source: str


@dataclass(frozen=True)
class EngineConstants:
    """Numbers of one engine; a subclass names them, each a float, in SI units."""

    def moved(self, values: Mapping[str, float]) -> Self:
        """Return the same with other values for some; raises UnknownNameError for a name that is none of its."""
        for name in values:
            if name not in constant_names(type(self)):
                raise UnknownNameError.of("constant", name, constant_names(type(self)))
        return replace(self, **values)


def constant_names(kind: type[EngineConstants]) -> tuple[str, ...]:
    """Name the constants of a kind."""
    return tuple(field.name for field in fields(kind))


def constants(kind: type[C], engine: str, version: str = "") -> C:
    """Read the constants of an engine; those of the newest version unless one is named.

    Raises UnknownNameError for an engine or a version that has none.
    """
    return kind(**{name: each.value for name, each in bounds(engine, version).items() if name in constant_names(kind)})


def bounds(engine: str, version: str = "") -> Mapping[str, ConstantBounds]:
    """Return the constants of an engine with their bounds; a version says only what differs from the one before it."""
    tables = _tables(engine)
    names = [each["version"] for each in tables]
    if version and version not in names:
        raise UnknownNameError.of(f"version of {engine}", version, names)
    last = names.index(version) if version else len(names) - 1
    return {name: ConstantBounds(**each) for table in tables[: last + 1] for name, each in table["constants"].items()}


def engines() -> tuple[str, ...]:
    """Name the engines that have constants."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@cache
def _tables(engine: str) -> list[dict[str, Any]]:
    if engine not in engines():
        raise UnknownNameError.of("engine", engine, engines())
    tables: list[dict[str, Any]] = tomllib.loads((FOLDER / f"{engine}.toml").read_text("utf-8"))["release"]
    return tables
