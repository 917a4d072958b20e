"""Write frozen dataclasses as plain data, as JSON has it, and read them back by their fields' types.

pydantic would ignore a field that a standard dataclass does not have, and refuse text with half a surrogate pair, which
a label may hold.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from flowgraph.errors import DataError, nearest

SCALARS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def to_plain(value: Any) -> Any:
    """Return data that JSON can hold; an infinity or NaN becomes its name.

    >>> to_plain((1, float("nan"), "a"))
    [1, 'nan', 'a']
    """
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.value if isinstance(value, enum.Enum) else value


def from_plain(kind: Any, value: Any, where: str) -> Any:
    """Return a value of a dataclass, tuple, union, word or number. Raises DataError with the place of a fault.

    >>> from_plain(tuple[int, ...], [1, 2], "steps")
    (1, 2)
    """
    if dataclasses.is_dataclass(kind):
        return _record(kind, value, where)
    if get_origin(kind) is tuple:
        return _tuple(get_args(kind), value, where)
    if get_origin(kind) in (Union, types.UnionType, Literal) or issubclass(kind, enum.Enum):
        return _choice(kind, value, where)
    if kind is float and value in ("nan", "inf", "-inf"):
        return float(value)
    if not isinstance(value, (int, float) if kind is float else kind) or (kind is not bool and isinstance(value, bool)):
        raise _wrong(where, value, SCALARS[kind])
    return value


def _record(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(where, value, "a record")
    fields, kinds = {field.name: field for field in dataclasses.fields(kind)}, get_type_hints(kind)
    for name in value:
        if name not in fields:
            raise DataError.unusable(where, f"has no field {_shortened(name)}", nearest(str(name), fields))
    for name, field in fields.items():
        if name not in value and field.default is dataclasses.MISSING:
            raise DataError.unusable(where, f"lacks `{name}`")
    return kind(**{name: from_plain(kinds[name], value[name], f"{where}.{name}") for name in value})


def _tuple(kinds: Sequence[Any], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _wrong(where, value, "a list")
    if kinds[-1] is Ellipsis:
        kinds = [kinds[0]] * len(value)
    if len(kinds) != len(value):
        raise DataError.unusable(where, f"has {len(value)} parts, not {len(kinds)}")
    items = enumerate(zip(kinds, value, strict=True))
    return tuple(from_plain(kind, item, f"{where}[{place}]") for place, (kind, item) in items)


def _choice(kind: Any, value: Any, where: str) -> Any:
    """Read a word of a fixed list, or a value that may be missing."""
    choices = _choices(kind)
    if value is None and type(None) in choices:
        return None
    for choice in choices:
        if isinstance(choice, type) and choice is not type(None):
            return from_plain(choice, value, where)
        if isinstance(value, str) and choice == value:
            return choice
    names = [str(choice) for choice in choices]
    hint = nearest(value, names) if isinstance(value, str) else f"known: {', '.join(names)}"
    raise DataError.unusable(where, f"is {_shortened(value)}", hint)


def _choices(kind: Any) -> list[Any]:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return list(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return [choice for part in get_args(kind) for choice in _choices(part)]
    return list(get_args(kind)) if get_origin(kind) is Literal else [kind]


def _wrong(where: str, value: Any, kind: str) -> DataError:
    return DataError.unusable(where, f"is {_shortened(value)}, not {kind}")


def _shortened(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
