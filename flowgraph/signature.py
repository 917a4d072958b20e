"""Read a function's signature once: which parameters are ports, which are settings, which takes the key."""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from flowgraph.errors import FlowTypeError, SettingError
from flowgraph.graph import Port, Site
from flowgraph.keys import Key
from flowgraph.values import Value


class Settings(BaseModel):
    """The settings of a node or flow: one field a keyword-only parameter; unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, validate_default=False)


@dataclass(frozen=True)
class Signature:
    """A function's parameters, sorted by what they are to the graph."""

    name: str
    at: Site
    ports: tuple[Port, ...]
    positional: tuple[str, ...]
    settings: type[BaseModel]
    key: str | None
    returns: tuple[Any, ...]

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object], where: str) -> dict[str, object]:
        """Match arguments to names as Python does, with errors that name the nearest parameter."""
        if len(args) > len(self.positional):
            takes = f"takes {len(self.positional)} values in order ({', '.join(self.positional)}), but got {len(args)}"
            raise FlowTypeError.bad_call(where, self.name, takes, "name the others: `port=value`")
        bound: dict[str, object] = dict(zip(self.positional, args, strict=False))
        known = [port.name for port in self.ports] + list(self.settings.model_fields) + [self.key] * (self.key is not None)
        for name, value in kwargs.items():
            if name in bound:
                raise FlowTypeError.bad_call(where, self.name, f"got `{name}` twice")
            if name not in known:
                raise SettingError.unknown(where, self.name, name, [str(each) for each in known])
            bound[name] = value
        for port in self.ports:
            if port.name not in bound and not port.optional:
                raise FlowTypeError.bad_call(where, self.name, f"lacks `{port.name}`, a {type_name(port.type)}")
        return bound


def read_signature(fn: Callable[..., Any], what: str) -> Signature:
    """Sort the parameters of `fn`; refuse what a graph cannot hold. `what` is "node" or "flow", for errors."""
    at = Site(fn.__code__.co_filename, fn.__code__.co_firstlineno)
    refuse = FlowTypeError.bad_node if what == "node" else FlowTypeError.bad_flow
    try:
        hints = typing.get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise refuse(str(at), fn.__name__, f"an annotation is not defined: {error}") from None
    ports, positional, settings, key = list[Port](), list[str](), dict[str, Any](), None
    for name, parameter in inspect.signature(fn).parameters.items():
        if name not in hints:
            raise refuse(str(at), fn.__name__, f"`{name}` has no type", f"write `{name}: Type`")
        port = _port(name, hints[name])
        keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        if port is not None:
            ports.append(port)
            positional += [] if keyword else [name]
        elif not keyword:
            why = f"`{name}` takes {type_name(hints[name])}, which is no value"
            raise refuse(str(at), fn.__name__, why, "a setting stands behind `*`")
        elif hints[name] is Key:
            key = name
        else:
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            settings[name] = (hints[name], default)
    model = create_model(f"{fn.__name__}.settings", __base__=Settings, **settings)
    returns = hints.get("return")
    outputs = get_args(returns) if get_origin(returns) is tuple else (returns,)
    if not outputs or any(_value_class(each) is None for each in outputs):
        raise refuse(str(at), fn.__name__, "its result is no value", "annotate the result with a Value, or a tuple of them")
    return Signature(fn.__name__, at, tuple(ports), tuple(positional), model, key, outputs)


def _value_class(hint: Any) -> type[Value] | None:
    bound = getattr(hint, "__bound__", None) if isinstance(hint, TypeVar) else hint
    return bound if isinstance(bound, type) and issubclass(bound, Value) else None


def _port(name: str, hint: Any) -> Port | None:
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    arms = get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    values = [arm for arm in arms if _value_class(arm) is not None]
    if values:
        return Port(name, values[0], optional=type(None) in arms)
    if get_origin(hint) is collections.abc.Callable and isinstance(get_args(hint)[0], list):
        takes, gives = get_args(hint)
        if takes and _value_class(takes[0]) is not None and _value_class(gives) is not None:
            return Port(name, takes[0], region=True, region_returns=_value_class(gives))
    return None


def type_name(hint: Any) -> str:
    """Give a type as a person writes it.

    >>> type_name(int), type_name(int | None)
    ('int', 'int | None')
    """
    bound = getattr(hint, "__bound__", None)
    return str(getattr(bound or hint, "__name__", None) or hint) if not get_args(hint) else str(hint)


def make_settings(model: type[BaseModel], values: Mapping[str, object], owner: str, where: str) -> BaseModel:
    """Check settings against their declared types and ranges.

    Raises `SettingError` with the setting, the value and what is allowed, or the nearest name.
    """
    for name in values:
        if name not in model.model_fields:
            raise SettingError.unknown(where, owner, name, model.model_fields)
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "missing":
            raise FlowTypeError.bad_call(where, owner, f"lacks the setting `{name}`") from None
        why = str(first["msg"]).removeprefix("Input ").removeprefix("Value error, ")
        raise SettingError.refused(where, f"{owner}.{name}", values.get(name), why[0].lower() + why[1:]) from None
