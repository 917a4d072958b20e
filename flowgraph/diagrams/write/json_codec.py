"""Read plain data, as JSON has it, into frozen dataclasses by their fields' types; what does not fit is told by place.

Written by hand and not by pydantic: a field that no class has is an error here, and any text comes back the same.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from flowgraph.errors import DataError, nearest


def to_plain(value: Any) -> Any:
    """Give data that JSON can hold; a number that JSON has no word for becomes its name.

    >>> to_plain((1, float("nan"), "a"))
    [1, 'nan', 'a']
    """
    if dataclasses.is_dataclass(value):
        return {each.name: to_plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [to_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.value if isinstance(value, enum.Enum) else value


def from_plain(kind: Any, value: Any, where: str) -> Any:
    """Give a value of a dataclass, tuple, union, word or number; raises `DataError` that says where it is none.

    >>> from_plain(tuple[int, ...], [1, 2], "steps")
    (1, 2)
    """
    if dataclasses.is_dataclass(kind):
        return _record(kind, value, where)
    origin = get_origin(kind)
    if origin is tuple:
        return _tuple(get_args(kind), value, where)
    if origin in (Union, types.UnionType, Literal) or (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        return _one_of(kind, value, where)
    return _scalar(kind, value, where)


def _record(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(where, value, "a record")
    fields, types_ = {each.name: each for each in dataclasses.fields(kind)}, get_type_hints(kind)
    for name in value:
        if name not in fields:
            raise DataError.unusable(where, f"has no field {_shown(name)}", nearest(str(name), fields))
    optional = {name for name, each in fields.items() if each.default is not dataclasses.MISSING}
    lacking = [name for name in fields if name not in value and name not in optional]
    if lacking:
        raise DataError.unusable(where, f"lacks `{lacking[0]}`")
    return kind(**{name: from_plain(types_[name], value[name], f"{where}.{name}") for name in value})


def _tuple(kinds: Sequence[Any], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _wrong(where, value, "a list")
    if kinds[-1] is Ellipsis:
        kinds = [kinds[0]] * len(value)
    if len(kinds) != len(value):
        raise DataError.unusable(where, f"has {len(value)} parts, not {len(kinds)}")
    return tuple(
        from_plain(kind, each, f"{where}[{i}]") for i, (kind, each) in enumerate(zip(kinds, value, strict=True))
    )


def _one_of(kind: Any, value: Any, where: str) -> Any:
    """Read a word of a fixed list, or what may be missing."""
    choices = [*_choices(kind)]
    if value is None and type(None) in choices:
        return None
    others = [each for each in choices if isinstance(each, type) and each is not type(None)]
    if others:
        return from_plain(others[0], value, where)
    if isinstance(value, str) and value in choices:
        return next(each for each in choices if each == value)
    hint = nearest(value, map(str, choices)) if isinstance(value, str) else f"known: {', '.join(map(str, choices))}"
    raise DataError.unusable(where, f"is {_shown(value)}", hint)


def _choices(kind: Any) -> Sequence[Any]:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return list(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return [choice for each in get_args(kind) for choice in _choices(each)]
    return get_args(kind) if get_origin(kind) is Literal else [kind]


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and value in ("nan", "inf", "-inf"):
        return float(value)
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        names = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
        raise _wrong(where, value, names[kind])
    return value


def _wrong(where: str, value: Any, wanted: str) -> DataError:
    return DataError.unusable(where, f"is {_shown(value)}, not {wanted}")


def _shown(value: Any) -> str:
    """Write a value in few characters, whatever it is."""
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
