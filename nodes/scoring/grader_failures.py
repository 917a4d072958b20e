"""Failures of a grader process as errors for a person."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence

from flowgraph.errors import RuleError
from nodes.scoring.grader_messages import Answer, BadValue, Died, LoadAnswer, NotLoaded, Raised, Ready
from nodes.scoring.rules import RuleRef

RESPONSE_CHARACTERS = 80
_SIGNALS = {int(number): number.name for number in signal.Signals}
_IDENTITY = (("prompt", "prompt_id"), ("sample", "sample"))


def ending(code: int) -> str:
    """Return how a process ended, from its exit code or minus its signal.

    >>> ending(3), ending(-9), ending(-40)
    ('exit code 3', 'killed by SIGKILL', 'killed by signal 40')
    """
    return f"exit code {code}" if code >= 0 else f"killed by {_SIGNALS.get(-code, f'signal {-code}')}"


def name_of(row: Mapping[str, object], index: int) -> str:
    """Name a row by its prompt and sample, or else by its index."""
    names = [f"{name} {row[column]}" for name, column in _IDENTITY if column in row]
    return ", ".join(names) or f"row {index}"


def notes_of(row: Mapping[str, object], index: int, printed: bytes) -> list[str]:
    """Return the notes of an error about a row: its name, its response, and what was printed last."""
    response = str(row["response"]) if "response" in row else ""
    cut = "…" if len(response) > RESPONSE_CHARACTERS else ""
    return [f"{name_of(row, index)}, response {response[:RESPONSE_CHARACTERS]!r}{cut}", *printed_lines(printed)]


def printed_lines(printed: bytes) -> list[str]:
    """Return the last lines that a process printed, as notes of an error."""
    lines = printed.decode(errors="replace").splitlines()
    return ["last printed:", *(f"  {_visible(line)}" for line in lines)] if lines else []


def _visible(text: str) -> str:
    """Escape the characters that a terminal would act on."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def failure(rule: RuleRef, answer: Answer, notes: Sequence[str]) -> RuleError:
    """Return the error of a rule that returned no score."""
    match answer:
        case BadValue():
            return RuleError.bad_value(rule.text, _visible(answer.value), notes=notes)
        case Raised():
            return RuleError.raised(rule.text, _visible(answer.exception), at=_visible(answer.at), notes=notes)
        case Died():
            return RuleError.died(rule.text, ending(answer.code), notes=notes)
        case _:
            return RuleError.forged(rule.text, notes=notes)


def not_loaded(rule: RuleRef, answer: LoadAnswer, printed: bytes) -> RuleError:
    """Return the error of a rule that was not loaded."""
    if isinstance(answer, NotLoaded):
        notes = printed_lines(printed)
        return RuleError.not_loaded(rule.text, _visible(answer.why), at=_visible(answer.at), notes=notes)
    assert not isinstance(answer, Ready)
    match answer.failed:
        case "lacks_name":
            return RuleError.lacks_name(rule.text, answer.name, answer.known)
        case "lacks_package":
            return RuleError.lacks_package(rule.text, answer.name)
        case "lacks_setting":
            return RuleError.lacks_setting(rule.text, answer.name, answer.known)
