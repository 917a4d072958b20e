"""The comparison with verl's scorers: its answers are what they claim, and its reasons are of compared graders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import verl_scorers
from benchmarks.verl_scorers import ScorePair, rescored, table
from benchmarks.verl_scorers_answers import GRADERS, Grader, ScoredText, programs
from benchmarks.verl_scorers_programs import PROBLEMS, program_responses
from benchmarks.verl_scorers_reasons import REASONS, reason_for
from nodes.scoring import program_tests
from nodes.scoring.rules import RULES


def test_each_program_has_a_problem_with_tests_and_a_name_of_its_own() -> None:
    texts = list(program_responses())
    assert len(texts) > 100
    assert [shape for shape, count in Counter(shape for shape, _, _ in texts).items() if count > 1] == []
    assert {problem for _, _, problem in texts} == set(PROBLEMS)
    for problem in PROBLEMS.values():
        assert len(list(program_tests.tests_of(problem))) == len(problem["inputs"])  # type: ignore[arg-type]


def test_reasons_name_graders_and_shapes_that_are_compared() -> None:
    assert {grader.rule for grader in GRADERS} <= set(RULES)
    shapes = {
        rule: {answer.shape for grader in GRADERS if grader.rule == rule for answer in grader.answers} for rule in RULES
    }
    for reason in REASONS:
        for rule in reason.rules:
            assert set(reason.shapes) <= shapes[rule], reason.why


def test_a_difference_counts_as_explained_only_with_the_score_that_its_reason_says() -> None:
    grader = next(grader for grader in GRADERS if grader.rule == "prime_code")
    answer = next(answer for answer in programs() if answer.shape == "exit code 1")
    right = ScorePair(grader=grader, answer=answer, ours=0.0, theirs=1.0)
    wrong = ScorePair(grader=grader, answer=answer, ours=1.0, theirs=0.0)
    assert not right.equal and reason_for(right.grader, right.answer, right.ours, right.theirs) is not None
    assert reason_for(wrong.grader, wrong.answer, wrong.ours, wrong.theirs) is None
    assert "1: NOT EXPLAINED" in table([grader], [wrong], {wrong: None})


def test_what_verl_raises_is_not_equal_to_a_score() -> None:
    answer = ScoredText(shape="", response="", truth="")
    grader = Grader("gsm8k", "openai/gsm8k", "numbers")
    assert not ScorePair(grader=grader, answer=answer, ours=0.0, theirs="ValueError: no").equal
    assert ScorePair(grader=grader, answer=answer, ours=1.0, theirs=True).equal


def test_answers_that_a_limit_by_the_clock_ended_are_scored_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    by_clock, other = (Grader(rule, "theirs", "numbers") for rule in ("math_verify", "gsm8k"))
    calls = list[tuple[list[str], int]]()

    def scored(_: Path, texts: Sequence[tuple[Grader, ScoredText]], workers: int) -> tuple[str, list[ScorePair]]:
        calls.append(([grader.rule for grader, _ in texts], workers))
        return "0.9.1", [ScorePair(*text, ours=float(len(calls) < 3), theirs=0.0) for text in texts]

    monkeypatch.setattr(verl_scorers, "scored", scored)
    _, pairs = verl_scorers.compared(Path("python"), [replace(by_clock, every=40), replace(other, every=400)])
    first = sum(rule == "math_verify" for rule in calls[0][0])
    assert first > 1, "the test has answers of both"
    assert calls[1:] == [(["math_verify"] * first, 1)] * 2, "only what differs, one at a time, until it is equal"
    assert [pair.equal for pair in pairs] == [True] * first + [False]
    assert f"{first} of them are equal" in rescored([pair for pair in pairs if pair.again])
