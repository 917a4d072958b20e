"""The program of a grader process: it loads one rule, scores rows and answers line by line.

`grader_guard` starts this file as a script, confined. Questions arrive on standard input and answers are sent on
standard output; both are redirected before the rule is loaded, so the rule may print and read.

A rule without state scores each response in a separate fork, which can answer only its question, and which ends with
all processes that it has started.

Only the standard library is imported until the parent has sent its import path.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import inspect
import json
import os
import select
import signal
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

SHIPPED = "nodes.scoring.rules"
MESSAGE_CHARACTERS, ANSWER_BYTES = 300, 65_536
LOOK_S, REAP_S = 0.1, 0.3


class Failure(Exception):
    """A failure as JSON-compatible data, which the parent converts to a RuleError."""

    def __init__(self, kind: str, **facts: object) -> None:
        super().__init__(kind)
        self.line = {"failed": kind, **facts}


@dataclass(frozen=True)
class LoadedRule:
    """A loaded rule: its function, the file of its code, the caller's settings, and the names of its parameters.

    `required` are the parameters without a default. If `takes_rest`, the rule has a `**` parameter and gets every
    column.
    """

    function: Callable[..., object]
    file: str
    settings: dict[str, object]
    names: tuple[str, ...]
    required: tuple[str, ...]
    takes_rest: bool
    shipped: bool

    @property
    def batched(self) -> bool:
        """Return whether the rule has the form of TRL's reward functions: one of its parameters is `completions`."""
        return bool(sibling("rule_forms.py").is_batched(self.names))


def columns_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a row, with `ground_truth` copied from verl's `reward_model` if there is none.

    >>> columns_of({"response": "7", "reward_model": {"style": "rule", "ground_truth": "7"}})["ground_truth"]
    '7'
    """
    verl = row.get("reward_model")
    if "ground_truth" not in row and isinstance(verl, dict) and "ground_truth" in verl:
        return {**row, "ground_truth": verl["ground_truth"]}
    return dict(row)


def is_missing(truth: object, *, shipped: bool) -> bool:
    """Return whether a ground truth is missing: None, or for a shipped rule also an empty text or the text "None".

    >>> is_missing(None, shipped=False), is_missing("None", shipped=True), is_missing("0", shipped=True)
    (True, True, False)
    """
    return truth is None or (shipped and str(truth).strip() in ("", "None"))


def as_scored(value: object, *, batched: bool = False) -> dict[str, object]:
    """Return a rule's result as a message: `score`, whether it is `unreadable`, and `extras` if there are any.

    The result may be a number, a scalar of an array library, or a dict with a `score`, as in verl. If `batched`, it is
    a list of one such result. Raises Failure for any other result, a score that is not finite, extras that
    `extras_of` refuses, and a result whose own methods raise.

    >>> as_scored(True), as_scored({"score": 1, "acc": True})
    ({'score': 1.0, 'unreadable': False}, {'score': 1.0, 'unreadable': False, 'extras': {'acc': 1.0}})
    """
    forms = sibling("rule_forms.py")
    try:
        value = forms.single(value) if batched else value
        extras = forms.extras_of(value) if isinstance(value, dict) else {}
        number = cast("dict[str, object]", value).get("score") if isinstance(value, dict) else value
        score, unreadable = forms.finite(number), getattr(number, "unreadable", False) is True
    except forms.NotAScore as error:
        raise Failure("bad_value", value=f"{described(value)}, {error}") from None
    except BaseException as error:  # noqa: BLE001 - methods of a class of the user's, such as `items`
        raise Failure("bad_value", value=f"{described(value)}, which cannot be read: {message(error)}") from None
    if score is None:
        raise Failure("bad_value", value=described(value))
    judged: dict[str, object] = {"score": score, "unreadable": unreadable}
    return judged | ({"extras": extras} if extras else {})


def described(value: object) -> str:
    """Return a value's `repr`, cut to 80 characters, and its type; for None only "None".

    If `__repr__` raises, a fixed text replaces the `repr`.

    >>> described("yes")
    "'yes' (str)"
    """
    try:
        text = repr(value)
    except BaseException:  # noqa: BLE001 - a user's own __repr__
        text = "a value without a repr"
    return text if value is None else f"{shortened(text, 80)} ({type(value).__name__})"


def shortened(text: str, limit_characters: int) -> str:
    """Return a text cut to `limit_characters`, with "…" appended if it was cut.

    >>> shortened("abcdef", 3)
    'abc…'
    """
    return text if len(text) <= limit_characters else text[:limit_characters] + "…"


def place(error: BaseException, file: str) -> str:
    """Return `file:line` of an error: its innermost frame in the rule's `file`, or else outside of this program.

    Without such a frame, the result is the place of a syntax error, or "" for any other error. Paths below the working
    folder are relative.
    """
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    ours = (__file__, importlib.__file__)
    foreign = [(name, line) for name, line in frames if name not in ours and not name.startswith("<")]
    places = [(name, line) for name, line in frames if name == file] or foreign
    if not places and isinstance(error, SyntaxError):
        places = [(error.filename or "", error.lineno or 0)]
    return f"{places[-1][0].removeprefix(os.getcwd() + os.sep)}:{places[-1][1]}" if places else ""


def message(error: BaseException) -> str:
    """Return an exception's type and text on one line, cut to 300 characters; without the place of a syntax error."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    return shortened(" ".join("".join(traceback.format_exception_only(error)).split()), MESSAGE_CHARACTERS)


