"""Read a function's signature once: which parameters are ports, which are settings, which takes the key."""

from __future__ import annotations

import collections.abc
import enum
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeGuard, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, PydanticUserError, ValidationError, create_model

from flowgraph.errors import FlowTypeError, SettingError, nearest, with_article
from flowgraph.language.call_site import Site, call_site
from flowgraph.language.graph import Port
from flowgraph.language.keys import Key
from flowgraph.language.loss import Loss
from flowgraph.language.traits import By, Corrects, Parts, Rows
from flowgraph.language.values import Head, Kind, Model, Record, State, Value, fields


class Settings(BaseModel):
    """The settings of a node or flow: a field each. Unknown names and numbers that are not finite are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, protected_namespaces=(), allow_inf_nan=False
    )


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
        known = (
            [port.name for port in self.ports] + list(self.settings.model_fields) + [self.key] * (self.key is not None)
        )
        for name, value in kwargs.items():
            if name in bound:
                raise FlowTypeError.bad_call(where, self.name, f"got `{name}` twice")
            if name not in known:
                settings = list(self.settings.model_fields)
                raise SettingError.unknown(where, self.name, name, settings, [str(each) for each in known])
            bound[name] = value
        for port in self.ports:
            if port.name not in bound and not port.optional:
                lacks = f"lacks `{port.name}`, {port.wants()}"
                hint = f"the flow that is run carries state: take `{port.name}` there as a parameter, and give it"
                raise FlowTypeError.bad_call(where, self.name, lacks, hint if port.initial is not None else "")
        return bound


Refuse = Callable[[str, str], FlowTypeError]


def read_signature(fn: Callable[..., Any], what: str) -> Signature:
    """Sort the parameters of `fn`; refuse what a graph cannot hold. `what` is "node" or "flow", for errors."""
    plain = inspect.isfunction(fn) and not (inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn))
    at = defined_at(fn) if inspect.isfunction(fn) else call_site()
    name = str(getattr(fn, "__name__", fn))
    bad = FlowTypeError.bad_node if what == "node" else FlowTypeError.bad_flow

    def refuse(why: str, hint: str = "") -> FlowTypeError:
        return bad(str(at), name, why, hint)

    if not plain:
        raise refuse("is no plain function", "a class, a generator or an async function cannot be one")
    hints = _hints(fn, refuse)
    ports, positional, settings, key = list[Port](), list[str](), dict[str, Any](), None
    for each in inspect.signature(fn).parameters.values():
        if each.name not in hints:
            raise refuse(f"`{each.name}` has no type", f"write `{each.name}: Type`")
        port = _port(each, hints[each.name], refuse)
        keyword = each.kind is inspect.Parameter.KEYWORD_ONLY
        if port is not None:
            ports.append(port)
            positional += [] if keyword else [each.name]
        elif not keyword:
            raise refuse(
                f"`{each.name}` takes {type_name(hints[each.name])}, which is no value", "a setting stands behind `*`"
            )
        elif hints[each.name] is Key:
            key = each.name
        else:
            settings[each.name] = (hints[each.name], ... if each.default is inspect.Parameter.empty else each.default)
    if what == "flow":
        _refuse_in_flow(ports, key, refuse)
    for port in ports if what == "node" else ():
        if port.initial is not None:
            raise refuse(f"`{port.name}`: a port has no default", "state starts from the default of a flow's parameter")
    model = _settings_model(name, settings, refuse)
    return Signature(name, at, tuple(ports), tuple(positional), model, key, _returns(hints.get("return"), refuse))


def defined_at(fn: Callable[..., Any]) -> Site:
    """Give the line where a function is written, behind what decorators put around it."""
    code = inspect.unwrap(fn).__code__
    return Site(code.co_filename, code.co_firstlineno)


def _hints(fn: Callable[..., Any], refuse: Refuse) -> dict[str, Any]:
    try:
        return typing.get_type_hints(fn, include_extras=True)
    except NameError as error:
        hint = "types are looked up at the top level of the file"
        raise refuse(f"an annotation is not defined: {error}", hint) from None
    except Exception as error:  # noqa: BLE001 - an annotation is any expression of the user's
        raise refuse(f"an annotation cannot be read: {error}", "") from None


def _refuse_in_flow(ports: Sequence[Port], key: str | None, refuse: Refuse) -> None:
    """Refuse what only a node can take."""
    if key is not None:
        raise refuse(f"`{key}` is a Key, and a flow draws nothing itself", "each node that draws has a key of its own")
    for port in ports:
        asks = {
            "Parts": port.parts,
            "By": port.by,
            "Rows": port.other_rows or port.no_rows,
            "Corrects": port.corrects is not None,
        }
        said = next((name for name, asked in asks.items() if asked), "")
        if said:
            raise refuse(f"`{port.name}` says {said}, which only a node's port does", "leave it out")
        if port.region:
            raise refuse(f"`{port.name}` is a function, and a flow takes values", "define the loss inside the flow")
        if port.optional:
            raise refuse(f"`{port.name}` may be None, but a flow's values are always there", "write two flows")


def _returns(hint: Any, refuse: Refuse) -> tuple[Any, ...]:
    outputs = get_args(hint) if get_origin(hint) is tuple else (hint,)
    if not outputs or any(_value_class(each) is None for each in outputs):
        raise refuse("its result is no value", "annotate the result with a Value, or a tuple of them")
    if len(outputs) == 1 and get_origin(hint) is tuple:
        raise refuse("returns a tuple of one value", f"return the value: `-> {type_name(outputs[0])}`")
    return outputs


def _settings_model(owner: str, settings: Mapping[str, Any], refuse: Refuse) -> type[BaseModel]:
    """Make the model of a function's settings; a default that its own type refuses is an error here already."""
    for name in settings:
        if name.startswith("_") or hasattr(BaseModel, name):
            raise refuse(f"no setting can be named `{name}`", "pydantic's models use that name themselves")
    try:
        model = create_model(f"{owner}.settings", __base__=Settings, **settings)
    except (PydanticUserError, TypeError, ValueError) as error:
        raise refuse(f"its settings cannot be checked: {str(error).splitlines()[0]}", "") from None
    try:
        model.model_validate({name: default for name, (_, default) in settings.items() if default is not ...})
    except ValidationError as error:
        wrong = next((each for each in error.errors() if each["type"] != "missing"), None)
        if wrong is not None:
            name = str(wrong["loc"][0])
            raise refuse(f"the default {name}={settings[name][1]!r}: {_reason(wrong['msg'])}", "") from None
    for name, (_, default) in settings.items():
        if isinstance(default, float | list | tuple | dict) and (why := not_plain(default)):
            raise refuse(f"the default {name}={default!r}: {why}", "")
    return model


