"""Rows of real values: count them, take some with token columns trimmed together, find a part by its type.

And parts of records: a narrowed record has only some of its parts, and refuses to return the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from flowgraph.errors import LawError
from flowgraph.language.values import Kind, Lengths, Record, Value, cached, fields

if TYPE_CHECKING:
    from torch import Tensor

V = TypeVar("V", bound=Value)
R = TypeVar("R", bound=Record)


def leaves(values: Iterable[Value]) -> Iterator[Value]:
    """Yield each value that is not a record; a record is replaced by its parts, and nested records by theirs."""
    for value in values:
        if isinstance(value, Record):
            yield from leaves(value.parts.values())
        else:
            yield value


def find(values: Iterable[Value], kind: type[V]) -> V | None:
    """Return the first value of type `kind` among `values` and the parts of records among them; None if there is none.

    Records themselves are not found, only their parts.
    """
    return next((value for value in leaves(values) if isinstance(value, kind)), None)


def find_all(values: Iterable[Value], kind: type[V]) -> list[V]:
    """Return all values of a type among `values` and the parts of records, in order; the same data counts once."""
    return list({id(value.data): value for value in leaves(values) if isinstance(value, kind)}.values())


def without_gradient(value: V) -> V:
    """Return a value without its gradient history; of a record, all parts are detached.

    A value that is not a record and has no gradient is returned itself; a new value has no measures.
    """
    if isinstance(value, Record):
        return type(value).of({name: without_gradient(part) for name, part in value.parts.items()})
    return type(value)(value.data.detach()) if getattr(value.data, "requires_grad", False) else value


def row_count(values: Iterable[Value]) -> int:
    """Return how many rows the values have; 0 if none of them has rows.

    Raises LawError if their numbers of rows differ.
    """
    counts = {len(value.data): type(value).__name__ for value in leaves(values) if value.kind in (Kind.ROW, Kind.TOKEN)}
    if len(counts) > 1:
        sizes = ", ".join(f"{name} has {count}" for count, name in sorted(counts.items()))
        raise LawError(f"the values of one loss differ in their rows: {sizes}")
    return next(iter(counts), 0)


def widest(values: Iterable[Value], rows: Tensor) -> int | None:
    """Return the largest length, in tokens, of the rows at indices `rows` [b], at least 1; None without `Lengths`."""
    columns = find_all(values, Lengths)
    longest = [int(lengths.data[rows].max()) for lengths in columns if len(rows)]
    return max([1, *longest]) if columns else None


def take(value: V, rows: Tensor, width: int | None = None) -> V:
    """Return the rows of a value at indices `rows` [b], with token columns cut to their first `width` tokens if given.

    Each part of a record is cut. Scalars, models and state are returned unchanged; a new value has no measures.
    """
    if isinstance(value, Record):
        return type(value).of({name: take(part, rows, width) for name, part in value.parts.items()})
    if value.kind not in (Kind.ROW, Kind.TOKEN):
        return value
    import torch

    data = value.data
    data = data[rows.to(data.device)] if isinstance(data, torch.Tensor) else data.take(rows.cpu().numpy())
    taken = type(value)(data[:, :width] if value.kind is Kind.TOKEN and width is not None else data)
    if value.extras:
        taken.extras = tuple(value.extras[row] for row in rows.tolist())
    return taken


def narrowed(record: R, paths: Iterable[str]) -> R:
    """Return a record with only the parts at `paths`, which are names, or dotted paths into nested records.

    Reading any other declared part of the result raises LawError. Paths that the record lacks are ignored.

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
    parts = dict[str, Value]()
    for name, part in record.parts.items():
        if name in inside:
            whole = "" in inside[name] or not isinstance(part, Record)
            parts[name] = part if whole else narrowed(part, inside[name])
    return type(record).of(parts, record.measures)


@cached
def leaf_paths(kind: type[Value], prefix: str = "") -> tuple[tuple[str, type[Value]], ...]:
    """Return (path, type) of each part of a record type, with nested records replaced by their parts.

    Paths are dotted and begin with `prefix`. For a type that is not a record, the only pair is (prefix, type).

    >>> class Around(Record):
    ...     lengths: Lengths
    >>> [path for path, _ in leaf_paths(Around)]
    ['lengths']
    """
    if not issubclass(kind, Record):
        return ((prefix, kind),)
    parts = fields(kind).items()
    return tuple(leaf for name, part in parts for leaf in leaf_paths(part, f"{prefix}.{name}" if prefix else name))
