"""The grader's own process: it loads one rule, scores rows and answers line by line.

`nodes.graders` starts this file as a script, with one socket for JSON lines; standard input is empty and
standard output and error lead to the parent, so a rule may print and read as it likes.
Only the standard library is imported until the parent has sent its import path.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import json
import math
import os
import signal
import socket
import sys
import traceback
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from types import ModuleType
from typing import Any, cast

MESSAGE_CHARACTERS = 300


class Failure(Exception):
    """What went wrong, as the plain data that the parent makes a RuleError of."""

    def __init__(self, kind: str, **facts: object) -> None:
        super().__init__(kind)
        self.line = {"failed": kind, **facts}


@dataclass(frozen=True)
class Asks:
    """What a function asks for: its parameters, those without a default, and whether it takes any name."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    takes_rest: bool


@dataclass(frozen=True)
class Loaded:
    """A rule that is ready: its function, the file of its code, what it asks for, the caller's settings."""

    function: Callable[..., object]
    file: str
    asks: Asks
    settings: dict[str, object]
    shipped: bool = False


def asks_of(function: Callable[..., object]) -> Asks:
    """Read what a function asks for off its signature; Failure if it cannot be called by names.

    >>> asks_of(lambda response, finished=True, **row: 0.0)
    Asks(names=('response', 'finished'), required=('response',), takes_rest=True)
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise Failure("not_loaded", why="the names of its parameters cannot be read", at="") from None
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    for one in parameters:
        if one.kind is one.POSITIONAL_ONLY:
            raise Failure("not_loaded", why=f"its parameter `{one.name}` cannot be given by name", at="")
    return Asks(
        names=tuple(one.name for one in named),
        required=tuple(one.name for one in named if one.default is one.empty),
        takes_rest=any(one.kind is one.VAR_KEYWORD for one in parameters),
    )


def on_offer(row: Mapping[str, Any]) -> dict[str, Any]:
    """Give the names that a row offers: its columns, and the ground truth out of verl's `reward_model`.

    >>> on_offer({"response": "7", "reward_model": {"style": "rule", "ground_truth": "7"}})["ground_truth"]
    '7'
    """
    judged = row.get("reward_model")
    if "ground_truth" not in row and isinstance(judged, dict) and "ground_truth" in judged:
        return {**row, "ground_truth": judged["ground_truth"]}
    return dict(row)


def is_missing(truth: object, *, shipped: bool) -> bool:
    """Tell whether a ground truth is none: null, and for a shipped rule no text, or what Python writes for null.

    >>> is_missing(None, shipped=False), is_missing("None", shipped=True), is_missing("0", shipped=True)
    (True, True, False)
    """
    return truth is None or (shipped and str(truth).strip() in ("", "None"))


def bind(asks: Asks, row: Mapping[str, Any], settings: Mapping[str, object]) -> dict[str, object]:
    """Choose the arguments of one call; settings win over the row. Failure if the row lacks a required name.

    >>> bind(Asks(("response",), ("response",), False), {"response": "7", "ability": "math"}, {})
    {'response': '7'}
    """
    offered = on_offer(row)
    for name in asks.required:
        if name not in offered and name not in settings:
            raise Failure("lacks_column", parameter=name, known=list(offered))
    chosen = offered if asks.takes_rest else {name: offered[name] for name in asks.names if name in offered}
    return {**chosen, **settings}


def as_score(value: object) -> float:
    """Read a finite number off what a rule returned: a number, a scalar of an array library, or verl's dict.

    >>> as_score(True), as_score({"score": 1})
    (1.0, 1.0)
    """
    given: Any = value
    if isinstance(given, dict):
        given = cast("dict[str, object]", given).get("score")
    if not isinstance(given, Real | Decimal) and hasattr(given, "item"):
        with contextlib.suppress(Exception):
            given = given.item()
    with contextlib.suppress(OverflowError, ValueError):
        if isinstance(given, Real | Decimal) and math.isfinite(given):
            return float(given)
    raise Failure("bad_value", value=described(value))


def described(value: object) -> str:
    """Show a value and its type in a few words, whatever its repr does.

    >>> described("yes")
    "'yes' (str)"
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a user's own __repr__
        text = "a value without a repr"
    return text if value is None else f"{shortened(text, 80)} ({type(value).__name__})"


def shortened(text: str, limit_characters: int) -> str:
    """Cut a text to a length, and show that it was cut.

    >>> shortened("abcdef", 3)
    'abc…'
    """
    return text if len(text) <= limit_characters else text[:limit_characters] + "…"


def place(error: BaseException, file: str) -> str:
    """Give `file:line` of the innermost frame in the rule's own file, else of the innermost that is not ours."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    ours = (__file__, importlib.__file__)
    foreign = [one for one in frames if one[0] not in ours and not one[0].startswith("<")]
    theirs = [one for one in frames if one[0] == file] or foreign
    if not theirs and isinstance(error, SyntaxError):
        theirs = [(error.filename or "", error.lineno or 0)]
    return f"{shown(theirs[-1][0])}:{theirs[-1][1]}" if theirs else ""


def shown(path: str) -> str:
    """Shorten a path that lies below the working folder."""
    here = os.getcwd() + os.sep
    return path.removeprefix(here)


def message(error: BaseException) -> str:
    """Give an exception's type and text on one line, whatever its __str__ does."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    return shortened(" ".join("".join(traceback.format_exception_only(error)).split()), MESSAGE_CHARACTERS)


