"""The view of a flow, a graph or a plan in a notebook. The function that draws it is imported when it is needed."""

from __future__ import annotations

import importlib
from typing import Any

_WRITERS: list[str] = []


def set_notebook_view(writer: str) -> None:
    """Set the function, as `module:name`, that returns the view of an object; it is imported when first needed."""
    _WRITERS[:] = [writer]


def mimebundle(thing: object) -> dict[str, str]:
    """Return the notebook view of a flow, graph or plan, by MIME type; only its `repr` if no view is set."""
    if not _WRITERS:
        return {"text/plain": repr(thing)}
    module, _, name = _WRITERS[0].partition(":")
    write: Any = getattr(importlib.import_module(module), name)
    views: dict[str, str] = write(thing)
    return views