def _value_class(hint: Any) -> type[Value] | None:
    bound = getattr(hint, "__bound__", None) if isinstance(hint, TypeVar) else hint
    return bound if isinstance(bound, type) and issubclass(bound, Value) else None


def _port(parameter: inspect.Parameter, hint: Any, refuse: Refuse) -> Port | None:
    """Give the port that a parameter is, or None if it is none; refuse what only looks like one."""
    name, takes = parameter.name, type_name(hint)
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise refuse(f"`{name}` takes any number of arguments", "name each port and each setting")
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise refuse(f"`{name}` cannot be given by name", "write no `/`: a graph gives every value by its name")
    said: Sequence[Any] = ()
    if get_origin(hint) is Annotated:
        hint, *said = get_args(hint)
    arms = get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    values = [arm for arm in arms if _value_class(arm) is not None]
    if values:
        optional = type(None) in arms
        if len(arms) - optional != 1:
            raise refuse(f"`{name}` takes {takes}: a port has one type", "name the class that they share")
        port = _with_traits(Port(name, values[0], optional=optional), said, refuse)
        _refuse_head(port, refuse)
        return _with_default(port, parameter.default, refuse)
    if get_origin(hint) is collections.abc.Callable and _mentions_value(hint):
        takes_a, gives = get_args(hint)
        model = _value_class(takes_a[0]) if isinstance(takes_a, list) and len(takes_a) == 1 else None
        loss = _value_class(gives)
        if model is None or loss is None or not (issubclass(model, Model) and issubclass(loss, Loss)):
            raise refuse(f"`{name}` takes {takes}: a region is a function of one model that gives a Loss", "")
        port = Port(name, takes_a[0], region=True, region_returns=loss)
        _refuse_head(port, refuse)
        return port
    if _mentions_value(hint):
        raise refuse(f"`{name}` takes {takes}: a port holds one value", "take the values one by one, or make a Record")
    return None


