"""The tools of an environment: its public methods, their JSON schemas, and calls of them with checked arguments.

A tool's schema comes from its signature and docstring. The process of an environment reads it; nothing here runs a
model or renders a chat.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

OWN_METHODS = ("reset", "reply", "reward", "turn_reward")
"""The methods of an environment that are not tools."""

_PARAMETER = re.compile(r"^\s*(?:`?(?P<name>\w+)`?)\s*(?:\([^)]*\))?:\s*(?P<about>\S.*)$")


class NotATool(ValueError):
    """A method that cannot be a tool, or a class that cannot be an environment; the text says why."""


class BadArguments(ValueError):
    """Arguments of a call that the tool does not take; the text says which, for the model."""


@dataclass(frozen=True)
class Tool:
    """A method as a tool: its name, its schema in OpenAI's form, and the model that checks its arguments."""

    name: str
    schema: Mapping[str, Any]
    arguments: type[BaseModel]

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call, converted to the annotated types; raise BadArguments if they do not fit."""
        try:
            model = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            faults = error.errors(include_url=False, include_input=False)
            texts = [f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}" for fault in faults[:3]]
            raise BadArguments("; ".join(texts)) from None
        return {name: getattr(model, name) for name in model.model_fields_set}


def tools_of(environment: type) -> dict[str, Tool]:
    """Return the tools of an environment by name: its public methods other than `reset`, `reply` and the rewards.

    Raises NotATool for a class without `reset`, and for a method without types or with parameters that cannot be given
    by name.
    """
    if not callable(getattr(environment, "reset", None)):
        raise NotATool(f"`{environment.__name__}` has no method `reset(self, row)`")
    methods = {
        name: method
        for cls in reversed(environment.__mro__)
        for name, method in vars(cls).items()
        if cls is not object and inspect.isfunction(method) and not name.startswith("_") and name not in OWN_METHODS
    }
    return {name: tool_of(name, method) for name, method in methods.items()}


def tool_of(name: str, method: Callable[..., Any]) -> Tool:
    """Return the tool of a method, whose first parameter is `self`; raise NotATool if it cannot be one.

    >>> def add(self, a: int, b: int = 1) -> int:
    ...     '''Return the sum.'''
    ...     return a + b
    >>> tool_of("add", add).schema["function"]["parameters"]["required"]
    ['a']
    """
    try:
        hints = typing.get_type_hints(method, include_extras=True)
    except Exception as error:  # noqa: BLE001 - an annotation is any expression of the user's
        raise NotATool(f"the tool `{name}`: an annotation cannot be read: {error}") from None
    fields, about, documented = dict[str, Any](), *_documentation(inspect.getdoc(method) or "")
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise NotATool(f"the tool `{name}`: `{parameter.name}` cannot be given by name")
        if parameter.name not in hints:
            raise NotATool(f"the tool `{name}`: `{parameter.name}` has no type")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    try:
        config = ConfigDict(extra="forbid", protected_namespaces=())
        arguments = create_model(name, __config__=config, **fields)
        parameters = arguments.model_json_schema()
    except Exception as error:  # noqa: BLE001 - pydantic raises in many ways for types that it cannot check
        raise NotATool(f"the tool `{name}`: its arguments cannot be checked: {str(error).splitlines()[0]}") from None
    for parameter_name, schema in parameters.get("properties", {}).items():
        schema.pop("title", None)
        if parameter_name in documented:
            schema["description"] = documented[parameter_name]
    parameters = {key: value for key, value in parameters.items() if key not in ("title", "additionalProperties")}
    function = {"name": name, "description": about, "parameters": {"properties": {}, **parameters}}
    return Tool(name, {"type": "function", "function": function}, arguments)


def _documentation(text: str) -> tuple[str, dict[str, str]]:
    """Return the description before a docstring's sections, and what a section `Args:` says of each parameter."""
    about, _, sections = text.partition("\nArgs:")
    about = re.split(r"\n(?:Returns|Raises|Examples?):", about)[0]
    lines = re.split(r"\n(?:Returns|Raises|Examples?):", sections)[0].splitlines()
    found = [match for line in lines if (match := _PARAMETER.match(line))]
    return " ".join(about.split()), {match["name"]: match["about"].strip() for match in found}
