"""Read a function's signature once: its ports, its settings, and the parameter of its random key."""

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
from flowgraph.language.traits import By, Corrects, NodeName, Parts, Rows
from flowgraph.language.values import Head, Kind, Model, Record, State, Value, fields


class Settings(BaseModel):
    """The settings of a node or flow, as fields; unknown names and numbers that are not finite are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, protected_namespaces=(), allow_inf_nan=False
    )


@dataclass(frozen=True)
class Signature:
    """A function's parameters, sorted by their use in the graph."""

    name: str
    at: Site
    ports: tuple[Port, ...]
    positional: tuple[str, ...]
    settings: type[BaseModel]
    key: str | None
    returns: tuple[Any, ...]

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object], where: str) -> dict[str, object]:
        """Return the arguments of a call by parameter name.

        `where` is the line of the call, for errors. Raises FlowTypeError for too many or repeated arguments and for a
        missing port that is not optional, and SettingError for an unknown name. Types and missing settings are not
        checked here.
        """
        if len(args) > len(self.positional):
            takes = f"takes {len(self.positional)} values in order ({', '.join(self.positional)}), but got {len(args)}"
            raise FlowTypeError.bad_call(where, self.name, takes, "name the others: `port=value`")
        bound: dict[str, object] = dict(zip(self.positional, args, strict=False))
        settings = self.settings.model_fields
        parameters = [*(port.name for port in self.ports), *settings, *([self.key] if self.key is not None else [])]
        for name, value in kwargs.items():
            if name in bound:
                raise FlowTypeError.bad_call(where, self.name, f"got `{name}` twice")
            if name not in parameters:
                raise SettingError.unknown(where, self.name, name, settings, parameters)
            bound[name] = value
        for port in self.ports:
            if port.name not in bound and not port.optional:
                lacks = f"lacks `{port.name}`, {port.wants()}"
                hint = f"take `{port.name}` as a parameter of the flow that is run, and pass it"
                raise FlowTypeError.bad_call(where, self.name, lacks, hint if port.initial is not None else "")
        return bound

    @property
    def named_by_call(self) -> bool:
        """Return whether the argument `name` names the node, since no port, setting or key has that name."""
        return "name" not in {*(port.name for port in self.ports), *self.settings.model_fields, self.key}

    def label(self, name: object, where: str) -> str:
        """Return the argument `name` of a call; "" if it is not given. Raises FlowTypeError if it cannot be a name."""
        if not isinstance(name, str) or not re.fullmatch(LABEL, name):
            why = f"cannot be named {name!r}"
            raise FlowTypeError.bad_call(where, self.name, why, "a name is letters, digits and `_`, as in `format`")
        return name


LABEL = "([A-Za-z_][A-Za-z0-9_]{0,63})?"
"""The pattern of a name that a call gives its node, or of none."""

Refuse = Callable[[str, str], FlowTypeError]


def read_signature(fn: Callable[..., Any], what: str) -> Signature:
    """Return the signature of a function: its ports, settings, key and results; `what` is "node" or "flow".

    Raises FlowTypeError if the function cannot be one: for example, an annotation is missing, a result is not a value,
    or the default of a setting is not valid.
    """
    at = defined_at(fn) if inspect.isfunction(fn) else call_site()
    owner = str(getattr(fn, "__name__", fn))
    bad = FlowTypeError.bad_node if what == "node" else FlowTypeError.bad_flow

    def refuse(why: str, hint: str = "") -> FlowTypeError:
        return bad(str(at), owner, why, hint)

    if not inspect.isfunction(fn) or inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn):
        raise refuse("must be a plain function", "not a class, a generator or an async function")
    hints = _hints(fn, refuse)
    ports, positional, settings, key = list[Port](), list[str](), dict[str, Any](), None
    for parameter in inspect.signature(fn).parameters.values():
        name, keyword = parameter.name, parameter.kind is inspect.Parameter.KEYWORD_ONLY
        if name not in hints:
            raise refuse(f"`{name}` has no type", f"write `{name}: Type`")
        port = _port(parameter, hints[name], refuse)
        if port is not None:
            ports.append(port)
            positional += [] if keyword else [name]
        elif not keyword:
            why = f"`{name}` takes {type_name(hints[name])}, which is not a value"
            raise refuse(why, "write settings behind `*`")
        elif hints[name] is Key:
            key = name
        elif hints[name] == NodeName:
            _refuse_other_name(parameter, what, refuse)
        else:
            default = parameter.default
            settings[name] = (hints[name], ... if default is inspect.Parameter.empty else default)
    _refuse_out_of_place(ports, key, what, refuse)
    model, result = _settings_model(owner, settings, refuse), hints.get("return")
    returns = get_args(result) if get_origin(result) is tuple else (result,)
    if not returns or any(_value_class(each) is None for each in returns):
        raise refuse("its result is not a value", "annotate the result with a Value, or a tuple of them")
    if len(returns) == 1 and get_origin(result) is tuple:
        raise refuse("returns a tuple of one value", f"return the value: `-> {type_name(returns[0])}`")
    return Signature(owner, at, tuple(ports), tuple(positional), model, key, returns)


