"""Metrics of held-out checks: by source, pass@k and maj@k against a second writing, and names that collide."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from flowgraph.app.running.check_metrics import (
    MAX_SOURCES,
    final_answer,
    held_out_metrics,
    majority_at_k,
    metric_names,
    source_names,
)


def tables(rows: Sequence[tuple[int, str | None, str, float]]) -> tuple[pa.Table, pa.Table]:
    """Return the tables of a rollout and of its scores, of rows (prompt, source, text, score)."""
    groups, sources, texts, scores = zip(*rows, strict=True)
    rollout = pa.table({"group": groups, "columns.data_source": pa.array(sources, pa.string()), "text": texts})
    return rollout, pa.table({"value": pa.array(scores, pa.float32())})


def test_each_source_has_its_metrics_and_each_prompt_counts_once() -> None:
    rows = [(0, "math", "1", 1.0), (0, "math", "2", 0.0), (1, "code", "3", 0.5), (1, "code", "4", 0.5)]
    metrics = held_out_metrics(tables(rows))
    assert list(metrics) == metric_names(["math", "code"], 2)
    assert metrics["eval/math"] == 0.5 and metrics["eval/code"] == 0.0 and metrics["eval/accuracy"] == 0.25
    assert metrics["eval/code/reward"] == 0.5 and metrics["eval/math/pass@2"] == 1.0
    assert metrics["eval/math/maj@2"] == 1.0, "the first of two answers that one response each gives"


def test_pass_at_k_and_majority_agree_with_counting_all_choices() -> None:
    draw = random.Random(7)
    for _ in range(20):
        n = draw.choice([2, 4, 8])
        answers = [draw.choice("abc") for _ in range(n)]
        scores = [float(answer == "a") for answer in answers]
        metrics = held_out_metrics(tables([(3, "x", a, s) for a, s in zip(answers, scores, strict=True)]))
        for k in (2, 4, 8)[: int(math.log2(n))]:
            chosen = list(itertools.combinations(scores, k))
            assert metrics[f"eval/pass@{k}"] == pytest.approx(sum(map(max, chosen)) / len(chosen))
        counts = {answer: answers.count(answer) for answer in answers}
        winner = next(answer for answer in answers if counts[answer] == max(counts.values()))
        assert metrics[f"eval/maj@{n}"] == majority_at_k(answers, scores, n) == float(winner == "a")


def test_scores_that_are_no_numbers_answers_of_rules_and_rows_without_sources_are_counted() -> None:
    rollout, scores = tables([(0, None, "1", math.nan), (0, None, "1", 1.0)])
    metrics = held_out_metrics((rollout, scores))
    assert metrics["eval/accuracy"] == 0.5 and math.isnan(metrics["eval/reward"]) and "eval/?" not in metrics
    voted = scores.append_column("pred", pa.array(["b", None]))
    assert held_out_metrics((rollout, voted))["eval/maj@2"] == 0.0
    assert held_out_metrics((rollout.drop_columns("columns.data_source"), scores))["eval/accuracy"] == 0.5
    assert held_out_metrics((rollout.slice(0, 0), scores.slice(0, 0))) == {}


def test_hostile_sources_become_one_printable_line_and_too_many_have_no_metrics_of_their_own() -> None:
    names = source_names(pa.table({"data_source": ["a\n\x1b[31m\u202eb", "x" * 1000, None]}))
    assert names[0] == "a [31mb" and len(names[1] or "") == 100
    many = held_out_metrics(tables([(i, f"s{i}", "1", 1.0) for i in range(MAX_SOURCES + 1)]))
    assert list(many) == metric_names([f"s{i}" for i in range(MAX_SOURCES + 1)], 1) == ["eval/accuracy", "eval/reward"]


def test_an_answer_is_what_a_response_marks_last() -> None:
    answers = [r"\boxed{1} then \boxed{\text{2 }}", "#### 7\n#### 1,000", "<answer>\n b </answer>", "plain 3."]
    assert [final_answer(text) for text in answers] == [r"\text{2}", "1000", "b", "plain3"]
    assert final_answer("\\boxed{" * 2000).startswith("\\boxed{")
