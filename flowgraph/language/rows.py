"""Rows of real values: count them, take some, find a part by its type. Token columns are trimmed together.

And the parts of records: a narrowed record holds some of its parts, and refuses to give the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from flowgraph.errors import LawError
from flowgraph.language.values import Kind, Lengths, Record, Value, fields

if TYPE_CHECKING:
    from torch import Tensor

V = TypeVar("V", bound=Value)
R = TypeVar("R", bound=Record)


def leaves(values: Iterable[Value]) -> Iterator[Value]:
    """Give every value that is no record, the parts of records included."""
    for value in values:
        if isinstance(value, Record):
            yield from leaves(value.parts.values())
        else:
            yield value


def find(values: Iterable[Value], kind: type[V]) -> V | None:
    """Give the first value of this type among `values` and their parts."""
    return next((value for value in leaves(values) if isinstance(value, kind)), None)


def find_all(values: Iterable[Value], kind: type[V]) -> list[V]:
    """Give every value of this type among `values` and their parts, each once."""
    return list({id(value.data): value for value in leaves(values) if isinstance(value, kind)}.values())


def constant(value: V) -> V:
    """Give the value cut off from what made it: no gradient flows back through it."""
    if isinstance(value, Record):
        return type(value).of({name: constant(part) for name, part in value.parts.items()})
    return type(value)(value.data.detach()) if getattr(value.data, "requires_grad", False) else value


def row_count(values: Iterable[Value]) -> int:
    """Give the number of rows that these values share, 0 if none has rows.

    Raises `LawError` when they differ: rows of two batches cannot be cut together.
    """
    counts = {len(each.data): type(each).__name__ for each in leaves(values) if each.kind in (Kind.ROW, Kind.TOKEN)}
    if len(counts) > 1:
        told = ", ".join(f"{name} has {count}" for count, name in sorted(counts.items()))
        raise LawError(f"the values of one loss differ in their rows: {told}")
    return next(iter(counts), 0)


def widest(values: Iterable[Value], rows: Tensor) -> int | None:
    """Give the longest of all responses in `rows` [b], or None when no value tells lengths."""
    told = find_all(values, Lengths)
    longest = [int(lengths.data[rows].max()) for lengths in told if len(rows)]
    return max([1, *longest]) if told else None


def take(value: V, rows: Tensor, width: int | None = None) -> V:
    """Give the rows at the indices `rows` [b], token columns cut to `width`; scalars and models stay as they are."""
    if isinstance(value, Record):
        return type(value).of({name: take(part, rows, width) for name, part in value.parts.items()})
    if value.kind not in (Kind.ROW, Kind.TOKEN):
        return value
    data = _take_data(value.data, rows)
    return type(value)(data[:, :width] if value.kind is Kind.TOKEN and width is not None else data)


def _take_data(data: Any, rows: Tensor) -> Any:
    import torch

    return data[rows.to(data.device)] if isinstance(data, torch.Tensor) else data.take(rows.cpu().numpy())


def narrowed(record: R, paths: Iterable[str]) -> R:
    """Give a record with these parts only, each a name, or a dotted path into a record within it.

    Reading another raises LawError that names the part and those that are there.

    >>> class Pair(Record):
    ...     lengths: Lengths
    ...     other: Lengths
    >>> list(narrowed(Pair(lengths=Lengths([1]), other=Lengths([2])), ["other"]).parts)
    ['other']
    """
    inside = dict[str, list[str]]()
    for path in paths:
        name, _, rest = path.partition(".")
        inside.setdefault(name, []).append(rest)
    kept = dict[str, Value]()
    for name, part in record.parts.items():
        if name in inside:
            whole = "" in inside[name] or not isinstance(part, Record)
            kept[name] = part if whole else narrowed(part, inside[name])  # type: ignore[type-var]
    return type(record).of(kept, record.measures)


def leaf_paths(kind: type[Value], prefix: str = "") -> tuple[tuple[str, type[Value]], ...]:
    """Return every part of a record that is no record, as a dotted path with its type; for another value itself, as "".

    >>> class Around(Record):
    ...     lengths: Lengths
    >>> [path for path, _ in leaf_paths(Around)]
    ['lengths']
    """
    return _leaf_paths(cast("Any", kind), prefix)  # mypy: as in `fields`


@cache
def _leaf_paths(kind: Any, prefix: str) -> tuple[tuple[str, type[Value]], ...]:
    if not issubclass(kind, Record):
        return ((prefix, kind),)
    parts = fields(kind).items()
    return tuple(leaf for name, part in parts for leaf in leaf_paths(part, f"{prefix}.{name}" if prefix else name))
