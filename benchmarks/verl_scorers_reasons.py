"""Where our graders differ from verl's scorers, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.verl_scorers_answers import Grader, ScoredText


@dataclass(frozen=True)
class ScoreReason:
    """Why a rule differs on answers that have certain shapes, or certain texts at their end or in their truth.

    `ours` is the score that ours then is, if it is always the same; `raises` is the exception that verl raises.
    """

    why: str
    rules: Sequence[str]
    shapes: Sequence[str] = ()
    texts: Sequence[str] = ()
    ours: float | None = None
    raises: str = ""


BY_VALUE = ("no space", "two spaces", "tab", "dollar", "full stop", "comma after", "two decimals")

PROGRAMS = ("prime_code", "prime_code_all")
IN_A_FUNCTION = (
    *("assigns a builtin", "global", "global that is read", "text of several lines", "star import later"),
    *("main guard not last", "future import"),
)
OTHER_STDIN = ("stdin.buffer", "open(0)")
TAKEN_AWAY = ("exit()", "os.getcwd", "os._exit")

REASONS: Sequence[ScoreReason] = (
    ScoreReason("numbers are compared by value; verl has no such reading", ["gsm8k_value"], BY_VALUE),
    ScoreReason(
        "verl computes the power without a limit of time or memory; ours refuses it",
        ["geo3k"],
        texts=["9**9**9**9"],
        ours=0.0,
    ),
    ScoreReason(
        "verl takes over 15 CPU seconds for a million characters; ours refuses an answer of over 1,000",
        ["prime_math"],
        ["hostile: a million spaces"],
        ours=0.0,
    ),
    ScoreReason(
        "x(x+2) is a product in ours, and the call of a function x in verl's",
        ["prime_math"],
        texts=["x(x+2)"],
    ),
    ScoreReason(
        "the last resort of verl reads LaTeX only with antlr4 4.11; ours reads it always",
        ["prime_math"],
        texts=["\\frac", "\\sqrt", "\\pi", "\\,", "\\text"],
        ours=1.0,
    ),
    ScoreReason(
        "verl makes the program the body of a function, which changes what it does", PROGRAMS, IN_A_FUNCTION, ours=1.0
    ),
    ScoreReason(
        "verl gives no standard input, only a `sys.stdin` without `buffer`",
        PROGRAMS,
        OTHER_STDIN,
        ours=1.0,
    ),
    ScoreReason("verl removes `exit` and functions of `os`, or ends with the program", PROGRAMS, TAKEN_AWAY, ours=1.0),
    ScoreReason("a script cannot `return`; the body of a function can", PROGRAMS, ["return"], ours=0.0),
    ScoreReason("an exit code other than 0 is a failure; verl ignores it", PROGRAMS, ["exit code 1"], ours=0.0),
    ScoreReason("verl refuses tests that are lists of lines, as in APPS", PROGRAMS, ["lists of lines"], ours=1.0),
    ScoreReason("verl runs all tests in one process, which keeps state", PROGRAMS, ["function, state"], ours=1.0),
    ScoreReason(
        "verl loses `fn_name` when it runs the tests one by one, so no function is partly right",
        ["prime_code"],
        ["function, partly right", "function, never returns"],
        ours=0.5,
    ),
    ScoreReason(
        "verl takes the first element of an expected list for the list",
        PROGRAMS,
        ["function, first of a list"],
    ),
    ScoreReason(
        "an object that claims to equal anything is compared by what it holds as JSON",
        PROGRAMS,
        ["function, equals anything"],
        ours=0.0,
    ),
    ScoreReason(
        "verl raises UnboundLocalError for a wrong program without `continuous`",
        ["prime_code_all"],
        ours=0.0,
        raises="UnboundLocalError",
    ),
)


def reason_for(grader: Grader, answer: ScoredText, ours: float, theirs: object = None) -> ScoreReason | None:
    """Return the first reason for a difference of a grader's scores, `ours` and `theirs`; None if none covers it."""
    for reason in REASONS:
        if grader.rule not in reason.rules or reason.ours not in (None, ours):
            continue
        text = any(text in f"{answer.response[-200:]} {answer.truth}" for text in reason.texts)
        raised = bool(reason.raises) and str(theirs).startswith(reason.raises)
        if answer.shape in reason.shapes or text or raised:
            return reason
    return None
