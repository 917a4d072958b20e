"""Laws by the stage of a graph that each is about, and the check of a stage. Which laws there are: `checks.table`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Literal, get_args

from flowgraph.errors import FlowError

Stage = Literal["described", "named", "placed", "lowered"]
STAGES: tuple[Stage, ...] = get_args(Stage)
Laws = Mapping[Stage | Literal["call", "run"], tuple["Law", ...]]


@dataclass(frozen=True)
class Law:
    """One law: its number in the design, what it is about, what it says, and what holds it.

    At one of STAGES that is a function which takes what stands there, and gives an error for each breach; elsewhere
    one or more things that hold it, those of later rooms by name. `since` is the pass of lowering from which it holds.
    """

    number: int
    name: str
    says: str
    holders: Any
    since: str = ""

    @property
    def held_by(self) -> str:
        """Return the names of what holds the law, below `flowgraph`."""
        holders = self.holders if isinstance(self.holders, tuple) else (self.holders,)
        return ", ".join(map(_named, holders))

    def breaches(self, thing: Any) -> Iterator[FlowError]:
        """Yield an error for each breach by what stands at the law's stage."""
        holder: Callable[[Any], Iterator[FlowError]] = self.holders
        yield from holder(thing)


def _named(holder: Any) -> str:
    if isinstance(holder, str):
        return holder
    whole = holder.__name__ if isinstance(holder, ModuleType) else f"{holder.__module__}.{holder.__qualname__}"
    return str(whole).removeprefix("flowgraph.")


_TABLES: list[str] = []


def look_up_in(table: str) -> None:
    """Let the table of laws be `module:name`; it is imported when a law is first asked for."""
    _TABLES[:] = [table]
    laws.cache_clear()


@cache
def laws() -> Laws:
    """Return all laws by stage."""
    module, _, name = _TABLES[0].partition(":")
    found: Laws = getattr(importlib.import_module(module), name)
    return found


def check(stage: Stage, thing: Any, *, after: str = "") -> None:
    """Raise the first broken law of what stands at a stage; `after` is the pass that gave it."""
    for error in faults(stage, thing):
        if after:
            error.notes = (*error.notes, f"after the pass {after}")
        raise error


def faults(stage: Stage, thing: Any) -> Iterator[FlowError]:
    """Yield an error for each breach of the laws of a stage: of a graph, or of a program."""
    for law in laws()[stage]:
        yield from law.breaches(thing)
