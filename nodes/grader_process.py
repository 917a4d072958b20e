"""The grader's own process: it loads one rule, scores rows and answers line by line.

`nodes.grader_guard` starts this file as a script, confined; questions come on standard input and answers leave on
standard output, which are moved out of a rule's way before it is loaded, so it may print and read as it likes.
A rule that may not keep state scores each response in a fork of its own, which cannot write an answer but to its own
question, and ends with all that it has started.
Only the standard library is imported until the parent has sent its import path.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import inspect
import json
import math
import os
import select
import signal
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from types import ModuleType
from typing import Any, cast

MESSAGE_CHARACTERS, ANSWER_BYTES = 300, 65_536
LOOK_S, REAP_S = 0.1, 0.3


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
class LoadedRule:
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
    return f"{theirs[-1][0].removeprefix(os.getcwd() + os.sep)}:{theirs[-1][1]}" if theirs else ""


def message(error: BaseException) -> str:
    """Give an exception's type and text on one line, whatever its __str__ does."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    return shortened(" ".join("".join(traceback.format_exception_only(error)).split()), MESSAGE_CHARACTERS)


def import_source(source: str) -> ModuleType:
    """Import a module by its name, or a file by its path under a name that shadows no other module."""
    if not source.endswith(".py"):
        return importlib.import_module(source)
    name = f"_rule_file_{os.path.basename(source).removesuffix('.py')}_{zlib.crc32(source.encode()):08x}"
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


def beside(name: str) -> ModuleType:
    """Import a file that lies beside this one, without the package that both are in."""
    return import_source(os.path.join(os.path.dirname(__file__), name))


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
            raise Failure("lacks_package", name=package) from None


def load(source: str, name: str, settings: dict[str, object], import_path: list[str]) -> LoadedRule:
    """Load a rule and check the caller's settings against what it takes; Failure says what is wrong."""
    sys.path_hooks.insert(0, beside("grader_finder.py").UnlistedFinder)
    sys.path_importer_cache.clear()
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
            raise Failure("lacks_setting", name=setting, known=list(asks.names))
    code = getattr(inspect.unwrap(function), "__code__", None)
    return LoadedRule(function, code.co_filename if code else source, asks, settings, source == "nodes.rules")


def arguments_of(rule: LoadedRule, row: Mapping[str, Any]) -> dict[str, object]:
    """Return what a rule is called with for a row; Failure if the row lacks a name that it asks for, or its truth."""
    arguments = bind(rule.asks, row, rule.settings)
    asked = "ground_truth" in rule.asks.required
    if asked and is_missing(arguments["ground_truth"], shipped=rule.shipped):
        raise Failure("lacks_truth", value=described(arguments["ground_truth"]))
    return arguments


def score(rule: LoadedRule, arguments: Mapping[str, object]) -> dict[str, object]:
    """Call the rule; return the score, or what went wrong: it raises, or returns no number."""
    try:
        try:
            value = rule.function(**arguments)
        except BaseException as error:  # noqa: BLE001 - and so may a rule
            raise Failure("raised", exception=message(error), at=place(error, rule.file)) from None
        return {"score": as_score(value), "unreadable": getattr(value, "unreadable", False) is True}
    except Failure as failure:
        return failure.line


class Channel:
    """The way to the parent: JSON lines in both directions, spoken by this process only."""

    def __init__(self) -> None:
        """Take over standard input and output, and leave a rule an empty input and the parent's log."""
        self._questions, self._answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        self._process = os.getpid()

    def lines(self) -> Iterator[Any]:
        """Yield what the parent sends until it closes."""
        for line in self._questions:
            yield json.loads(line)

    def say(self, line: Mapping[str, object]) -> None:
        """Send one line; a child that a rule forked and that came back here ends without a word."""
        if os.getpid() != self._process:
            os._exit(0)
        self._answers.write(json.dumps(line).encode() + b"\n")
        self._answers.flush()

    def close(self) -> None:
        """Close both directions in a fork, so that it can answer no other question."""
        os.close(self._questions.fileno())
        os.close(self._answers.fileno())