def _with_default(port: Port, default: object, refuse: Refuse) -> Port:
    """Add what state starts from; refuse any other default, and one that a file would not give back as it was."""
    if default is (None if port.optional else inspect.Parameter.empty):
        return port
    if port.optional:
        raise refuse(f"`{port.name}`: a port that may be None has the default None", "")
    kind = port.value_type
    if not is_plain_state(kind):
        raise refuse(f"`{port.name}`: a port has no default", "")
    if type(default) is not kind:
        got = "None" if default is None else with_article(type(default).__name__)
        why = f"`{port.name}` takes {with_article(kind.__name__)}, and its default is {got}"
        raise refuse(why, f"write `{port.name}: {kind.__name__} = {kind.__name__}(…)`")
    why = bad_start(kind, default.data)
    if why:
        raise refuse(f"the default of `{port.name}`: {why}", "state starts from a number, a text, or a list of them")
    return replace(port, initial=default.data)


def is_plain_state(kind: type[Value]) -> TypeGuard[type[State]]:
    """Say whether values of this type are carried and are no models: what can start from a default."""
    return issubclass(kind, State) and not issubclass(kind, Model)


def bad_start(kind: type[State], data: object) -> str:
    """Say why state of a type cannot start from data; nothing if it can, and a file gives it back as it was.

    >>> bad_start(State, [1, "a"]), bad_start(State, float("nan"))
    ('', 'a file cannot hold nan')
    """
    if data is None:
        return "it starts from nothing"
    wanted = _ENTRIES.get(kind.dtype.rstrip("0123456789"), (type(data),))
    if not isinstance(data, list | dict) and type(data) not in wanted:
        return f"{kind.__name__} is {kind.dtype}, not {type(data).__name__}"
    return _not_kept(data)


_ENTRIES: Mapping[str, tuple[type, ...]] = {"float": (float, int), "int": (int,), "bool": (bool,), "text": (str,)}


def _not_kept(data: object) -> str:
    """Say what of plain data a file would not give back as it was."""
    if type(data) is list:
        return next((why for each in cast("list[object]", data) if (why := _not_kept(each))), "")
    if type(data) is dict:
        held = cast("dict[object, object]", data)
        keys = "" if all(type(each) is str for each in held) else "its keys are no texts"
        return next((why for each in held.values() if (why := _not_kept(each))), keys)
    if type(data) is float and not math.isfinite(data):
        return f"a file cannot hold {data}"
    kept = data is None or type(data) in (bool, int, float, str)
    return not_plain(data) if kept else f"a file cannot hold {with_article(type(data).__name__)}"


def _refuse_head(port: Port, refuse: Refuse) -> None:
    """Refuse a model whose last layer is none that we know."""
    kind, known = port.value_type, get_args(Head)
    if issubclass(kind, Model) and kind.head not in known:
        why = f"`{port.name}` takes {with_article(kind.__name__)}, whose head is {kind.head!r}"
        raise refuse(why, nearest(str(kind.head), known))


def _with_traits(port: Port, said: Sequence[Any], refuse: Refuse) -> Port:
    """Add what an annotation says of a port beyond its type; refuse what is said twice, and parts it lacks."""
    for each in said:
        if isinstance(each, type) and issubclass(each, Parts | By | Rows | Kind | Corrects):
            raise refuse(f"`{port.name}` says {each.__name__}", f"say which: {each.__name__}{_EXAMPLES[each]}")
    told = [each for each in said if isinstance(each, Parts | By | Rows | Kind | Corrects)]
    kinds = [type(each) for each in told]
    for i, each in enumerate(told):
        if type(each) in kinds[:i]:
            raise refuse(f"`{port.name}` says {type(each).__name__} twice", "")
        if isinstance(each, Parts):
            port = replace(port, parts=_known_parts(port, each, refuse))
        elif isinstance(each, By):
            port = replace(port, by=each)
        elif isinstance(each, Kind):
            port = replace(port, kind=each)
        elif isinstance(each, Corrects):
            port = replace(port, corrects=str(each.port))
        elif each is Rows.NONE and not _is_plain_state(port.value_type):
            raise refuse(f"`{port.name}` says Rows.NONE, which only the port of a state does", "leave it out")
        else:
            port = replace(port, other_rows=each is Rows.OTHER, no_rows=each is Rows.NONE)
    return port


def _is_plain_state(kind: type[Value]) -> bool:
    return issubclass(kind, State) and not issubclass(kind, Model)