def _refuse_other_name(parameter: inspect.Parameter, what: str, refuse: Refuse) -> None:
    if what != "node" or parameter.name != "name" or parameter.default != "":
        raise refuse(f"`{parameter.name}` is a NodeName", 'only a node has one: `name: NodeName = ""`, behind `*`')


def defined_at(fn: Callable[..., Any]) -> Site:
    """Return the file and first line, decorators included, of a function's definition; wrappers are looked through."""
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


def _refuse_out_of_place(ports: Sequence[Port], key: str | None, what: str, refuse: Refuse) -> None:
    """Refuse a default of a node's port, and what only a node has, in a flow."""
    if what == "node":
        for port in ports:
            if port.initial is not None:
                hint = "state starts from the default of a flow's parameter"
                raise refuse(f"`{port.name}`: a port cannot have a default", hint)
        return
    if key is not None:
        hint = "each node that needs random numbers has a key of its own"
        raise refuse(f"`{key}` is a Key, but a flow itself uses no random numbers", hint)
    for port in ports:
        rows, corrects = port.other_rows or port.no_rows, port.corrects is not None
        traits = {"Parts": port.parts, "By": port.by, "Rows": rows, "Corrects": corrects}
        if trait := next((name for name, value in traits.items() if value), ""):
            raise refuse(f"`{port.name}` declares {trait}, which only a port of a node can", "leave it out")
        if port.region:
            raise refuse(f"`{port.name}` is a function, and a flow takes values", "define the loss inside the flow")
        if port.optional:
            raise refuse(f"`{port.name}` may be None, but a flow needs all its values", "write two flows")


def _settings_model(owner: str, settings: Mapping[str, Any], refuse: Refuse) -> type[BaseModel]:
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
        fault = next((fault for fault in error.errors() if fault["type"] != "missing"), None)
        if fault is not None:
            name = str(fault["loc"][0])
            raise refuse(f"the default {name}={settings[name][1]!r}: {_reason(fault['msg'])}", "") from None
    for name, (_, default) in settings.items():
        if isinstance(default, float | list | tuple | dict) and (why := unstorable_reason(default)):
            raise refuse(f"the default {name}={default!r}: {why}", "")
    return model


def _value_class(hint: Any) -> type[Value] | None:
    bound = getattr(hint, "__bound__", None) if isinstance(hint, TypeVar) else hint
    return bound if isinstance(bound, type) and issubclass(bound, Value) else None


def _port(parameter: inspect.Parameter, hint: Any, refuse: Refuse) -> Port | None:
    """Return the port of a parameter, or None for a setting or key; refuse one that mixes values with other types."""
    name, takes = parameter.name, type_name(hint)
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise refuse(f"`{name}` takes any number of arguments", "name each port and each setting")
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise refuse(f"`{name}` cannot be given by name", "remove `/`: a graph passes every value by its name")
    traits: Sequence[Any] = ()
    if get_origin(hint) is Annotated:
        hint, *traits = get_args(hint)
    arms = get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    values = [arm for arm in arms if _value_class(arm) is not None]
    if values:
        optional = type(None) in arms
        if len(arms) - optional != 1:
            raise refuse(f"`{name}` takes {takes}: a port has one type", "name the class that they share")
        port = _with_traits(Port(name, values[0], optional=optional), traits, refuse)
        _refuse_head(port, refuse)
        return _with_default(port, parameter.default, refuse)
    if get_origin(hint) is collections.abc.Callable and _mentions_value(hint):
        arguments, result = get_args(hint)
        model = _value_class(arguments[0]) if isinstance(arguments, list) and len(arguments) == 1 else None
        loss = _value_class(result)
        if model is None or loss is None or not (issubclass(model, Model) and issubclass(loss, Loss)):
            raise refuse(f"`{name}` takes {takes}: a region is a function of one model that returns a Loss", "")
        port = Port(name, arguments[0], region=True, region_returns=loss)
        _refuse_head(port, refuse)
        return port
    if _mentions_value(hint):
        raise refuse(f"`{name}` takes {takes}: a port holds one value", "take the values one by one, or make a Record")
    return None