def import_source(source: str) -> ModuleType:
    """Import and return a module by its name, or a `.py` file by its path under a name that hides no other module.

    A file is run once; later calls return the same module. Errors of the imported code pass through.
    """
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


def sibling(name: str) -> ModuleType:
    """Import another file of this folder, at most once and without importing the package, and return its module."""
    return import_source(os.path.join(os.path.dirname(__file__), name))


def find(source: str, name: str) -> Callable[..., object]:
    """Import a module or file and return its function with the dotted name `name`.

    Raises Failure if the name is missing or not callable, or if a shipped rule lacks a package. Other errors of the
    import pass through.
    """
    owner: Any = import_source(source)
    if source == SHIPPED and name in owner.RULE_PACKAGES:  # now, or it would count as time of the first response
        for module, package in owner.RULE_PACKAGES[name]:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError:
                raise Failure("lacks_package", name=package) from None
    for part in name.split("."):
        if not hasattr(owner, part):
            functions = [key for key, value in vars(owner).items() if inspect.isfunction(value)]
            raise Failure("lacks_name", name=part, known=[key for key in functions if not key.startswith("_")])
        owner = getattr(owner, part)
    if not callable(owner):
        raise Failure("not_loaded", why=f"`{name}` is {described(owner)}, not a function", at="")
    function: Callable[..., object] = owner
    return function


def load(source: str, name: str, settings: dict[str, object], import_path: list[str]) -> LoadedRule:
    """Import a rule's function and return it as a `LoadedRule`, with its parameters and the caller's `settings`.

    `source` is a module's name or a file, and `name` is the function there. `import_path` replaces `sys.path`; the
    folder of a rule in a file is added at the end. Raises Failure if the import fails, if the function's parameters
    cannot be read or given by name, or if the function lacks a parameter for one of `settings`.
    """
    sys.path_hooks.insert(0, sibling("grader_inside.py").UnlistedFinder)
    sys.path_importer_cache.clear()
    sys.path[:] = import_path
    if source.endswith(".py") and os.path.dirname(source) not in sys.path:
        sys.path.append(os.path.dirname(source))  # last: a file beside the rule must not shadow a package
    try:
        function = find(source, name)
    except Failure:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's own file may raise anything, SystemExit too
        raise Failure("not_loaded", why=message(error), at=place(error, source)) from None
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise Failure("not_loaded", why="the names of its parameters cannot be read", at="") from None
    for p in parameters:
        if p.kind is p.POSITIONAL_ONLY:
            raise Failure("not_loaded", why=f"its parameter `{p.name}` cannot be given by name", at="")
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names, required = (p.name for p in named), (p.name for p in named if p.default is p.empty)
    takes_rest = any(p.kind is p.VAR_KEYWORD for p in parameters)
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = code.co_filename if code else source
    rule = LoadedRule(function, file, settings, tuple(names), tuple(required), takes_rest, source == SHIPPED)
    for setting in settings:
        if setting not in rule.names and not takes_rest:
            raise Failure("lacks_setting", name=setting, known=list(rule.names))
    return rule


