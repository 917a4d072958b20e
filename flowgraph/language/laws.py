"""Laws by the stage of a graph, and the check of a stage. The laws themselves are in `checks.table`."""

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
    """One law: its number in the design, its subject, its text, and the code that checks it.

    At one of STAGES, `holders` is a function that takes a graph, a placed graph or a program, and yields an error for
    each breach. At other stages it is one or more objects, given by name if later rooms define them. `since` names the
    pass of lowering after which the law must hold.
    """

    number: int
    name: str
    says: str
    holders: Any
    since: str = ""

    @property
    def held_by(self) -> str:
        """Return the names of the objects that check the law, joined by commas, without the prefix `flowgraph.`."""
        holders = self.holders if isinstance(self.holders, tuple) else (self.holders,)
        names = [
            holder
            if isinstance(holder, str)
            else str(holder.__name__)
            if isinstance(holder, ModuleType)
            else f"{holder.__module__}.{holder.__qualname__}"
            for holder in holders
        ]
        return ", ".join(name.removeprefix("flowgraph.") for name in names)

    def breaches(self, thing: Any) -> Iterator[FlowError]:
        """Yield an error for each place where `thing` breaks this law, which must be one of a stage in STAGES.

        `thing` is the graph, placed graph or program of that stage.
        """
        holder: Callable[[Any], Iterator[FlowError]] = self.holders
        yield from holder(thing)


_TABLES: list[str] = []


def set_law_table(table: str) -> None:
    """Set the table of laws to the one at `module:name`, which is imported when a law is first used."""
    _TABLES[:] = [table]
    laws.cache_clear()


@cache
def laws() -> Laws:
    """Return the table of laws, by stage, that `set_law_table` named; it is imported by the first call."""
    module, _, name = _TABLES[0].partition(":")
    table: Laws = getattr(importlib.import_module(module), name)
    return table


def check(stage: Stage, thing: Any, *, after: str = "") -> None:
    """Raise the FlowError of the first place where a graph, placed graph or program breaks a law of a stage.

    `after` is the name of the pass that returned `thing`; the error has it as a note.
    """
    for error in faults(stage, thing):
        if after:
            error.notes = (*error.notes, f"after the pass {after}")
        raise error


def faults(stage: Stage, thing: Any) -> Iterator[FlowError]:
    """Yield an error for each place where a graph, placed graph or program breaks a law of a stage."""
    for law in laws()[stage]:
        yield from law.breaches(thing)
