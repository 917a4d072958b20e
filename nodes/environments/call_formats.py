"""The formats in which models write calls of tools: by name, how each is read, and how it is explained to a model.

A model's text is not trusted. Reading it never raises: what is not a call, or cannot be read as one, is no call, or a
call whose `fault` says why; the fault is then told to the model as the result of the call.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_CALLS = 16  # of one turn; the rest is not read
MAX_CHARACTERS = 65_536  # of a turn that is searched for calls
PYTHON_CHARACTERS = 4_096  # of a call in Python's syntax
MAX_DEPTH = 32  # of brackets: deeper ones exhaust a parser's stack


@dataclass(frozen=True)
class ToolCall:
    """A call that a model wrote: the tool's name and the arguments by name, or a `fault` for the model to read."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    fault: str = ""


Schemas = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class CallFormat:
    """A format of calls: `read` returns the calls in a turn's text, `explain` the text that tells a model of its tools.

    `native` formats are those that chat templates explain; `explain` is used where a template does not. `result` wraps
    the result of a tool for models without a role for it.
    """

    read: Callable[[str, Schemas], list[ToolCall]]
    explain: Callable[[Schemas], str]
    result: str = "<tool_response>\n{text}\n</tool_response>"
    native: bool = False


def read_calls(name: str, text: str, tools: Schemas) -> list[ToolCall]:
    """Return the calls in a turn of a model, in the format `name`, in order; at most 16. Never raises."""
    if len(text) > MAX_CHARACTERS:
        return [ToolCall("", fault=f"a turn with calls has at most {MAX_CHARACTERS} characters")]
    try:
        return CALL_FORMATS[name].read(text, tools)[:MAX_CALLS]
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError, AttributeError) as error:
        return [ToolCall("", fault=f"the call cannot be read: {type(error).__name__}")]


def only_argument(tools: Schemas) -> tuple[str, str] | None:
    """Return (tool, parameter) if there is one tool and it has one parameter; else None."""
    parameters = list(tools[0]["function"]["parameters"]["properties"]) if len(tools) == 1 else []
    return (str(tools[0]["function"]["name"]), str(parameters[0])) if len(parameters) == 1 else None


# --------------------------------------------------------------------------------------------------- readers


def _too_deep(text: str) -> bool:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest > MAX_DEPTH


def _json_call(text: str) -> ToolCall:
    """Return the call that a JSON object describes: a `name`, and `arguments` or `parameters`."""
    if _too_deep(text):
        return ToolCall("", fault="the call is nested too deeply")
    try:
        return _call_of(json.loads(text))
    except ValueError as error:
        return ToolCall("", fault=f"the call is not valid JSON: {error}")


def _call_of(value: Any) -> ToolCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return ToolCall("", fault='a call is a JSON object with "name" and "arguments"')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str) and not _too_deep(arguments):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    if not isinstance(arguments, dict):
        return ToolCall(value["name"], fault='"arguments" is not a JSON object')
    return ToolCall(value["name"], arguments)


def _hermes(text: str, tools: Schemas) -> list[ToolCall]:
    parts = text.split("<tool_call>")[1 : MAX_CALLS + 1]
    return [_json_call(part.partition("</tool_call>")[0].strip()) for part in parts]


def _llama3(text: str, tools: Schemas) -> list[ToolCall]:
    body = text.partition("<|python_tag|>")[2] or text
    body, calls, decoder = body.strip(), list[ToolCall](), json.JSONDecoder()
    if not body.startswith("{"):
        return []
    if _too_deep(body):
        return [ToolCall("", fault="the call is nested too deeply")]
    while body.startswith("{") and len(calls) < MAX_CALLS:
        try:
            value, end = decoder.raw_decode(body)
        except ValueError as error:
            return [*calls, ToolCall("", fault=f"the call is not valid JSON: {error}")]
        calls.append(_call_of(value))
        body = body[end:].lstrip(" \t\r\n;")
    return calls


_PYTHON_START = re.compile(r"<\|python_(?:tag|start)\|>")


def _python(text: str, tools: Schemas) -> list[ToolCall]:
    """Read `<|python_tag|>search(query="x")`, or a list of calls in brackets that is the whole turn."""
    opened = _PYTHON_START.search(text)
    body = (text[opened.end() :] if opened else text).partition("<|python_end|>")[0].strip()
    if opened is None and not re.match(r"\[\s*[A-Za-z_][\w.]*\s*\(", body):
        return []
    if len(body) > PYTHON_CHARACTERS or _too_deep(body):
        return [ToolCall("", fault=f"a call has at most {PYTHON_CHARACTERS} characters")]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a model's text may have invalid escapes
            tree = ast.parse(body, mode="eval").body
    except (SyntaxError, ValueError) as error:
        return [ToolCall("", fault=f"the call is not valid Python: {error}")]
    parts = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
    return [_python_call(part, tools) for part in parts[:MAX_CALLS]]


