"""`score`: which rule sees which row, and what is reported. The rules and their processes have tests of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from flowgraph.errors import RuleError
from nodes import Columns, Rollout, score
from nodes.scoring import rows_of
from nodes.values import Text

Make = Callable[..., Rollout]


def answered(make_rollout: Make, answers: list[str], truths: list[str], sources: list[str] | None = None) -> Rollout:
    rollout = make_rollout([2] * len(answers), group=[i // 2 for i in range(len(answers))])
    told = {"ground_truth": pa.array(truths, pa.string())}
    sourced = {} if sources is None else {"data_source": pa.array(sources, pa.string())}
    parts = {
        **rollout.parts,
        "text": Text(pa.array(answers, pa.string())),
        "columns": Columns(pa.table(told | sourced)),
    }
    return Rollout(**parts)


def test_each_response_gets_one_number(make_rollout: Make) -> None:
    rollout = answered(make_rollout, ["12", "13", " 12 ", ""], ["12"] * 4)
    scores = score(rollout, by="exact")
    assert scores.data.dtype == torch.float32 and scores.data[:2].tolist() == [1.0, 0.0]
    told = {each.name: (each.total, each.count) for each in scores.measures}
    assert told["reward"] == (float(scores.data.sum()), 4)
    assert told["full_marks"] == (float((scores.data == 1).sum()), 4)
    assert told["rule_failures"] == (0, 4)


def test_by_data_each_rows_data_source_names_its_rule_and_scores_keep_their_rows(make_rollout: Make) -> None:
    sources = ["digits", "openai/gsm8k", "digits", "openai/gsm8k"]
    rollout = answered(make_rollout, ["12", "#### 7", "19", "#### 8"], ["12", "7", "12", "7"], sources)
    digits, maths, half, wrong = score(rollout).data.tolist()
    assert digits == maths == 1.0 and 0 < half < 1 and wrong < 1


def test_a_data_source_without_a_rule_is_refused(make_rollout: Make) -> None:
    with pytest.raises(RuleError, match="no rule is known for data_source `mine`"):
        score(answered(make_rollout, ["1"], ["1"], ["mine"]))
    with pytest.raises(RuleError, match="no rule is known for data_source ``"):
        score(answered(make_rollout, ["1"], ["1"]))


def test_a_rule_sees_the_response_its_identity_and_every_column(make_rollout: Make) -> None:
    rows = rows_of(answered(make_rollout, ["a", "b", "c"], ["1", "2", "3"]))
    assert rows[2] == {
        "ground_truth": "3",
        "response": "c",
        "finished": True,
        "prompt_id": 1,
        "sample": 2,
    }


def test_a_rule_of_ones_own_is_named_by_its_file(make_rollout: Make, tmp_path: Path) -> None:
    rule = tmp_path / "mine.py"
    rule.write_text("def longer(response, ground_truth):\n    return len(response) / 4 + int(ground_truth)\n", "utf-8")
    rollout = answered(make_rollout, ["abc", "a"], ["1", "2"])
    assert score(rollout, by=f"{rule}:longer").data.tolist() == [1.75, 2.25]


@pytest.mark.slow(group="graders")
def test_a_rule_that_fails_fails_the_run_or_scores_what_is_said_and_is_counted(
    make_rollout: Make, tmp_path: Path
) -> None:
    rule = tmp_path / "mine.py"
    rule.write_text("def picky(response):\n    return float(response)\n", "utf-8")
    rollout = answered(make_rollout, ["1", "x", "nan"], ["", "", ""])
    with pytest.raises(RuleError, match="raised ValueError"):
        score(rollout, by=f"{rule}:picky")
    scores = score(rollout, by=f"{rule}:picky", on_error=-1.0)
    assert scores.data.tolist() == [1.0, -1.0, -1.0]
    assert {each.name: each.total for each in scores.measures}["rule_failures"] == 2


def test_no_rows_have_no_scores(make_rollout: Make) -> None:
    nothing = answered(make_rollout, [], [], [])
    assert score(nothing).data.shape == score(nothing, by="exact").data.shape == (0,)