def score_apart(
    rule: LoadedRule, arguments: Mapping[str, object], channel: Channel, *, alone: bool, enclosed: bool
) -> dict[str, object]:
    """Score one response in a fork of this process; return what it said, or how it ended without a word.

    `spent` is true where something that the response started or wrote is still there; `alone` says that this process
    had no children of its own before; if `enclosed`, the fork cannot reach into this process.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _score_in_child(rule, arguments, channel, read, write, enclosed=enclosed)
    os.close(write)
    said = _first_line(read, child)
    os.close(read)
    status = _end(child)
    spent = status is None or (alone and _left_behind())
    return {**_outcome(said, status), "spent": not beside("grader_guard.py").empty(os.environ["HOME"]) or spent}


def _score_in_child(
    rule: LoadedRule, arguments: Mapping[str, object], channel: Channel, read: int, write: int, *, enclosed: bool
) -> None:
    with contextlib.suppress(BaseException):
        os.setpgid(0, 0)
        os.close(read)
        channel.close()
        if enclosed:
            beside("grader_sockets.py").enclose()
        process = os.getpid()
        line = json.dumps(score(rule, arguments)).encode() + b"\n"
        if os.getpid() == process:  # a fork that the rule made and that came back here has nothing to say
            os.write(write, line)
    os._exit(0)


def _first_line(read: int, child: int) -> bytes:
    """Read what a child says until its line ends, it closes the pipe, or it has ended."""
    said = b""
    while b"\n" not in said and len(said) <= ANSWER_BYTES:
        if select.select([read], [], [], LOOK_S)[0]:
            more = os.read(read, ANSWER_BYTES)
            said += more
            if not more:
                break
        elif os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break  # something that it started holds the pipe open
    return said


def _end(child: int) -> int | None:
    """Kill a child and its group, and return its exit code or minus its signal; None if it cannot be killed."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    reaped, status = _reaped(child)
    return os.waitstatus_to_exitcode(status) if reaped else None


def _left_behind() -> bool:
    """Wait for what the response's own group has left to this process; tell if something is still there."""
    with contextlib.suppress(ChildProcessError):
        while _reaped(-1)[0]:
            pass
        return True
    return False


def _reaped(child: int) -> tuple[int, int]:
    """Wait a moment for a child that was killed; return its process id, or 0, and its wait status."""
    end_s = time.monotonic() + REAP_S
    while True:
        ended = os.waitpid(child, os.WNOHANG)
        if ended[0] or time.monotonic() > end_s:
            return ended
        time.sleep(0.0002)


_OF_THE_ROW = ("lacks_column", "lacks_truth")  # found before the fork, and they end the run: a response cannot say so


def _outcome(said: bytes, status: int | None) -> dict[str, object]:
    """Read a child's one line as far as it has the form of one; the parent checks what it says."""
    line, newline, _ = said.partition(b"\n")
    if not newline and len(said) <= ANSWER_BYTES:
        return {"failed": "died", "code": -signal.SIGKILL if status is None else status}
    with contextlib.suppress(ValueError, RecursionError, MemoryError):
        parsed = json.loads(line)
        if isinstance(parsed, dict) and parsed.get("failed") not in _OF_THE_ROW:
            return cast("dict[str, object]", parsed)
    return {"failed": "forged"}


def has_children() -> bool:
    """Tell if this process has children, as it has when a rule's file starts some."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    return False


def serve(channel: Channel, *, enclosed: bool) -> None:
    """Load a rule and score rows as the parent asks, until it closes the channel."""
    rule, apart, alone = None, True, True
    for line in channel.lines():
        if "load" in line:
            apart = line["apart"]
            try:
                rule = load(**line["load"])
                channel.say({"ready": True, "id": line["id"]})
            except Failure as failure:
                channel.say({**failure.line, "id": line["id"]})
            alone = not has_children()
            gc.collect()
            gc.freeze()  # or each fork would copy the pages of every object that the collector looks at
            continue
        assert rule is not None
        for at, row in line["rows"]:
            try:
                arguments = arguments_of(rule, row)
            except Failure as failure:
                channel.say({**failure.line, "id": at})
                continue
            if apart:
                outcome = score_apart(rule, arguments, channel, alone=alone, enclosed=enclosed)
            else:
                outcome = score(rule, arguments)
            channel.say({**outcome, "id": at})


def main(options: list[str]) -> None:
    """Serve one parent, and leave without waiting for threads that a rule has left behind."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    channel = Channel()
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: what a response leaves is found here
    _ = beside("grader_guard.py"), beside("grader_sockets.py")  # now, so that no fork has to read them
    if "--no-sockets" in options:
        beside("grader_sockets.py").close_sockets()
    with contextlib.suppress(OSError):
        serve(channel, enclosed="--confined" in options)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