def _python_call(part: ast.expr, tools: Schemas) -> ToolCall:
    if not isinstance(part, ast.Call) or not isinstance(part.func, ast.Name | ast.Attribute):
        return ToolCall("", fault="a call has the form name(argument=value)")
    name = ast.unparse(part.func).removesuffix(".call")  # the built-in tools of Llama 3: brave_search.call(…)
    schema = next((tool["function"] for tool in tools if tool["function"]["name"] == name), None)
    names = list(schema["parameters"]["properties"]) if schema else []
    try:
        given = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in part.keywords}
        positional = [ast.literal_eval(value) for value in part.args]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ToolCall(name, fault="arguments must be plain values: numbers, texts, lists and dicts")
    if len(positional) > len(names):
        return ToolCall(name, fault=f"takes {len(names)} arguments, but got {len(positional)}")
    return ToolCall(name, dict(zip(names, positional, strict=False)) | given)


_ACTION = re.compile(r"^[ \t]*Action[ \t]*:[ \t]*(?P<name>[^\n]{1,200})$", re.MULTILINE)
_INPUT = re.compile(r"^[ \t]*Action Input[ \t]*:", re.MULTILINE)
_OBSERVED = re.compile(r"^[ \t]*(?:Observation|Final Answer)[ \t]*:", re.MULTILINE)


def _react(text: str, tools: Schemas) -> list[ToolCall]:
    """Read the first `Action:` and its `Action Input:`; what follows an `Observation:` of the model's own is not read.

    An input that is not a JSON object is the only argument of the tool.
    """
    text = _OBSERVED.split(text, maxsplit=1)[0]
    action = _ACTION.search(text)
    if action is None:
        return []
    name, start = action["name"].strip(), _INPUT.search(text, action.end())
    given = text[start.end() :].strip() if start else ""
    if given.startswith("{") and not _too_deep(given):
        try:
            value, _ = json.JSONDecoder().raw_decode(given)
            return [ToolCall(name, value)]
        except ValueError as error:
            return [ToolCall(name, fault=f"the action input is not valid JSON: {error}")]
    only = only_argument([tool for tool in tools if tool["function"]["name"] == name])
    if only is None:
        return [ToolCall(name, fault="the action input is not a JSON object" if given else "")]
    return [ToolCall(name, {only[1]: given.strip("\"'")})]


def _boxed(text: str, tools: Schemas) -> list[ToolCall]:
    r"""Read the last `\boxed{…}` of a turn as the only argument of the only tool."""
    start, only = text.rfind("\\boxed{"), only_argument(tools)
    if start < 0 or only is None:
        return []
    depth, body = 1, text[start + len("\\boxed{") :]
    for index, character in enumerate(body):
        depth += (character == "{") - (character == "}")
        if not depth:
            return [ToolCall(only[0], {only[1]: body[:index].strip()})]
    return [ToolCall(only[0], fault="\\boxed{ is not closed")]


def _whole(text: str, tools: Schemas) -> list[ToolCall]:
    """Read a whole turn as the only argument of the only tool."""
    only = only_argument(tools)
    return [ToolCall(only[0], {only[1]: text.strip()})] if only is not None and text.strip() else []


# --------------------------------------------------------------------------------------------------- explanations


def _listed(tools: Schemas) -> str:
    return "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)


def _explain_hermes(tools: Schemas) -> str:
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
        f"function signatures within <tools></tools> XML tags:\n<tools>\n{_listed(tools)}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within <tool_call></tool_call> "
        "XML tags:\n<tool_call>\n"
        '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )


def _explain_llama3(tools: Schemas) -> str:
    return (
        "Given the following functions, please respond with a JSON for a function call with its proper arguments that "
        'best answers the given prompt. Respond in the format {"name": function name, "parameters": dictionary of '
        f"argument name and its value}}. Do not use variables.\n\n{_listed(tools)}"
    )


def _explain_python(tools: Schemas) -> str:
    return (
        "You can call the following functions. Write a call as <|python_tag|>name(argument=value), and nothing after "
        f"it.\n\n{_listed(tools)}"
    )


def _explain_react(tools: Schemas) -> str:
    names = ", ".join(str(tool["function"]["name"]) for tool in tools)
    return (
        f"Answer the question with these tools:\n\n{_listed(tools)}\n\nUse this format:\n\nThought: what to do next\n"
        f"Action: one of {names}\nAction Input: the arguments as a JSON object\nObservation: the result of the action\n"
        "(Thought, Action, Action Input and Observation can repeat)\nThought: the answer is known\nFinal Answer: the "
        "answer"
    )


def _explain_boxed(tools: Schemas) -> str:
    about = " ".join(str(tool["function"]["description"]) for tool in tools)
    return f"Write an expression in \\boxed{{}} to have it evaluated. {about}".strip()


CALL_FORMATS: Mapping[str, CallFormat] = {
    "hermes": CallFormat(_hermes, _explain_hermes, native=True),
    "llama3": CallFormat(_llama3, _explain_llama3, "{text}", native=True),
    "python": CallFormat(_python, _explain_python, "{text}"),
    "react": CallFormat(_react, _explain_react, "Observation: {text}"),
    "boxed": CallFormat(_boxed, _explain_boxed, "{text}"),
    "whole": CallFormat(_whole, lambda tools: "", "{text}"),
}
"""The formats by name. `hermes` is that of Qwen too; `whole` takes a turn's text as the argument of the only tool."""
