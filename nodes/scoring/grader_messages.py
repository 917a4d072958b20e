"""The messages that a grader process may send, and the errors that report its failures.

The process has run a rule on a response, so none of its messages is trusted: types, sizes, ranges and the question's id
are checked here, and a message that fails a check counts as forged.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from flowgraph.errors import RuleError
from nodes.scoring.rule_forms import MAX_EXTRAS, TEXT_CHARACTERS
from nodes.scoring.rules import RuleRef

MESSAGE_BYTES = 131_072
LARGEST_SCORE = 3.4e38  # scores are float32
RESPONSE_CHARACTERS = 80
_SIGNALS = {int(number): number.name for number in signal.Signals}
_IDENTITY = (("prompt", "prompt_id"), ("sample", "sample"))

_ExtraName = Annotated[str, Field(pattern=r"^[\w/@%+-]{1,64}$")]
_Extra = Annotated[float, Field(allow_inf_nan=False)] | Annotated[str, Field(max_length=TEXT_CHARACTERS)] | None
_Words = Annotated[str, Field(max_length=1_000)]
_Names = Annotated[list[_Words], Field(max_length=1_000)]


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    id: Annotated[int, Field(ge=0)]


class Ready(_Message):
    """The rule was loaded."""

    ready: Literal[True]


class NotLoaded(_Message):
    """The rule cannot be loaded: the reason, and the place, `file:line`."""

    failed: Literal["not_loaded"]
    why: _Words
    at: _Words


class Lacks(_Message):
    """The rule cannot be loaded: a name is missing in its file, a package here, or a parameter of its function."""

    failed: Literal["lacks_name", "lacks_package", "lacks_setting"]
    name: _Words
    known: _Names = []


class _Answer(_Message):
    spent: bool = False


class ScoredAnswer(_Answer):
    """A response's score; `unreadable` if the rule found nothing to score; `extras`, the rule's further results."""

    score: Annotated[float, Field(ge=-LARGEST_SCORE, le=LARGEST_SCORE, allow_inf_nan=False)]
    unreadable: bool = False
    extras: Annotated[dict[_ExtraName, _Extra], Field(max_length=MAX_EXTRAS)] = {}


class LacksColumn(_Answer):
    """A row lacks a column that the rule has as a parameter."""

    failed: Literal["lacks_column"]
    parameter: _Words
    known: _Names


class LacksTruth(_Answer):
    """A row has no ground truth, and the rule needs one."""

    failed: Literal["lacks_truth"]
    value: _Words


class Raised(_Answer):
    """The rule raised an exception on a row."""

    failed: Literal["raised"]
    exception: _Words
    at: _Words


class BadValue(_Answer):
    """The rule returned something other than a finite number."""

    failed: Literal["bad_value"]
    value: _Words


class Died(_Answer):
    """The response's process ended without an answer: its exit code, or minus a signal."""

    failed: Literal["died"]
    code: Annotated[int, Field(ge=-64, le=255)]


class Forged(_Answer):
    """The response's process wrote something that is not an answer."""

    failed: Literal["forged"]


Answer = ScoredAnswer | LacksColumn | LacksTruth | Raised | BadValue | Died | Forged
LoadAnswer = Ready | NotLoaded | Lacks
LOADS: TypeAdapter[LoadAnswer] = TypeAdapter(LoadAnswer)
ANSWERS: TypeAdapter[Answer] = TypeAdapter(Answer)


def read_message(
    kind: TypeAdapter[Answer] | TypeAdapter[LoadAnswer], line: bytes, question: int
) -> Answer | LoadAnswer | None:
    """Return the answer in a line of JSON; None if it is invalid, or if its id is not `question`.

    `kind` is `LOADS` for the answer to loading a rule, `ANSWERS` for the answer to a row.

    >>> read_message(ANSWERS, b'{"id": 7, "score": 0.5}', 7).score, read_message(ANSWERS, b'{"id": 8, "score": 1}', 7)
    (0.5, None)
    """
    try:
        answer: Answer | LoadAnswer = kind.validate_json(line)
    except ValidationError:
        return None
    return answer if answer.id == question else None


def ending(code: int) -> str:
    """Return a description of how a process ended; `code` is its exit code, or minus its signal.

    >>> ending(3), ending(-9), ending(-40)
    ('exit code 3', 'killed by SIGKILL', 'killed by signal 40')
    """
    return f"exit code {code}" if code >= 0 else f"killed by {_SIGNALS.get(-code, f'signal {-code}')}"


def name_of(row: Mapping[str, object], index: int) -> str:
    """Return a name for a row in errors: its prompt and sample, or else `row INDEX`, counted from 0."""
    names = [f"{name} {row[column]}" for name, column in _IDENTITY if column in row]
    return ", ".join(names) or f"row {index}"


def notes_of(row: Mapping[str, object], index: int, printed: bytes) -> list[str]:
    """Return the notes of an error about a row: its name with the start of its response, and the last printed lines.

    At most 80 characters of the response are shown. `printed` is the last output of the row's process.
    """
    response = str(row["response"]) if "response" in row else ""
    cut = "…" if len(response) > RESPONSE_CHARACTERS else ""
    return [f"{name_of(row, index)}, response {response[:RESPONSE_CHARACTERS]!r}{cut}", *printed_lines(printed)]


def printed_lines(printed: bytes) -> list[str]:
    """Return lines for an error with the last output of a process, control characters escaped; [] without output."""
    lines = printed.decode(errors="replace").splitlines()
    return ["last printed:", *(f"  {_visible(line)}" for line in lines)] if lines else []


def _visible(text: str) -> str:
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def failure(
    rule: RuleRef, answer: Answer | LoadAnswer, row: Mapping[str, object], index: int, printed: bytes
) -> RuleError:
    """Return the RuleError for an answer that reports a failure: a rule that was not loaded, or no score for a row.

    `row` and `index` identify the row; `printed` is the last output of the process.
    """
    text, notes = rule.text, notes_of(row, index, printed)
    match answer:
        case NotLoaded():
            notes = printed_lines(printed)
            return RuleError.not_loaded(text, _visible(answer.why), at=_visible(answer.at), notes=notes)
        case Lacks(failed="lacks_name"):
            return RuleError.lacks_name(text, answer.name, answer.known)
        case Lacks(failed="lacks_package"):
            return RuleError.lacks_package(text, answer.name)
        case Lacks():
            return RuleError.lacks_setting(text, answer.name, answer.known)
        case LacksColumn():
            return RuleError.lacks_column(text, answer.parameter, answer.known, name_of(row, index))
        case LacksTruth():
            return RuleError.lacks_truth(text, answer.value, name_of(row, index))
        case BadValue():
            return RuleError.bad_value(text, _visible(answer.value), notes=notes)
        case Raised():
            return RuleError.raised(text, _visible(answer.exception), at=_visible(answer.at), notes=notes)
        case Died():
            return RuleError.died(text, ending(answer.code), notes=notes)
        case _:
            return RuleError.forged(text, notes=notes)
