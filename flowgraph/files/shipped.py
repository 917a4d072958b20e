"""Where the shipped flows lie: inside the package once installed, beside it in a checkout. It reads none of them."""

from __future__ import annotations

from pathlib import Path


def flows_folder() -> Path:
    """Give the folder of the shipped flows, one `.py` file each.

    A wheel carries them as `flowgraph/examples`. That place is looked at first: what else lies beside an installed
    package may be another project's `examples`.

    >>> flows_folder().name
    'examples'
    """
    package = Path(__file__).resolve().parents[1]
    inside = package / "examples"
    return inside if inside.is_dir() else package.parent / "examples"