def import_source(source: str) -> ModuleType:
    """Import a module by its name, or a file by its path under a name that shadows no other module."""
    if not source.endswith(".py"):
        return importlib.import_module(source)
    stem = os.path.basename(source).removesuffix(".py")
    name = f"_rule_file_{stem}_{zlib.crc32(source.encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, source)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def find(source: str, name: str) -> Callable[..., object]:
    """Get a function from a module or a file; Failure if it is not there or cannot be called."""
    found: object = import_source(source)
    for part in name.split("."):
        if not hasattr(found, part):
            raise Failure("lacks_name", name=part, known=functions_of(found))
        found = getattr(found, part)
    if not callable(found):
        raise Failure("not_loaded", why=f"`{name}` is {described(found)}, not a function", at="")
    return found


def functions_of(owner: object) -> list[str]:
    """List the public functions of a module or a class."""
    return [name for name, one in vars(owner).items() if inspect.isfunction(one) and not name.startswith("_")]


def import_packages(source: str, name: str) -> None:
    """Import what a shipped rule needs, so that the import is not timed as the first response."""
    if source != "nodes.rules":
        return
    packages = importlib.import_module(source).RULE_PACKAGES
    for module, package in [packages[name]] if name in packages else []:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            raise Failure("lacks_package", package=package) from None


def load(source: str, name: str, settings: dict[str, object], import_path: list[str]) -> Loaded:
    """Load a rule and check the caller's settings against what it takes; Failure says what is wrong."""
    sys.path[:] = import_path
    if source.endswith(".py") and os.path.dirname(source) not in sys.path:
        sys.path.append(os.path.dirname(source))  # last: a file beside the rule must not shadow a package
    try:
        import_packages(source, name)
        function = find(source, name)
    except Failure:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's own file may raise anything, SystemExit too
        raise Failure("not_loaded", why=message(error), at=place(error, source)) from None
    asks = asks_of(function)
    for setting in settings:
        if setting not in asks.names and not asks.takes_rest:
            raise Failure("lacks_setting", setting=setting, known=list(asks.names))
    code = getattr(inspect.unwrap(function), "__code__", None)
    return Loaded(function, code.co_filename if code else source, asks, settings, source == "nodes.rules")


def score(rule: Loaded, row: Mapping[str, Any]) -> float:
    """Score one row; Failure if it lacks a name or its truth, or the rule raises or returns no finite number."""
    arguments = bind(rule.asks, row, rule.settings)
    asked = "ground_truth" in rule.asks.required
    if asked and is_missing(arguments["ground_truth"], shipped=rule.shipped):
        raise Failure("lacks_truth", value=described(arguments["ground_truth"]))
    try:
        return as_score(rule.function(**arguments))
    except Failure:
        raise
    except BaseException as error:  # noqa: BLE001 - and so may a rule
        raise Failure("raised", exception=message(error), at=place(error, rule.file)) from None


class Channel:
    """The socket to the parent: JSON lines in both directions, spoken by this process only."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._process = os.getpid()

    def lines(self) -> Any:
        """Yield what the parent sends until it closes."""
        for line in self._socket.makefile("rb"):
            yield json.loads(line)

    def say(self, line: Mapping[str, object]) -> None:
        """Send one line; a child that a rule forked and that came back here ends without a word."""
        if os.getpid() != self._process:
            os._exit(0)
        self._socket.sendall(json.dumps(line).encode() + b"\n")


def serve(channel: Channel) -> None:
    """Load rules and score rows as the parent asks, until it closes the channel."""
    rule: Loaded | None = None
    for line in channel.lines():
        if "rows" not in line:
            try:
                rule = load(**line)
                channel.say({"ready": True})
            except Failure as failure:
                channel.say(failure.line)
            continue
        assert rule is not None
        for row in line["rows"]:
            try:
                channel.say({"score": score(rule, row)})
            except Failure as failure:
                channel.say(failure.line)


def guard(lifeline: int, channel: int) -> None:
    """Leave a process beside this one that kills the whole group once the parent's end of `lifeline` is closed.

    It works while a rule hangs in C code, and takes along what the rule has started. (Linux could kill this process
    with its parent, PR_SET_PDEATHSIG, but does so as soon as the parent's *thread* that started it ends.)
    """
    if os.fork():
        os.wait()
        os.close(lifeline)
        return
    if os.fork():
        os._exit(0)  # so that the guard is no child of the process whose rules may wait for children
    for descriptor in (1, 2, channel):  # held open here, the worker's end would not be seen
        os.close(descriptor)
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)


def main(channel: int, lifeline: int) -> None:
    """Serve one parent, and leave without waiting for threads that a rule has left behind."""
    guard(lifeline, channel)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        serve(Channel(channel))
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
