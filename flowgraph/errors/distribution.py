"""The distribution that installs flowgraph, and packages of other projects whose import name is one of ours.

On PyPI, `flowgraph` is another project. Every text that names what to install takes the name from here.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

from flowgraph.errors.language import UserCodeError

DISTRIBUTION = "flowgraph-rl"
"""The name by which pip installs flowgraph."""

OURS = ("flowgraph", "nodes", "placements")
"""The import names of its packages."""

HOME = Path(__file__).resolve().parents[2]
"""The folder of these packages."""


def install_command(extra: str) -> str:
    """Return the command that installs flowgraph with the packages of `extra`, such as `draw`.

    >>> install_command("draw")
    "pip install 'flowgraph-rl[draw]'"
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def installed_version() -> str | None:
    """Return the version of the installed flowgraph; None in a checkout that is not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return None


def other_projects() -> list[str]:
    """Return other installed distributions that have a package with a name of ours, as `name version`, sorted.

    The metadata of every installed distribution is read, which takes a tenth of a second.
    """
    names = packages_distributions()
    conflicts = {name for package in OURS for name in names.get(package, ()) if name != DISTRIBUTION}
    return sorted(map(_with_version, conflicts))


def refuse_other_packages() -> None:
    """Raise UserCodeError if Python imports a package of another project, or a user's file, in place of one of ours.

    Another project's `flowgraph` is also recognized where it has overwritten files of ours, in the same folder.
    """
    for name in OURS:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin) if spec is not None and spec.origin else None
        if origin is None or (origin.resolve().is_relative_to(HOME) and not _overwritten(name)):
            continue
        owners = [owner for owner in packages_distributions().get(name, ()) if owner != DISTRIBUTION]
        if owners:
            raise UserCodeError.other_project(str(origin), name, _with_version(owners[0]), DISTRIBUTION)
        raise UserCodeError.shadows(str(origin), name)


def _with_version(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:  # its folder of metadata has another name
        return name


def _overwritten(name: str) -> bool:
    return name == "flowgraph" and "Flow" not in getattr(sys.modules.get(name), "__all__", ["Flow"])
