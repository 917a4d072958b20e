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
    each breach. At the stages "call" and "run", it is an object, the name of an object, or a tuple of these. `since`
    names the pass of lowering after which a law of "lowered" must hold; it is "" at other stages.
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
        """Yield a FlowError for each place where a graph, placed graph or program breaks this law.

        The law must belong to one of STAGES, and `thing` must be at that stage.
        """
        holder: Callable[[Any], Iterator[FlowError]] = self.holders
        yield from holder(thing)


_TABLES: list[str] = []


def set_law_table(table: str) -> None:
    """Set the table of laws to the object at `module:name`, which is imported when a law is next used."""
    _TABLES[:] = [table]
    laws.cache_clear()


@cache
def laws() -> Laws:
    """Return the laws by stage, from the table that `set_law_table` named. Raises IndexError if no table is named."""
    module, _, name = _TABLES[0].partition(":")
    table: Laws = getattr(importlib.import_module(module), name)
    return table


def check(stage: Stage, thing: Any, *, after: str = "") -> None:
    """Raise the FlowError of the first place where a graph, placed graph or program breaks a law of a stage.

    `after` names the pass that returned `thing`, for a note of the error; "" means no note.
    """
    for error in faults(stage, thing):
        if after:
            error.notes = (*error.notes, f"after the pass {after}")
        raise error


def faults(stage: Stage, thing: Any) -> Iterator[FlowError]:
    """Yield an error for each place where a graph, placed graph or program breaks a law of a stage."""
    for law in laws()[stage]:
        yield from law.breaches(thing)