_EXAMPLES: Mapping[type, str] = {Parts: '("mask")', By: ".TRAINED", Rows: ".OTHER", Kind: ".ROW", Corrects: '("old")'}


def _known_parts(port: Port, parts: Parts, refuse: Refuse) -> tuple[str, ...]:
    known = fields(port.value_type) if issubclass(port.value_type, Record) else {}
    for name in parts.names:
        if name not in known:
            why = f"`{port.name}` has no part `{name}`: it takes {with_article(port.value_type.__name__)}"
            raise refuse(why, nearest(str(name), known))
    return parts.names


def _mentions_value(hint: Any) -> bool:
    """Say whether a type holds values somewhere inside; the class of a value is none."""
    if get_origin(hint) is type:
        return False
    inside = hint if isinstance(hint, list) else get_args(hint)
    return _value_class(hint) is not None or any(_mentions_value(each) for each in inside)


def _reason(message: str) -> str:
    why = message.removeprefix("Input ").removeprefix("Value error, ")
    return why[:1].lower() + why[1:]


def type_name(hint: Any) -> str:
    """Give a type as a person writes it.

    >>> type_name(int), type_name(int | None), type_name(list[Value])
    ('int', 'int | None', 'list[Value]')
    """
    bound = getattr(hint, "__bound__", None)
    return (
        str(getattr(bound or hint, "__name__", None) or hint)
        if not get_args(hint)
        else re.sub(r"[\w.]+\.", "", str(hint))
    )


def make_settings(model: type[BaseModel], values: Mapping[str, object], owner: str, where: str) -> BaseModel:
    """Check settings against their declared types and ranges.

    Raises `SettingError` with the setting, the value and what is allowed, or the nearest name.
    """
    unknown = [name for name in values if name not in model.model_fields]
    if unknown:
        raise SettingError.unknown(where, owner, unknown[0], model.model_fields)
    try:
        settings = model.model_validate(dict(values))
    except ValidationError as error:
        raise _refused(dict(error.errors()[0]), values, owner, where) from None
    for name in values:
        why = not_plain(getattr(settings, name))
        if why:
            raise SettingError.refused(where, f"{owner}.{name}", values[name], why)
    return settings


def not_plain(value: object) -> str:
    """Say why a setting cannot be written into a file and read back as it was; nothing if it can.

    >>> not_plain([1, "a", None]), not_plain(2**80)
    ('', 'a whole number has at most 64 bits')
    """
    if isinstance(value, str):
        return "" if value.isprintable() or value.encode(errors="replace").decode() == value else "UTF-8 cannot hold it"
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, enum.Enum):
        return not_plain(value.value)
    if isinstance(value, float):
        return "" if math.isfinite(value) else "should be a finite number"
    if isinstance(value, int):
        return "" if abs(value) < 2**63 else "a whole number has at most 64 bits"
    if isinstance(value, list | tuple):
        return next((why for each in value if (why := not_plain(each))), "")
    if isinstance(value, dict):
        texts = all(isinstance(name, str) for name in value)
        return (
            next((why for each in value.values() if (why := not_plain(each))), "") if texts else "its keys are no texts"
        )
    if inspect.isfunction(value) or inspect.isclass(value):
        named = "<" not in value.__qualname__ and value.__module__.partition(".")[0] not in sys.stdlib_module_names
        return "" if named else "a worker finds a function by its name, at the top level of a file of yours"
    return "a setting is a number, a text, a list or a dict of them, or a function of a file"


def setting_faults(
    model: type[BaseModel], values: Mapping[str, object], owner: str, where: str
) -> list[SettingError | FlowTypeError]:
    """Give every fault that `make_settings` would find, one after the other."""
    known = {name: value for name, value in values.items() if name in model.model_fields}
    faults: list[SettingError | FlowTypeError] = [
        SettingError.unknown(where, owner, name, model.model_fields) for name in values if name not in known
    ]
    try:
        model.model_validate(known)
    except ValidationError as error:
        faults += [_refused(dict(each), values, owner, where) for each in error.errors()]
    return faults


def _refused(
    fault: Mapping[str, Any], values: Mapping[str, object], owner: str, where: str
) -> SettingError | FlowTypeError:
    name = str(fault["loc"][0]) if fault["loc"] else ""
    if fault["type"] == "missing":
        return FlowTypeError.bad_call(where, owner, f"lacks the setting `{name}`")
    return SettingError.refused(where, f"{owner}.{name}", values.get(name), _reason(fault["msg"]))
