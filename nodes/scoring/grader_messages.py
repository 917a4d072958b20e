"""The messages that a grader process may send: everything else is forged.

The process has run a rule on a response, so none of its messages is trusted: types, sizes, ranges and the question's
id are checked here.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

MESSAGE_BYTES = 131_072
LARGEST_SCORE = 3.4e38  # scores are float32

_Words = Annotated[str, Field(max_length=1_000)]
_Names = Annotated[list[_Words], Field(max_length=1_000)]


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    id: Annotated[int, Field(ge=0)]


class Ready(_Message):
    """The rule is loaded."""

    ready: Literal[True]


class NotLoaded(_Message):
    """The rule does not load: why, and where in its file."""

    failed: Literal["not_loaded"]
    why: _Words
    at: _Words


class Lacks(_Message):
    """The rule's file or function lacks a name, or this machine lacks a package."""

    failed: Literal["lacks_name", "lacks_package", "lacks_setting"]
    name: _Words
    known: _Names = []


class _Answer(_Message):
    spent: bool = False


class ScoredAnswer(_Answer):
    """A response's score; `unreadable` if the rule found nothing in it to score."""

    score: Annotated[float, Field(ge=-LARGEST_SCORE, le=LARGEST_SCORE, allow_inf_nan=False)]
    unreadable: bool = False


class LacksColumn(_Answer):
    """The row lacks a column that the rule asks for."""

    failed: Literal["lacks_column"]
    parameter: _Words
    known: _Names


class LacksTruth(_Answer):
    """The row has no ground truth, and the rule needs one."""

    failed: Literal["lacks_truth"]
    value: _Words


class Raised(_Answer):
    """The rule raised."""

    failed: Literal["raised"]
    exception: _Words
    at: _Words


class BadValue(_Answer):
    """The rule returned no finite number."""

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
_LOADS: TypeAdapter[LoadAnswer] = TypeAdapter(LoadAnswer)
_ANSWERS: TypeAdapter[Answer] = TypeAdapter(Answer)


def read_load(line: bytes, question: int) -> LoadAnswer | None:
    """Read the answer to a rule that was sent; None if it does not answer this question."""
    with suppress(ValidationError):
        answer = _LOADS.validate_json(line)
        return answer if answer.id == question else None
    return None


def read_answer(line: bytes, question: int) -> Answer | None:
    """Read the answer to a row; None if it does not answer this question.

    >>> read_answer(b'{"id": 7, "score": 0.5}', 7).score, read_answer(b'{"id": 8, "score": 0.5}', 7)
    (0.5, None)
    """
    with suppress(ValidationError):
        answer = _ANSWERS.validate_json(line)
        return answer if answer.id == question else None
    return None
