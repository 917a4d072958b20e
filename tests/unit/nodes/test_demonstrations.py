"""Demonstrations: the data set's answers as responses, token by token as the model's template writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import torch

from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import DataError
from nodes import Columns, Policy, Prompts, cross_entropy, demonstrations, logprobs
from nodes.data.source import prompts_at
from nodes.demonstrations import answer_of

Tiny = Callable[..., LocalModel]


def with_responses(prompts: Prompts, answers: list[str | None], name: str = "response") -> Prompts:
    table = prompts.columns.data.append_column(name, pa.array(answers, pa.string()))
    return Prompts(group=prompts.group, columns=Columns(table))


def test_an_answer_is_the_ground_truth_and_the_end_token_behind_the_prompt(tiny: Tiny, digit_rows: Any) -> None:
    handle, prompts = tiny(), prompts_at(digit_rows, [3, 1])
    answers = demonstrations(Policy(handle), prompts)
    asked = prompts.columns.data.to_pylist()
    for row, tokens in zip(asked, answers.tokens.data.tolist(), strict=True):
        assert handle.tokenizer.decode(tokens) == row["reward_model"]["ground_truth"]
        assert tokens[-1] in handle.ends
    assert answers.context.data.to_pylist() == [list(handle.tokenizer.encode(row["prompt"])) for row in asked]
    assert answers.group.data.tolist() == [3, 1]
    assert answers.lengths.data.tolist() == [4, 4]


def test_a_response_column_comes_before_the_ground_truth_and_answers_differ_in_length(
    tiny: Tiny, digit_rows: Any
) -> None:
    prompts = with_responses(prompts_at(digit_rows, [0, 1]), ["12345", "6"])
    answers = demonstrations(Policy(tiny()), prompts)
    assert answers.lengths.data.tolist() == [6, 2]
    assert answers.mask.data.sum(1).tolist() == [6, 2]
    assert not answers.tokens.data[1, 2:].any()


def test_a_column_can_be_named_and_long_answers_are_cut_and_counted(tiny: Tiny, digit_rows: Any) -> None:
    prompts = with_responses(prompts_at(digit_rows, [0, 1]), ["12345", "6"], "solution")
    answers = demonstrations(Policy(tiny()), prompts, column="solution", max_tokens=3)
    assert answers.lengths.data.tolist() == [3, 2]
    told = {measure.name: (measure.total, measure.count) for measure in answers.measures}
    assert told == {"response_length": (5.0, 2), "truncated": (1, 2)}


@pytest.mark.parametrize("answers", [["1", None], ["1", ""]])
def test_a_row_without_an_answer_is_refused(tiny: Tiny, digit_rows: Any, answers: list[str | None]) -> None:
    with pytest.raises(DataError, match="column `response`"):
        demonstrations(Policy(tiny()), with_responses(prompts_at(digit_rows, [0, 1]), answers))


def test_the_loss_on_demonstrations_is_the_mean_of_minus_the_log_probs_of_the_answers(
    tiny: Tiny, digit_rows: Any
) -> None:
    handle = tiny()
    answers = demonstrations(Policy(handle), prompts_at(digit_rows, [3, 1]))
    loss = cross_entropy(logprobs(Policy(handle), answers), answers.mask)
    found = float(loss.total([term.counts() for term in loss.terms]))
    wanted = list[torch.Tensor]()
    for context, tokens in zip(answers.context.data.to_pylist(), answers.tokens.data.tolist(), strict=True):
        logits = handle.model(torch.tensor([[*context, *tokens]])).logits[0, len(context) - 1 : -1]
        wanted += list(-logits.log_softmax(-1)[range(len(tokens)), tokens])
    assert found == pytest.approx(float(torch.stack(wanted).mean()), abs=1e-5)


def test_worked_solutions_come_before_the_bare_answer_and_structs_are_reached_by_path() -> None:
    row = {"extra_info": {"answer": "2 + 6 = 8\n#### 8"}, "reward_model": {"ground_truth": "8"}}
    assert answer_of(row, "") == "2 + 6 = 8\n#### 8"
    assert answer_of(row, "reward_model.ground_truth") == "8"
    with pytest.raises(DataError, match=r"extra_info\.question"):
        answer_of(row, "extra_info.question")
