"""Sizes of current models of the hub, shipped: what their config.json says of sizes, so that none has to be fetched.

One line of `table.json` for each model: the fields that are read, the count of parameters, a source, and other ids of
the hub that have the same sizes. Not here: what the sizes come to (`shapes`), and loading, which asks the hub.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("table.json")
QUANTISED = ("-fp8", "-fp4", "-nvfp4", "-awq", "-fp8-static-pertensor")  # endings of the same model in fewer bits


@dataclass(frozen=True)
class ListedModel:
    """A model of the table: its id on the hub, what config.json says, and `parameters` as published.

    Those are of the language model alone: no vision, and none of the layers that predict further tokens. `also` names
    what has the same sizes: whole ids, endings of this id that begin with `-`, and other short names of it. `positions`
    are the most tokens of a row, by id or ending, "" for this id; those of fewer bits have the positions of this id.
    """

    name: str
    parameters: int
    config: Mapping[str, Any]
    source: str
    also: Sequence[str] = ()
    positions: Mapping[str, int] = field(default_factory=dict[str, int])

    def positions_of(self, name: str) -> int | None:
        """Return the most tokens of a row of one of these ids; None if that is not listed."""
        ending = name[len(self.name) :] if name.casefold().startswith(self.name.casefold()) else name
        listed_here = {key.casefold(): most for key, most in self.positions.items()}
        own = self.positions.get("") if ending.casefold().endswith(QUANTISED) else None
        return listed_here.get(ending.casefold(), own)

    @property
    def ids(self) -> Iterator[str]:
        """Give all ids of the hub that have these sizes, this model's own first."""
        yield self.name
        yield from (
            f"{self.name}{each}" if each.startswith("-") else each
            for each in self.also
            if each[:1] == "-" or "/" in each
        )

    @property
    def short_names(self) -> Iterator[str]:
        """Give what this model is called besides its id."""
        yield _short(self.name)
        yield from (each for each in self.also if each[:1] != "-" and "/" not in each)


@cache
def table() -> Mapping[str, ListedModel]:
    """Read the table: each model by its id on the hub."""
    read: dict[str, dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
    return {name: ListedModel(name, **each) for name, each in read.items()}


def listed(name: str) -> ListedModel | None:
    """Give the entry for an id of the hub, whatever its case; None if it is not in the table."""
    found = _by_id().get(name.casefold())
    return found[1] if found else None


def full_name(text: str) -> str | None:
    """Give the id on the hub that a text stands for, an id in any case or a short name; None if the table has none.

    Of short names, case, dashes, underscores and spaces do not count.

    >>> full_name("qwen/qwen3-8b"), full_name("llama-3.1-8b-instruct"), full_name("gpt oss 120B")
    ('Qwen/Qwen3-8B', 'meta-llama/Llama-3.1-8B-Instruct', 'openai/gpt-oss-120b')
    """
    found = _by_id().get(text.casefold())
    return found[0] if found else _by_short_name().get(_key(text))


def nearest_names(text: str, others: Iterable[str] = (), most: int = 3) -> tuple[str, ...]:
    """Give the short names of the table, or of `others`, that are nearest to a text; none if none is near.

    >>> nearest_names("llama-3.1-9b")[0]
    'Llama-3.1-8B'
    """
    names = [*others, *map(_short, table())]
    spelled = {each.casefold(): each for each in names}
    return tuple(spelled[each] for each in difflib.get_close_matches(text.casefold(), spelled, n=most, cutoff=0.7))


@cache
def _by_id() -> Mapping[str, tuple[str, ListedModel]]:
    return {each.casefold(): (each, entry) for entry in table().values() for each in entry.ids}


@cache
def _by_short_name() -> Mapping[str, str]:
    """Give the id of each short name: a model's own before one of its sizes; if two of those share it, neither."""
    own = {_key(each): entry.name for entry in table().values() for each in entry.short_names}
    same = dict[str, set[str]]()
    for name, _ in _by_id().values():
        same.setdefault(_key(_short(name)), set()).add(name)
    return {key: next(iter(names)) for key, names in same.items() if len(names) == 1} | own


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _key(text: str) -> str:
    return text.casefold().translate(_LEFT_OUT)


_LEFT_OUT = str.maketrans("", "", "-_ ")
