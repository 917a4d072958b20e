"""What a notebook shows of a flow, a graph or a plan. What draws them is named here, and imported when asked."""

from __future__ import annotations

import importlib
from typing import Any

_WRITERS: list[str] = []


def show_by(writer: str) -> None:
    """Let a function, named `module:name`, write what notebooks show; it is imported when a notebook first asks."""
    _WRITERS[:] = [writer]


def mimebundle(thing: object) -> dict[str, str]:
    """Return what a notebook shows of a thing, by MIME type; its `repr` where nothing draws."""
    if not _WRITERS:
        return {"text/plain": repr(thing)}
    module, _, name = _WRITERS[0].partition(":")
    write: Any = getattr(importlib.import_module(module), name)
    found: dict[str, str] = write(thing)
    return found