def arguments_of(rule: LoadedRule, row: Mapping[str, Any]) -> dict[str, object]:
    """Return the arguments for one call of a rule; its settings override the row's columns.

    Columns have the form of `rule_forms.in_form`. Raises Failure if the row lacks a required column, or its ground
    truth.
    """
    given = columns_of(row)
    columns = sibling("rule_forms.py").in_form(given, rule.names)
    for name in rule.required:
        if name not in columns and name not in rule.settings:
            raise Failure("lacks_column", parameter=name, known=list(given))
    truth = rule.settings.get("ground_truth", given.get("ground_truth"))
    if "ground_truth" in rule.required and is_missing(truth, shipped=rule.shipped):
        raise Failure("lacks_truth", value=described(truth))
    chosen = {name: value for name, value in columns.items() if rule.takes_rest or name in rule.names}
    return {**chosen, **rule.settings}


def score(rule: LoadedRule, arguments: Mapping[str, object]) -> dict[str, object]:
    """Call the rule; return its score, or its failure if it raised or returned no finite number, as a message."""
    try:
        try:
            value = sibling("rule_forms.py").awaited(rule.function(**arguments))
        except BaseException as error:  # noqa: BLE001 - a rule too may raise anything
            raise Failure("raised", exception=message(error), at=place(error, rule.file)) from None
        return as_scored(value, batched=rule.batched)
    except Failure as failure:
        return failure.line


class Channel:
    """The channel to the parent: JSON lines in both directions, for this process only."""

    def __init__(self) -> None:
        """Take over standard input and output; the rule gets an empty input, and its output goes to standard error."""
        self._questions, self._answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        self._process = os.getpid()

    def lines(self) -> Iterator[Any]:
        """Yield the parent's messages, parsed from JSON, until the parent closes the channel."""
        for line in self._questions:
            yield json.loads(line)

    def say(self, line: Mapping[str, object]) -> None:
        """Send a message as one line. In a forked child of this process, exit silently instead."""
        if os.getpid() != self._process:
            os._exit(0)
        self._answers.write(json.dumps(line).encode() + b"\n")
        self._answers.flush()

    def close(self) -> None:
        """Close both directions; in a fork, so that the fork can answer no other question."""
        os.close(self._questions.fileno())
        os.close(self._answers.fileno())


