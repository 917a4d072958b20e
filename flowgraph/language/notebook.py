"""The view of a flow, a graph or a plan in a notebook. The function that draws it is imported when it is needed."""

from __future__ import annotations

import importlib
from typing import Any

_WRITERS: list[str] = []


def set_notebook_view(writer: str) -> None:
    """Set the function, as `module:name`, that makes the view; it is imported when a notebook first needs it."""
    _WRITERS[:] = [writer]


def mimebundle(thing: object) -> dict[str, str]:
    """Return the view of an object by MIME type; its `repr` if no function is set."""
    if not _WRITERS:
        return {"text/plain": repr(thing)}
    module, _, name = _WRITERS[0].partition(":")
    write: Any = getattr(importlib.import_module(module), name)
    views: dict[str, str] = write(thing)
    return views
