"""The line of a call in a user's file, which errors name and nodes remember."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

# Not resolved, since a frame has its file's name as it was imported. Shipped flows count as a user's files.
_OURS = tuple(f"{Path(__file__).parents[2] / name}/" for name in ("flowgraph", "nodes"))
_SHIPPED = f"{Path(__file__).parents[1] / 'examples'}/"


@dataclass(frozen=True)
class Site:
    """A line of a user's file; its text is `name:line`, without the folder."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


def call_site() -> Site:
    """Return the file and line of the nearest caller outside `flowgraph/` and `nodes/`, for errors and nodes.

    Shipped flows count as outside, generated code as inside. If all callers are inside, the outermost one is returned.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno)


def is_internal(file: str) -> bool:
    """Return whether code in `file` is generated, or is in `flowgraph/` or `nodes/` but not in a shipped flow."""
    generated = file.startswith(("<frozen ", "<string>"))  # but `<ipython-input-…>` is a cell that a user wrote
    return generated or (file.startswith(_OURS) and not file.startswith(_SHIPPED))
