"""What a grader process answered when something went wrong, as errors that a person reads."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence

from flowgraph.errors import RuleError
from nodes.grader_messages import Answer, BadValue, Died, LoadAnswer, NotLoaded, Raised, Ready
from nodes.rules import RuleRef

RESPONSE_CHARACTERS = 80


_SIGNALS = {int(each): each.name for each in signal.Signals}


def ending(code: int) -> str:
    """Return how a process ended, from its exit code or minus its signal.

    >>> ending(3), ending(-9), ending(-40)
    ('exit code 3', 'killed by SIGKILL', 'killed by signal 40')
    """
    return f"exit code {code}" if code >= 0 else f"killed by {_SIGNALS.get(-code, f'signal {-code}')}"


def called(row: Mapping[str, object], index: int) -> str:
    """Name a row by its prompt and sample, or else by its place."""
    names = [f"{name} {row[column]}" for name, column in _IDENTITY if column in row]
    return ", ".join(names) or f"row {index}"


_IDENTITY = (("prompt", "prompt_id"), ("sample", "sample"))


def notes_of(row: Mapping[str, object], index: int, printed: bytes) -> list[str]:
    """Return the notes of an error about a row: which one, what it answered, and what was printed last."""
    response = str(row["response"]) if "response" in row else ""
    cut = "…" if len(response) > RESPONSE_CHARACTERS else ""
    return [f"{called(row, index)}, response {response[:RESPONSE_CHARACTERS]!r}{cut}", *printed_lines(printed)]


def printed_lines(printed: bytes) -> list[str]:
    """Return the last lines that a process printed, as notes of an error."""
    lines = printed.decode(errors="replace").splitlines()
    return ["last printed:", *(f"  {_visible(line)}" for line in lines)] if lines else []


def _visible(text: str) -> str:
    """Show what a terminal would act on, such as an escape, as what it is."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def failure(rule: RuleRef, answer: Answer, notes: Sequence[str]) -> RuleError:
    """Return the error of a rule that gave no score."""
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
