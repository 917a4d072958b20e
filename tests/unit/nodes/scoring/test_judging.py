"""Judging: scores by a reward model, and by what a judge writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import FlowError
from flowgraph.language import Key
from nodes import Judge, Policy, Rollout, generate, judged
from nodes.data.source import prompts_at
from nodes.scoring.judging import filled, grade

Tiny = Callable[..., LocalModel]


class Written:
    """A tokenizer that reads what it is told, and shows what it was asked."""

    def __init__(self, inner: Any, verdicts: list[str]) -> None:
        self.inner, self.verdicts, self.asked = inner, verdicts, list[str]()

    def encode(self, messages: Any, answer: str | None = None) -> tuple[int, ...]:
        self.asked.append(messages[-1]["content"])
        return tuple(self.inner.encode([{"role": "user", "content": "1"}]))

    def decode(self, tokens: Any) -> str:
        return self.verdicts.pop(0)


@pytest.fixture
def rollout(tiny: Tiny, digit_rows: Any) -> Rollout:
    return generate(Policy(tiny()), prompts_at(digit_rows, [5, 2]), n=2, max_tokens=3)


def judge(tiny: Tiny, verdicts: list[str]) -> LocalModel:
    handle = tiny()
    handle.tokenizer = Written(handle.tokenizer, list(verdicts))  # type: ignore[assignment]
    return handle


def test_a_judge_scores_each_response_by_the_last_number_of_its_verdict(tiny: Tiny, rollout: Rollout) -> None:
    handle = judge(tiny, ["Grade: 10", "7.5 of 10, so 7", "0", "2"])
    scores = judged(Judge(handle), rollout, question="{prompt}|{response}|{ground_truth}|{}", max_tokens=2)
    assert scores.data.tolist() == pytest.approx([1.0, 0.7, 0.0, 0.2])
    truths = [row["ground_truth"] for row in rollout.columns.data.column("reward_model").to_pylist()]
    texts = rollout.text.data.to_pylist()
    asked: Any = handle.tokenizer
    assert asked.asked == [f"{t}|{text}|{t}|{{}}" for t, text in zip(truths, texts, strict=True)]
    told = {measure.name: (measure.total, measure.count) for measure in scores.measures}
    assert told["best"] == (pytest.approx(1.2), 2) and told["solved"] == (1.0, 2) and told["unread"] == (0, 4)


def test_a_verdict_without_a_number_fails_or_scores_as_told(tiny: Tiny, rollout: Rollout) -> None:
    with pytest.raises(FlowError, match="ends with no number from 0 to 10: 'no idea'"):
        judged(Judge(judge(tiny, ["3", "no idea", "1", "2"])), rollout, max_tokens=2)
    scores = judged(Judge(judge(tiny, ["3", "no idea", "1", "2"])), rollout, max_tokens=2, on_error=-1.0)
    assert scores.data.tolist() == pytest.approx([0.3, -1.0, 0.1, 0.2])


def test_a_real_judge_reads_the_same_whatever_the_batch(tiny: Tiny, rollout: Rollout) -> None:
    settings: dict[str, Any] = {"question": "{response}", "max_tokens": 4, "on_error": 0.0, "temperature": 1.0}
    whole = judged(Judge(tiny()), rollout, key=Key(3), **settings)
    one_by_one = judged(Judge(tiny(sample_rows=1)), rollout, key=Key(3), **settings)
    assert torch.equal(whole.data, one_by_one.data)


def test_what_is_filled_in_is_no_question_itself() -> None:
    assert filled("{response} {prompt}", {"response": "{prompt}", "prompt": "{response}"}) == "{prompt} {response}"
    assert filled("{} {a b} {0}", {}) == "{} {a b} {0}"


def test_a_grade_is_the_last_number_within_the_scale() -> None:
    assert grade("10/10? No: 2.5", 10) == 2.5
    assert [grade(text, 10) for text in ("Grade: 7/10", "3 / 10.")] == [7.0, 3.0], "not the 10"
    assert [grade(text, 10) for text in ("none", "-1", "10.5", "1808353")] == [None] * 4


def test_a_name_that_no_column_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(FlowError, match=r"the question uses `\{respons\}`") as raised:
        filled("{respons}", {"response": "1"})
    assert raised.value.hint == "did you mean `response`?"


def test_a_question_never_holds_the_word_none_for_what_is_null() -> None:
    with pytest.raises(FlowError, match=r"uses `{ground_truth}`, which is null"):
        filled("Is it {ground_truth}?", {"ground_truth": None})
