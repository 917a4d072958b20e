"""The shipped rules against cases worked by hand, and how rules are named."""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.errors import RuleError
from nodes.scoring.rules import (
    DATA_SOURCES,
    RULES,
    RuleRef,
    exact,
    gsm8k,
    gsm8k_value,
    number,
    partial,
    reasoning_gym,
    reference_of,
    resolve,
    rule_for,
)
from tests.looped import looped


@looped(
    "response, truth, score",
    [
        ("48 + 24 = 72\n#### 72", "72", 1.0),
        ("#### 5\nno, wait\n#### 72", "72", 1.0),
        ("#### 72\nno, wait\n#### 5", "72", 0.1),
        ("#### 1,080", "1080", 1.0),
        ("#### $18.00", "18", 1.0),
        ("#### -3", "-3", 1.0),
        ("#### 18.", "18", 1.0),
        ("####72", "72", 1.0),
        ("#### 1.2.3", "72", 0.1),
        ("#### seventy", "72", 0.0),
        ("the answer is 72", "72", 0.0),
        ("#### 72" + "." + "x" * 300, "72", 0.0),
        ("x" * 400 + "#### 72", "72", 1.0),
        ("", "72", 0.0),
    ],
)
def test_gsm8k_value_compares_the_value_of_the_last_marked_number_near_the_end(
    response: str, truth: str, score: float
) -> None:
    assert gsm8k_value(response, truth, format_score=0.1) == score


def test_gsm8k_gives_a_wrong_number_nothing_unless_told() -> None:
    assert gsm8k("#### 71", "72") == 0.0


def test_exact_wants_the_whole_text_and_an_end() -> None:
    assert [exact(" 42\n", "42", True), exact("42", "42", False), exact("42.", "42", True)] == [1.0, 0.0, 0.0]


def test_partial_counts_positions_and_the_end() -> None:
    assert partial("123", "123", True) == 1.0
    assert partial("123", "123", False) == 0.75
    assert partial("1234", "123", True) == 0.75
    assert partial("12", "123", True) == 0.5
    assert partial(" 123", "123", True) == 0.0
    assert partial("", "", True) == 1.0


@given(st.text("01", max_size=5), st.text("01", max_size=5), st.booleans())
def test_partial_is_full_only_for_the_finished_truth(response: str, truth: str, finished: bool) -> None:
    score = partial(response, truth, finished)
    assert 0.0 <= score <= 1.0
    assert (score == 1.0) == (finished and response == truth)


@looped(
    "response, score",
    [
        ("57", 1.0),
        (" 57\n", 1.0),
        ("It is 57.", 0.5),
        ("23+34=57, so 57", 0.5),
        ("157", 0.0),
        ("577", 0.0),
        ("5.57", 0.0),
        ("57.5", 0.0),
        ("57,000", 0.0),
        ("-57", 0.0),
        ("five", 0.0),
        ("", 0.0),
    ],
)
def test_number_wants_the_whole_number_and_likes_it_alone(response: str, score: float) -> None:
    assert number(response, "57") == score


def test_reasoning_gym_asks_the_task_itself() -> None:
    gym = pytest.importorskip("reasoning_gym")
    entry = gym.create_dataset("chain_sum", size=1, seed=3)[0]
    told = {"dataset": "chain_sum", "entry": json.dumps(entry)}
    assert reasoning_gym(f"so <answer> {entry['answer']}</answer> it is", told) == 1.0
    assert reasoning_gym(f"{entry['answer']}\n", told) == 1.0
    assert reasoning_gym("no idea", told) < 0.1


def test_a_data_source_names_a_shipped_rule() -> None:
    assert set(DATA_SOURCES.values()) <= set(RULES)
    assert rule_for("digits") == "partial"
    assert rule_for("reasoning_gym/sudoku") == "reasoning_gym"
    assert rule_for("math") == rule_for("aime_2024") == rule_for("Maxwell-Jia/AIME_2024") == "math_dapo"
    assert rule_for("HuggingFaceH4/MATH-500") == "math_reward" and rule_for("numina_olympiads") == "prime_math"
    assert rule_for("searchR1_nq") == "search_r1" and rule_for("hiyouga/geometry3k") == "geo3k"


def test_an_unknown_data_source_is_told_what_to_do() -> None:
    with pytest.raises(RuleError) as caught:
        rule_for("lighteval/MATHS")
    what, known, hint = str(caught.value).split("\n")
    assert what == "no rule is known for data_source `lighteval/MATHS`"
    assert known == f"    known: {', '.join(sorted(DATA_SOURCES))}"
    assert hint == "  hint: did you mean `lighteval/MATH`? Otherwise name a rule with by=, as in score(rollout, by=...)"


def test_a_file_is_found_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("this is not even python")
    assert resolve("mine.py:strict") == RuleRef("mine.py:strict", str(tmp_path / "mine.py"), "strict")
    assert resolve("package.module:strict") == RuleRef("package.module:strict", "package.module", "strict")


@looped(
    "by, text",
    [
        ("gsm8", "no shipped rule `gsm8`\n  hint: did you mean `gsm8k`? (one of your own: path.py:name)"),
        ("mine.py", "`mine.py` does not name a function\n  hint: write path.py:name or package.module:name"),
        ("mine.py:", "`mine.py:` does not name a function\n  hint: write path.py:name or package.module:name"),
        ("mine.py:a b", "`mine.py:a b` does not name a function\n  hint: write path.py:name or package.module:name"),
        ("mine.py:strict", "rule `mine.py:strict`: no file {here}/mine.py"),
    ],
)
def test_what_cannot_be_found_is_said(by: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuleError) as caught:
        resolve(by)
    assert str(caught.value) == text.format(here=tmp_path)


def loaded(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


MINE = """
def strict(response): return 1.0
def make():
    def nested(response): return 1.0
    return nested
class Both:
    @staticmethod
    def held(response): return 1.0
    def bound(self, response): return 1.0
short = lambda response: 1.0
replaced = strict
def strict(response): return 0.0
"""


def test_a_function_of_an_importable_module_is_named_by_it() -> None:
    assert reference_of(gsm8k) == "nodes.scoring.math_rules:gsm8k"
    assert resolve(reference_of(gsm8k)).shipped


def test_a_function_of_a_users_file_is_named_by_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    mine = loaded(tmp_path / "mine.py", "a_flow_of_a_user", monkeypatch)
    assert reference_of(mine.strict) == f"{tmp_path}/mine.py:strict"
    monkeypatch.chdir(tmp_path)
    assert reference_of(mine.strict) == "mine.py:strict"
    assert reference_of(mine.Both.held) == "mine.py:Both.held"
    monkeypatch.syspath_prepend(tmp_path)
    assert reference_of(loaded(tmp_path / "mine.py", "mine", monkeypatch).strict) == "mine:strict"


def test_a_function_that_has_no_name_of_its_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    mine = loaded(tmp_path / "mine.py", "a_flow_of_a_user", monkeypatch)
    monkeypatch.chdir(tmp_path)
    refused = {
        "`<lambda>` at mine.py:10": mine.short,
        "`make.<locals>.nested` at mine.py:4": mine.make(),
        "`Both.bound` at mine.py:9": mine.Both().bound,
        "`strict` at mine.py:2": mine.replaced,
    }
    for said, function in refused.items():
        with pytest.raises(RuleError) as caught:
            reference_of(function)
        assert str(caught.value) == (
            f"rule {said} cannot be found by its name\n  hint: define it at the top level of a file"
        )
    with pytest.raises(RuleError, match=r"partial"):
        reference_of(functools.partial(gsm8k, format_score=0.1))