def score_in_fork(
    rule: LoadedRule, arguments: Mapping[str, object], channel: Channel, *, childless: bool, enclosed: bool
) -> dict[str, object]:
    """Score one response in a fork of this process; return its answer, or how the fork ended without an answer.

    `arguments` are those of the rule's call; `channel` is closed in the fork. `childless` means that this process had
    no children before; `enclosed`, that the fork is prevented from reaching this process. The fork and its process
    group are killed. Without a usable answer, the entry `failed` of the result is "died", with the exit code as `code`,
    or "forged" for an answer that is not valid. The entry `spent` is True if the fork could not be killed, if the
    response left files in HOME, or if processes that it created may still exist; these are looked for only if
    `childless`.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.setpgid(0, 0)
            os.close(read)
            channel.close()
            if enclosed:
                sibling("grader_inside.py").enclose()
            process = os.getpid()
            line = json.dumps(score(rule, arguments)).encode() + b"\n"
            if os.getpid() == process:  # a fork that the rule made, and that came back here, must not answer
                os.write(write, line)
        os._exit(0)
    os.close(write)
    answer = _first_line(read, child)
    os.close(read)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    reaped, status = _reap(child)
    code = os.waitstatus_to_exitcode(status) if reaped else None  # None: it cannot be killed
    spent = code is None
    if childless and not spent:  # wait for the processes that the response has left to this one
        with contextlib.suppress(ChildProcessError):
            while _reap(-1)[0]:
                pass
            spent = True
    return {**_outcome(answer, code), "spent": not sibling("grader_guard.py").empty(os.environ["HOME"]) or spent}


def _first_line(read: int, child: int) -> bytes:
    answer = b""
    while b"\n" not in answer and len(answer) <= ANSWER_BYTES:
        if select.select([read], [], [], LOOK_S)[0]:
            part = os.read(read, ANSWER_BYTES)
            answer += part
            if not part:
                break
        elif os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break  # a process that it started holds the pipe open
    return answer


def _reap(child: int) -> tuple[int, int]:
    """Wait up to 0.3 s for a killed child; return its process id, or 0 on a timeout, and its wait status."""
    end_s = time.monotonic() + REAP_S
    while True:
        process, status = os.waitpid(child, os.WNOHANG)
        if process or time.monotonic() > end_s:
            return process, status
        time.sleep(0.0002)


_OF_THE_ROW = ("lacks_column", "lacks_truth")  # found before the fork; they end the run, so a response cannot send them


def _outcome(answer: bytes, code: int | None) -> dict[str, object]:
    line, newline, _ = answer.partition(b"\n")
    if not newline and len(answer) <= ANSWER_BYTES:
        return {"failed": "died", "code": -signal.SIGKILL if code is None else code}
    with contextlib.suppress(ValueError, RecursionError, MemoryError):
        parsed = json.loads(line)
        if isinstance(parsed, dict) and parsed.get("failed") not in _OF_THE_ROW:
            return cast("dict[str, object]", parsed)
    return {"failed": "forged"}


def serve(channel: Channel, *, enclosed: bool) -> None:
    """Load a rule and score rows as the parent's messages request, until the parent closes the channel.

    If `enclosed`, forks that score a response are prevented from reaching this process.
    """
    rule, isolated, childless = None, True, True
    for line in channel.lines():
        if "load" in line:
            isolated = line["isolated"]
            try:
                rule = load(**line["load"])
                channel.say({"ready": True, "id": line["id"]})
            except Failure as failure:
                channel.say({**failure.line, "id": line["id"]})
            try:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                childless = False  # the rule's file has started some
            except ChildProcessError:
                childless = True
            gc.collect()
            gc.freeze()  # or each fork would copy the pages of every object that the collector looks at
            continue
        assert rule is not None
        for question, row in line["rows"]:
            try:
                arguments = arguments_of(rule, row)
                if isolated:
                    outcome = score_in_fork(rule, arguments, channel, childless=childless, enclosed=enclosed)
                else:
                    outcome = score(rule, arguments)
            except Failure as failure:
                outcome = failure.line
            channel.say({**outcome, "id": question})


def main(options: list[str]) -> None:
    """Answer the parent's questions until it closes the channel, then exit without waiting for threads of the rule.

    `options` are flags: "--no-sockets" forbids sockets, "--confined" also isolates the forks that score a response.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    channel = Channel()
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans of a response become children here
    for name in ("grader_guard.py", "grader_inside.py", "rule_forms.py"):
        sibling(name)  # now, so that no fork has to read them
    if "--no-sockets" in options:
        sibling("grader_inside.py").close_sockets()
    with contextlib.suppress(OSError):
        serve(channel, enclosed="--confined" in options)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