def _with_default(port: Port, default: object, refuse: Refuse) -> Port:
    """Return a port with the data that its state starts from; refuse any other default, and data that no file holds."""
    if default is (None if port.optional else inspect.Parameter.empty):
        return port
    if port.optional:
        raise refuse(f"`{port.name}`: a port that may be None has the default None", "")
    kind = port.value_type
    if not is_plain_state(kind):
        raise refuse(f"`{port.name}`: a port cannot have a default", "")
    if type(default) is not kind:
        got = "None" if default is None else with_article(type(default).__name__)
        why = f"`{port.name}` takes {with_article(kind.__name__)}, and its default is {got}"
        raise refuse(why, f"write `{port.name}: {kind.__name__} = {kind.__name__}(…)`")
    why = initial_value_fault(kind, default.data)
    if why:
        raise refuse(f"the default of `{port.name}`: {why}", "state starts from a number, a text, or a list of them")
    return replace(port, initial=default.data)


def is_plain_state(kind: type[Value]) -> TypeGuard[type[State]]:
    """Return whether a type is state other than a model, so that a flow's parameter of this type may have a default."""
    return issubclass(kind, State) and not issubclass(kind, Model)


def initial_value_fault(kind: type[State], data: object) -> str:
    """Return why state of type `kind` cannot start from `data`; "" if it can.

    The data must be of the type's dtype, if it has one, or a list or a dict, and a file must be able to store it. None
    is refused.

    >>> initial_value_fault(State, [1, "a"]), initial_value_fault(State, float("nan"))
    ('', 'a file cannot hold nan')
    """
    if data is None:
        return "it has no initial value"
    types = _STATE_TYPES.get(kind.dtype.rstrip("0123456789"), (type(data),))
    if not isinstance(data, list | dict) and type(data) not in types:
        return f"{kind.__name__} is {kind.dtype}, not {type(data).__name__}"
    return _not_storable(data)


_STATE_TYPES: Mapping[str, tuple[type, ...]] = {"float": (float, int), "int": (int,), "bool": (bool,), "text": (str,)}


def _not_storable(data: object) -> str:
    if type(data) is list:
        return next((why for entry in cast("list[object]", data) if (why := _not_storable(entry))), "")
    if type(data) is dict:
        entries = cast("dict[object, object]", data)
        keys = "" if all(type(key) is str for key in entries) else "its keys must be strings"
        return next((why for entry in entries.values() if (why := _not_storable(entry))), keys)
    if type(data) is float and not math.isfinite(data):
        return f"a file cannot hold {data}"
    plain = data is None or type(data) in (bool, int, float, str)
    return unstorable_reason(data) if plain else f"a file cannot hold {with_article(type(data).__name__)}"


def _refuse_head(port: Port, refuse: Refuse) -> None:
    kind, heads = port.value_type, get_args(Head)
    if issubclass(kind, Model) and kind.head not in heads:
        why = f"`{port.name}` takes {with_article(kind.__name__)}, whose head is {kind.head!r}"
        raise refuse(why, nearest(str(kind.head), heads))


def _with_traits(port: Port, annotations: Sequence[Any], refuse: Refuse) -> Port:
    seen = set[type]()
    for trait in annotations:
        if isinstance(trait, type) and issubclass(trait, Trait):
            hint = f"write {trait.__name__}{_EXAMPLES[trait]}"
            raise refuse(f"`{port.name}` declares {trait.__name__} without a value", hint)
        if not isinstance(trait, Trait):
            continue
        if type(trait) in seen:
            raise refuse(f"`{port.name}` declares {type(trait).__name__} twice", "")
        seen.add(type(trait))
        if isinstance(trait, Parts):
            known = fields(port.value_type) if issubclass(port.value_type, Record) else {}
            for name in trait.names:
                if name not in known:
                    why = f"`{port.name}` has no part `{name}`: it takes {with_article(port.value_type.__name__)}"
                    raise refuse(why, nearest(str(name), known))
            port = replace(port, parts=trait.names)
        elif isinstance(trait, By):
            port = replace(port, by=trait)
        elif isinstance(trait, Kind):
            port = replace(port, kind=trait)
        elif isinstance(trait, Corrects):
            port = replace(port, corrects=str(trait.port))
        elif trait is Rows.NONE and not is_plain_state(port.value_type):
            raise refuse(f"`{port.name}` declares Rows.NONE, which only a port of a state can", "leave it out")
        else:
            port = replace(port, other_rows=trait is Rows.OTHER, no_rows=trait is Rows.NONE)
    return port


