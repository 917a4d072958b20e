"""Where a call stands in a user's file: what an error names, and what a node remembers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

# Not resolved: a frame names its file as the import found it. Shipped flows are written as users write theirs.
_OURS = tuple(f"{Path(__file__).parents[2] / name}/" for name in ("flowgraph", "nodes"))
_SHIPPED = f"{Path(__file__).parents[1] / 'examples'}/"


@dataclass(frozen=True)
class Site:
    """A line of a user's file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


def call_site() -> Site:
    """Return the nearest line on the stack that is not ours (`flowgraph/`, `nodes/`), to name it in errors."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and _ours(frame.f_code.co_filename):
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno)


def _ours(file: str) -> bool:
    made_up = file.startswith(("<frozen ", "<string>"))  # but `<ipython-input-…>` is a cell that a user wrote
    return made_up or (file.startswith(_OURS) and not file.startswith(_SHIPPED))
