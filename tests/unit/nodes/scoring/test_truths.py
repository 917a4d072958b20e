"""Rows without the ground truth that a rule compares with: refused by name, before anything is sampled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flowgraph.errors import RuleError
from nodes import Policy, generate, score
from nodes.data.source import prompts_at
from nodes.scoring.graders import Graders
from nodes.scoring.rules import refuse_unknown_sources, refuse_unscorable, resolve


def table(*truths: object, source: str = "digits") -> pa.Table:
    """Make rows of verl's schema with these truths."""
    judged = [{"style": "rule", "ground_truth": each} for each in truths]
    return pa.table({"data_source": [source] * len(truths), "reward_model": judged})


@pytest.mark.parametrize(("truth", "shown"), [(None, "None"), ("", "'' (str)"), ("None", "'None' (str)")])
def test_a_truth_that_is_none_is_refused_with_its_row(truth: object, shown: str) -> None:
    with pytest.raises(RuleError) as caught:
        refuse_unscorable("data", table("1", truth), "rows")
    what = f"rule `partial` compares with `ground_truth`, which is {shown} in row 1 (from 0) of rows"
    assert str(caught.value).splitlines()[0] == what


def test_what_compares_with_no_truth_needs_none() -> None:
    refuse_unscorable("reasoning_gym", table(None), "rows")
    refuse_unscorable("mine.py:rule", table(None), "rows")
    refuse_unscorable("data", table(None, source="unknown"), "rows")
    refuse_unscorable("exact", pa.table({"prompt": ["a"]}), "rows")
    refuse_unscorable("data", table("1", "0", "none of these"), "rows")


def test_a_source_without_a_rule_is_refused_with_its_row() -> None:
    mixed = pa.concat_tables([table("1", "2"), table("3", source="mine")])
    with pytest.raises(RuleError) as caught:
        refuse_unknown_sources("data", mixed, "rows")
    assert str(caught.value).startswith("row 2 (from 0) of rows: no rule is known for data_source `mine`")
    with pytest.raises(RuleError, match=r"row 0 \(from 0\) of rows: has no `data_source`"):
        refuse_unknown_sources("data", mixed.drop_columns("data_source"), "rows")
    refuse_unknown_sources("mine.py:rule", mixed, "rows")
    refuse_unknown_sources("data", table("1", "2"), "rows")


@pytest.mark.parametrize(
    ("truth", "why"),
    [
        ("{", "not JSON"),
        ("[1]", "not an object"),
        ('{"inputs": ["1"], "outputs": []}', "1 inputs and 0 outputs"),
        ('{"inputs": [{}], "outputs": ["1"]}', "test 1 of the ground truth cannot be read"),
        ('{"fn_name": "f(", "inputs": ["1"], "outputs": ["1"]}', "cannot name a function"),
    ],
)
def test_tests_that_no_program_can_be_graded_by_are_refused_with_their_row(truth: str, why: str) -> None:
    right = '{"inputs": ["1"], "outputs": ["1"]}'
    refuse_unscorable("data", table(right, source="apps"), "rows")
    with pytest.raises(RuleError, match=why) as caught:
        refuse_unscorable("data", table(right, truth, source="apps"), "rows")
    assert str(caught.value).startswith("row 1 (from 0) of rows: rule `prime_code`: ")


@pytest.mark.slow(group="graders")
def test_a_grader_never_gives_full_marks_for_the_word_none() -> None:
    row = {"response": "None", "finished": True, "prompt_id": 3, "sample": 0}
    with Graders() as graders:
        for truth in (None, "", "None"):
            rows = [row | {"reward_model": {"style": "rule", "ground_truth": truth}}]
            with pytest.raises(RuleError, match=r"compares with `ground_truth`, which is .* in prompt 3, sample 0"):
                graders.grade(resolve("exact"), rows, on_error=0.0)
        assert graders.grade(resolve("exact"), [row | {"ground_truth": "None, 7"}]).scores == (0.0,)


def test_a_rule_of_ones_own_is_given_an_empty_truth_but_never_null_unless_it_has_a_default(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "def same(response, ground_truth): return response == ground_truth\n"
        "def knows(response, ground_truth=None): return ground_truth is None\n"
    )
    same, knows = (resolve(f"{tmp_path / 'own.py'}:{name}") for name in ("same", "knows"))
    with Graders() as graders:
        assert graders.grade(same, [{"response": "", "ground_truth": ""}]).scores == (1.0,)
        assert graders.grade(knows, [{"response": "", "ground_truth": None}]).scores == (1.0,)
        with pytest.raises(RuleError, match=r"compares with `ground_truth`, which is None in row 0"):
            graders.grade(same, [{"response": "None", "ground_truth": None}])


def of_styles(*styles: str) -> pa.Table:
    """Make rows of these styles, which all have a truth."""
    return pa.table(
        {
            "data_source": ["digits"] * len(styles),
            "reward_model": [{"style": style, "ground_truth": "1"} for style in styles],
        }
    )


def test_a_row_for_a_model_is_refused_where_its_source_chooses_a_rule() -> None:
    with pytest.raises(RuleError) as caught:
        refuse_unscorable("data", of_styles("rule", "model", "model"), "rows")
    what = 'row 1 (from 0) of rows has reward_model.style "model", so no rule scores it by its data_source'
    assert str(caught.value).splitlines()[0] == what
    refuse_unscorable("exact", of_styles("model"), "rows")
    refuse_unscorable("data", of_styles("rule"), "rows")
    refuse_unscorable("data", pa.table({"prompt": ["a"], "reward_model": pa.nulls(1)}), "rows")


def test_a_row_for_a_model_is_refused_when_it_is_scored(tiny: Callable[..., Any], digit_rows: Any) -> None:
    rows = digit_rows.to_pylist()[:2]
    rows[1]["reward_model"]["style"] = "model"
    rollout = generate(Policy(tiny()), prompts_at(pa.Table.from_pylist(rows), [0, 1]), n=2, max_tokens=2)
    with pytest.raises(RuleError, match=r'prompt 1, sample 0 has reward_model\.style "model"'):
        score(rollout)
    assert len(score(rollout, by="partial").data) == 4