Trait = Parts | By | Rows | Kind | Corrects
_EXAMPLES: Mapping[type, str] = {Parts: '("mask")', By: ".TRAINED", Rows: ".OTHER", Kind: ".ROW", Corrects: '("old")'}


def _mentions_value(hint: Any) -> bool:
    """Return whether a type contains a value type; `type[Mask]` does not."""
    if get_origin(hint) is type:
        return False
    inside = hint if isinstance(hint, list) else get_args(hint)
    return _value_class(hint) is not None or any(map(_mentions_value, inside))


def _reason(message: str) -> str:
    why = message.removeprefix("Input ").removeprefix("Value error, ")
    return why[:1].lower() + why[1:]


def type_name(hint: Any) -> str:
    """Return a type as it is written in source code, without module names; of a TypeVar, the name of its bound.

    >>> type_name(int), type_name(int | None), type_name(list[Value])
    ('int', 'int | None', 'list[Value]')
    """
    if get_args(hint):
        return re.sub(r"[\w.]+\.", "", str(hint))
    bound = getattr(hint, "__bound__", None) or hint
    return str(getattr(bound, "__name__", None) or hint)


def make_settings(model: type[BaseModel], values: Mapping[str, object], owner: str, where: str) -> BaseModel:
    """Return `values` as a settings object, checked against the types and ranges of `model`.

    `owner` is the node or flow that has the settings, and `where` the origin of the values, for errors. Raises
    SettingError for an unknown name, with the nearest one, for a value that `model` refuses, and for one that no file
    can store; FlowTypeError for a missing value.
    """
    for name in values:
        if name not in model.model_fields:
            raise SettingError.unknown(where, owner, name, model.model_fields)
    try:
        settings = model.model_validate(dict(values))
    except ValidationError as error:
        raise _refused(dict(error.errors()[0]), values, owner, where) from None
    for name, value in values.items():
        if why := unstorable_reason(getattr(settings, name)):
            raise SettingError.refused(where, f"{owner}.{name}", value, why)
    return settings


def unstorable_reason(value: object) -> str:
    """Return why a file cannot store a setting's value unchanged; "" if it can.

    A Python function or class is stored by its name, so it may not be a lambda, local, or of the standard library; nor
    may it be an entry of a list or a dict.

    >>> unstorable_reason([1, "a", None]), unstorable_reason(2**80)
    ('', 'a whole number has at most 64 bits')
    """
    if isinstance(value, str):
        return "" if value.isprintable() or value.encode(errors="replace").decode() == value else "UTF-8 cannot hold it"
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, enum.Enum):
        return unstorable_reason(value.value)
    if isinstance(value, float):
        return "" if math.isfinite(value) else "should be a finite number"
    if isinstance(value, int):
        return "" if abs(value) < 2**63 else "a whole number has at most 64 bits"
    if isinstance(value, dict) and not all(isinstance(name, str) for name in value):
        return "its keys must be strings"
    if isinstance(value, list | tuple | dict):
        entries = list[object](value.values() if isinstance(value, dict) else value)
        if any(map(callable, entries)):
            return "a function or class must be a setting of its own, not an entry of a list or dict"
        return next((why for entry in entries if (why := unstorable_reason(entry))), "")
    if inspect.isfunction(value) or inspect.isclass(value):
        named = "<" not in value.__qualname__ and value.__module__.partition(".")[0] not in sys.stdlib_module_names
        return "" if named else "a worker finds a function by its name, at the top level of a file of yours"
    return "a setting is a number, a text, a list or a dict of them, or a function of a file"


def setting_faults(
    model: type[BaseModel], values: Mapping[str, object], owner: str, where: str
) -> list[SettingError | FlowTypeError]:
    """Return an error for each unknown or invalid setting in `values`, and for each that is missing; [] if none.

    The arguments are those of `make_settings`. Values that no file can store are not reported here.
    """
    fields = model.model_fields
    faults: list[SettingError | FlowTypeError] = [
        SettingError.unknown(where, owner, name, fields) for name in values if name not in fields
    ]
    try:
        model.model_validate({name: value for name, value in values.items() if name in fields})
    except ValidationError as error:
        faults += [_refused(dict(fault), values, owner, where) for fault in error.errors()]
    return faults


def _refused(
    fault: Mapping[str, Any], values: Mapping[str, object], owner: str, where: str
) -> SettingError | FlowTypeError:
    name = str(fault["loc"][0]) if fault["loc"] else ""
    if fault["type"] == "missing":
        return FlowTypeError.bad_call(where, owner, f"lacks the setting `{name}`")
    return SettingError.refused(where, f"{owner}.{name}", values.get(name), _reason(fault["msg"]))
