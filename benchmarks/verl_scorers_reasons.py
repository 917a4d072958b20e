"""Where our graders differ from verl's scorers, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.verl_scorers_answers import Grader, ScoredText


@dataclass(frozen=True)
class ScoreReason:
    """Why a rule differs on answers that have certain shapes, or certain texts at their end or in their truth.

    `ours` is the score that ours then is, if it is always the same.
    """

    why: str
    rules: Sequence[str]
    shapes: Sequence[str] = ()
    texts: Sequence[str] = ()
    ours: float | None = None


BY_VALUE = ("no space", "two spaces", "tab", "dollar", "full stop", "comma after", "two decimals")

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
        ["geo3k", "prime_math"],
        texts=["x(x+2)"],
    ),
    ScoreReason(
        "the last resort of verl reads LaTeX only with antlr4 4.11; ours reads it always",
        ["prime_math"],
        texts=["\\frac", "\\sqrt", "\\pi", "\\,", "\\text"],
        ours=1.0,
    ),
)


def reason_for(grader: Grader, answer: ScoredText, ours: float) -> ScoreReason | None:
    """Return the first reason for a difference of a grader, whose score is `ours`; None if none covers it."""
    for reason in REASONS:
        text = any(text in f"{answer.response[-200:]} {answer.truth}" for text in reason.texts)
        named = grader.rule in reason.rules and reason.ours in (None, ours)
        if named and (answer.shape in reason.shapes or text):
            return reason
    return None
