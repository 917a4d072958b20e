"""Where our graders differ from verl's scorers, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.verl_scorers_answers import Grader, ScoredText


@dataclass(frozen=True)
class ScoreReason:
    """Why a rule differs on answers that have certain shapes, or certain texts at their end."""

    why: str
    rules: Sequence[str]
    shapes: Sequence[str] = ()
    texts: Sequence[str] = ()


BY_VALUE = ("no space", "two spaces", "tab", "dollar", "full stop", "comma after", "two decimals")

REASONS: Sequence[ScoreReason] = (
    ScoreReason("numbers are compared by value; verl has no such reading", ["gsm8k_value"], BY_VALUE),
    ScoreReason(
        "verl computes the power without a limit of time or memory; ours refuses it",
        ["geo3k", "prime_math"],
        texts=["9**9**9**9"],
    ),
)


def reason_for(grader: Grader, answer: ScoredText) -> ScoreReason | None:
    """Return the first reason for a difference of a grader on an answer; None if none covers it."""
    for reason in REASONS:
        text = any(text in answer.response[-200:] for text in reason.texts)
        if grader.rule in reason.rules and (answer.shape in reason.shapes or text):
            return reason
    return None
