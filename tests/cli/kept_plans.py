"""Plans that several tests ask for in the same words: searched once in a session, and written anew for each test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

_KEPT = dict[tuple[str, ...], str]()


def write_plan(flowgraph: Callable[..., Any], *arguments: object, out: str = "plan.json") -> str:
    """Write the plan that `flowgraph ARGUMENTS -o OUT` finds; return its text.

    Arguments that name files of a test's own folder are asked anew.
    """
    words = tuple(map(str, arguments))
    if any(Path(word.partition(":")[0].rpartition("=")[2] or "no file").exists() for word in words):
        return _searched(flowgraph, words, out)
    if words not in _KEPT:
        _KEPT[words] = _searched(flowgraph, words, out)
    Path(out).write_text(_KEPT[words], encoding="utf-8")
    return _KEPT[words]


def _searched(flowgraph: Callable[..., Any], words: tuple[str, ...], out: str) -> str:
    said = flowgraph(*words, "-o", out)
    assert said.code == 0, said.err
    return Path(out).read_text(encoding="utf-8")
