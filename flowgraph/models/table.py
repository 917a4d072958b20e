"""The table of hub models that flowgraph includes: the sizes in their config.json, so that no file is downloaded.

`table.json` has a line for each model: the fields of config.json, the number of parameters, a source, and other hub ids
with the same sizes. Not here: quantities that are computed from these (`sizes`), and loading, which uses the hub.
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
    """A model of the table: its hub id, its config.json, and the published number of `parameters`.

    The number is that of the language model, without vision and without layers that predict further tokens. `also`
    lists other names with the same sizes: whole hub ids, suffixes of this id that begin with `-`, and short names of
    this model. `positions` is the largest number of tokens in a row, by hub id or suffix, "" for this id and its
    quantized copies.
    """

    name: str
    parameters: int
    config: Mapping[str, Any]
    source: str
    also: Sequence[str] = ()
    positions: Mapping[str, int] = field(default_factory=dict[str, int])

    def positions_of(self, name: str) -> int | None:
        """Return the largest number of tokens in a row for `name`, one of `ids`, ignoring case; None if unknown."""
        ending = name.casefold().removeprefix(self.name.casefold())
        default = self.positions.get("") if ending.endswith(QUANTIZED) else None
        return {key.casefold(): tokens for key, tokens in self.positions.items()}.get(ending, default)

    @property
    def ids(self) -> Iterator[str]:
        """Yield the hub ids of all models that have these sizes, this model's id first."""
        yield self.name
        for name in self.also:
            if name.startswith("-") or "/" in name:
                yield f"{self.name}{name}" if name.startswith("-") else name

    @property
    def short_names(self) -> Iterator[str]:
        """Yield the short names of this model: its id without the organization, and then the short names in `also`."""
        yield _short(self.name)
        yield from (name for name in self.also if not name.startswith("-") and "/" not in name)


@cache
def table() -> Mapping[str, ListedModel]:
    """Return all models of the table by hub id, in the order of the file, which is read once."""
    entries: dict[str, dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
    return {name: ListedModel(name, **entry) for name, entry in entries.items()}


def listed(name: str) -> ListedModel | None:
    """Return the entry of the table that has a hub id, ignoring case; None if no entry has it.

    An entry has the id of its own model, and those of other models with the same sizes.
    """
    return _by_id().get(name.casefold(), ("", None))[1]


def full_name(text: str) -> str | None:
    """Return the hub id that a hub id or a short name means, ignoring case; None if it is not in the table.

    Dashes, underscores and spaces in short names are ignored too. A short name that fits several ids means the entry of
    the table that has this short name; if there is none, the result is None.

    >>> full_name("qwen/qwen3-8b"), full_name("llama-3.1-8b-instruct"), full_name("gpt oss 120B")
    ('Qwen/Qwen3-8B', 'meta-llama/Llama-3.1-8B-Instruct', 'openai/gpt-oss-120b')
    """
    entry = _by_id().get(text.casefold())
    return entry[0] if entry else _by_short_name().get(_key(text))


def nearest_names(text: str, built_in: Iterable[str] = ()) -> tuple[str, ...]:
    """Return up to three short names, from the table or `built_in`, that resemble `text`, the most similar first.

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
    """Return the hub id of each short name: that of an entry, or else of the only id with this short name."""
    ids = dict[str, set[str]]()
    for name, _ in _by_id().values():
        ids.setdefault(_key(_short(name)), set()).add(name)
    unique = {key: next(iter(names)) for key, names in ids.items() if len(names) == 1}
    return unique | {_key(name): entry.name for entry in table().values() for name in entry.short_names}


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _key(text: str) -> str:
    return text.casefold().translate(str.maketrans("", "", "-_ "))
