"""The program of an environment's process: it loads a class, and runs its methods on the state of a conversation.

It keeps no conversation. A question has the state that an earlier answer returned, pickled, and the answer has the
state after the call; so any process can take the next call, and a call that is killed changes nothing. Questions and
answers are JSON lines on the channel of `nodes.scoring.grader_process`.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import inspect
import json
import os
import pickle  # noqa: TID251 - only of a state that such a process wrote, in one with the same rights
import random
import signal
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

GRADER_FILE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "scoring", "grader_process.py")


def grader_program(file: str = GRADER_FILE) -> ModuleType:
    """Import the program of grader processes by its path, without its package, and return the module."""
    spec = importlib.util.spec_from_file_location("_grader_process", file)
    assert spec is not None and spec.loader is not None
    module = sys.modules["_grader_process"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


grader = grader_program()


class LoadedEnvironment:
    """The class of an environment, its tools, and a function of the user's own that reads calls, if there is one."""

    def __init__(self, *, source: str, name: str, import_path: list[str], reader: tuple[str, str] | None) -> None:
        """Import the class and the reader. Raises grader.Failure if the class cannot be an environment."""
        sys.path_hooks.insert(0, grader.sibling("grader_inside.py").UnlistedFinder)
        sys.path_importer_cache.clear()
        sys.path[:] = import_path
        if source.endswith(".py") and os.path.dirname(source) not in sys.path:
            sys.path.append(os.path.dirname(source))
        try:
            self.kind: Any = grader.find(source, name)
            self.reader: Callable[..., Any] | None = grader.find(*reader) if reader else None
        except grader.Failure:
            raise
        except BaseException as error:  # noqa: BLE001 - a user's own file may raise anything, SystemExit too
            raise grader.Failure("not_loaded", why=grader.message(error), at=grader.place(error, source)) from None
        from nodes.environments.tools import NotATool, tools_of

        if not inspect.isclass(self.kind):
            raise grader.Failure("not_loaded", why=f"`{name}` is not a class", at="")
        try:
            self.tools = tools_of(self.kind)
        except NotATool as error:
            raise grader.Failure("not_loaded", why=str(error), at="") from None
        self.file = source

    def described(self) -> dict[str, Any]:
        """Return the schemas of the tools, and the names of the optional methods that the class has."""
        optional = ("reply", "reward", "turn_reward")
        return {
            "tools": [tool.schema for tool in self.tools.values()],
            "methods": [name for name in optional if callable(getattr(self.kind, name, None))],
        }

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Run the method that a question names, and return its value and the state after it, or why it failed."""
        from nodes.environments.tools import BadArguments

        random.seed(question["seed"])
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(question["seed"] % 2**32)
        try:
            if question["method"] == "read":
                return {"value": self._read(question)}
            subject = self.kind() if question["state"] is None else pickle.loads(base64.b64decode(question["state"]))
            value = grader.sibling("rule_forms.py").awaited(self._called(subject, question))
        except BadArguments as error:
            return {"fault": str(error), "at": ""}
        except BaseException as error:  # noqa: BLE001 - a user's own method may raise anything, SystemExit too
            return {"fault": grader.message(error), "at": grader.place(error, self.file)}
        try:
            state = base64.b64encode(pickle.dumps(subject)).decode()
            return {"value": _plain(question, value), "state": state, "done": bool(getattr(subject, "done", False))}
        except BaseException as error:  # noqa: BLE001 - a user's own attributes and values
            return {"fault": f"its state or result cannot be stored: {grader.message(error)}", "at": ""}

    def _called(self, subject: Any, question: Mapping[str, Any]) -> Any:
        method, arguments = question["method"], question["arguments"]
        if method == "tool":
            tool = self.tools[question["tool"]]
            return getattr(subject, tool.name)(**tool.checked(arguments))
        return getattr(subject, method)(**arguments)

    def _read(self, question: Mapping[str, Any]) -> list[dict[str, Any]]:
        assert self.reader is not None
        calls = self.reader(question["arguments"]["text"]) or ()
        return [{"name": str(name), "arguments": dict(arguments)} for name, arguments in calls]


def _plain(question: Mapping[str, Any], value: Any) -> Any:
    """Return a method's value as JSON has it: a tool's as text of limited length, a reward as a float."""
    method, limit = question["method"], question["characters"]
    if method == "tool":
        text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
        text = text.encode("utf-8", "replace").decode()
        return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"
    if method in ("reward", "turn_reward"):
        number = grader.sibling("rule_forms.py").finite(value)
        if number is None:
            raise TypeError(f"{method} returned {grader.described(value)}, not a finite number")
        return number
    role = {"role": "user"}
    messages = [] if value is None else [{**role, "content": value}] if isinstance(value, str) else list(value)
    return [{str(key): str(text) for key, text in {**role, **message}.items()} for message in messages]


def serve(channel: Any) -> None:
    """Load the class that the first question names, then answer the parent's questions until it closes the channel."""
    loaded: LoadedEnvironment | None = None
    for question in channel.lines():
        if "load" in question:
            try:
                loaded = LoadedEnvironment(**question["load"])
                answer = loaded.described()
            except grader.Failure as failure:
                answer = {"failed": failure.line.get("why", failure.line["failed"]), "at": failure.line.get("at", "")}
                if failure.line["failed"] == "lacks_name":
                    answer["failed"] = f"it has no `{failure.line['name']}`"
        else:
            assert loaded is not None
            answer = loaded.answer(question)
        channel.say({**answer, "id": question["id"]})


def main(options: list[str]) -> None:
    """Answer the parent's questions until it closes the channel; the flag "--no-sockets" forbids sockets."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    channel = grader.Channel()
    for name in ("grader_inside.py", "rule_forms.py"):
        grader.sibling(name)
    if "--no-sockets" in options:
        grader.sibling("grader_inside.py").close_sockets()
    with contextlib.suppress(OSError):
        serve(channel)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
