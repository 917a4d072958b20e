"""Files that a user names: text that is read, text and bytes that are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flowgraph.errors import FlowError, UsageError
from flowgraph.files.untrusted import MOST_BYTES, read_text


def text_of(path: Path, kind: str, refusal: Callable[[str], FlowError], most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a file that a user names.

    If the file cannot be read, is not UTF-8 or has more than `most_bytes` bytes, raises the error that
    `refusal(reason)` returns. `kind` is what the file should be, such as "plan", for the reason; "" leaves that out.
    """
    try:
        return read_text(path, most_bytes)
    except OSError as error:
        raise refusal(f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise refusal(f"is not text, so not a {kind}" if kind else "is not text") from None


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file, replacing an existing file. Raises UsageError if the file or its folder is not writable."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, replacing an existing file. Raises UsageError if the file or its folder is not writable."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error
