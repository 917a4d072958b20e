"""Files that a command line names to be written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.errors import UsageError

if TYPE_CHECKING:
    pass


def write_text(path: Path, text: str) -> None:
    """Write a file of text that a user named."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file that a user named."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error
