"""The folder of the shipped flows: inside an installed package, next to the package in a checkout."""

from __future__ import annotations

from pathlib import Path


def flows_folder() -> Path:
    """Return the folder of the shipped flows, one `.py` file each.

    An installed wheel has them in `flowgraph/examples`, which is checked first: an `examples` folder next to an
    installed package may belong to another project.

    >>> flows_folder().name
    'examples'
    """
    package = Path(__file__).resolve().parents[1]
    inside = package / "examples"
    return inside if inside.is_dir() else package.parent / "examples"
