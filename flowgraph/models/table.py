"""The shipped table of models of the hub: the sizes in their config.json, so that none has to be fetched.

`table.json` has a line for each model: the fields of config.json, the number of parameters, a source, and other ids
of the hub with the same sizes. Not here: what is computed from them (`sizes`), and loading, which uses the hub.
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
QUANTIZED = ("-fp8", "-fp4", "-nvfp4", "-awq", "-fp8-static-pertensor")  # endings of ids of quantized copies


@dataclass(frozen=True)
class ListedModel:
    """A model of the table: its id on the hub, its config.json, and the published number of `parameters`.

    The number is of the language model only, without vision and without layers that predict further tokens. `also`
    names models of the same sizes: whole ids, endings of this id that begin with `-`, and other short names of it.
    `positions` is the largest number of tokens in a row, by id or ending, "" for this id and its quantized copies.
    """

    name: str
    parameters: int
    config: Mapping[str, Any]
    source: str
    also: Sequence[str] = ()
    positions: Mapping[str, int] = field(default_factory=dict[str, int])

    def positions_of(self, name: str) -> int | None:
        """Return the largest number of tokens in a row of one of these ids; None if it is not listed."""
        ending = name.casefold().removeprefix(self.name.casefold())
        default = self.positions.get("") if ending.endswith(QUANTIZED) else None
        return {key.casefold(): tokens for key, tokens in self.positions.items()}.get(ending, default)

    @property
    def ids(self) -> Iterator[str]:
        """Yield all ids of the hub that have these sizes, this model's id first."""
        yield self.name
        for name in self.also:
            if name.startswith("-") or "/" in name:
                yield f"{self.name}{name}" if name.startswith("-") else name

    @property
    def short_names(self) -> Iterator[str]:
        """Yield the names of this model besides its id."""
        yield _short(self.name)
        yield from (name for name in self.also if not name.startswith("-") and "/" not in name)


@cache
def table() -> Mapping[str, ListedModel]:
    """Read the table: each model by its id on the hub."""
    entries: dict[str, dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
    return {name: ListedModel(name, **entry) for name, entry in entries.items()}


def listed(name: str) -> ListedModel | None:
    """Return the entry for an id of the hub, in any case; None if it is not in the table."""
    return _by_id().get(name.casefold(), ("", None))[1]


def full_name(text: str) -> str | None:
    """Return the id on the hub for an id in any case or a short name; None if the table does not have it.

    Case, dashes, underscores and spaces of short names do not matter.

    >>> full_name("qwen/qwen3-8b"), full_name("llama-3.1-8b-instruct"), full_name("gpt oss 120B")
    ('Qwen/Qwen3-8B', 'meta-llama/Llama-3.1-8B-Instruct', 'openai/gpt-oss-120b')
    """
    entry = _by_id().get(text.casefold())
    return entry[0] if entry else _by_short_name().get(_key(text))


def nearest_names(text: str, built_in: Iterable[str] = ()) -> tuple[str, ...]:
    """Return up to three short names of the table, or `built_in` ones, that resemble a text.

    >>> nearest_names("llama-3.1-9b")[0]
    'Llama-3.1-8B'
    """
    names = {name.casefold(): name for name in (*built_in, *map(_short, table()))}
    return tuple(names[match] for match in difflib.get_close_matches(text.casefold(), names, n=3, cutoff=0.7))


@cache
def _by_id() -> Mapping[str, tuple[str, ListedModel | None]]:
    return {name.casefold(): (name, entry) for entry in table().values() for name in entry.ids}


@cache
def _by_short_name() -> Mapping[str, str]:
    """Return the id for each short name: an entry's own before one with its sizes, which must be unambiguous."""
    ids = dict[str, set[str]]()
    for name, _ in _by_id().values():
        ids.setdefault(_key(_short(name)), set()).add(name)
    unique = {key: next(iter(names)) for key, names in ids.items() if len(names) == 1}
    return unique | {_key(name): entry.name for entry in table().values() for name in entry.short_names}


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _key(text: str) -> str:
    return text.casefold().translate(str.maketrans("", "", "-_ "))
