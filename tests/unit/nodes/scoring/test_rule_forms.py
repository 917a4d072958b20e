"""Rules of other trainers run unchanged, and what a rule returns besides its score reaches metrics and rollouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from flowgraph.errors import RuleError
from flowgraph.language.rows import take
from flowgraph.runtime.batch import from_table, to_table
from flowgraph.runtime.record.run_folder import write_rollout
from flowgraph.runtime.row_identity import join_shards
from nodes import Columns, Rollout, score
from nodes.scoring.grader_messages import LARGEST_SCORE
from nodes.scoring.graders import Graders
from nodes.scoring.rule_forms import LARGEST, MAX_EXTRAS, TEXT_CHARACTERS, TEXTS_CHARACTERS, extras_of, finite, single
from nodes.scoring.rules import resolve
from nodes.values import Scores, Text
from tests.looped import looped

OF_OTHERS = """
def of_verl(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    right = solution_str == ground_truth
    return {"score": float(right), "acc": right, "pred": solution_str, "level": extra_info.get("level"), "reward": 5}

async def of_verl_awaited(data_source, solution_str, ground_truth, extra_info):
    return 0.5 if data_source == "mine" else 0.0

def of_trl(prompts, completions, ground_truth, **kwargs):
    assert [prompt[-1]["content"] for prompt in prompts] == ["?"]
    return [float(completion[0]["content"] == truth) for completion, truth in zip(completions, ground_truth)]

def of_trl_plain(completions, data_source, **kwargs):
    return [len(c[0]["content"]) / 4 for c in completions]

def too_many(completions, **kwargs):
    return [1.0, 2.0]

def too_few(completions, **kwargs):
    return []

def not_listed(completions, **kwargs):
    return 1.0

def not_applicable(completions, **kwargs):
    return [None]

def scoreless(response):
    return {"acc": 1.0}

def crowded(response):
    return {"score": 1.0, **{str(i): i for i in range(40)}}

def unscored(response):
    return {"score": float("nan"), "acc": 1.0}

def texts(response):
    return {"score": "1"}

class Closed(dict):
    def items(self):
        raise ValueError("closed")

class Leaving(dict):
    def get(self, *name):
        raise SystemExit("gone")

    __repr__ = get

def closed(response):
    return Closed(score=1.0, acc=1.0)

def leaving(response):
    return Leaving(score=1.0)
"""


@pytest.fixture
def others(tmp_path: Path) -> Path:
    (tmp_path / "others.py").write_text(OF_OTHERS)
    return tmp_path / "others.py"


@pytest.mark.processes
def test_rules_of_verl_and_trl_run_unchanged(others: Path) -> None:
    prompt = [{"role": "user", "content": "?"}]
    rows = [{"response": r, "ground_truth": "7", "data_source": "mine", "prompt": prompt} for r in ("7", "88")]
    with Graders() as graders:

        def scores(name: str) -> tuple[float, ...]:
            return graders.grade(resolve(f"{others}:{name}"), rows).scores

        verl = graders.grade(resolve(f"{others}:of_verl"), [{**rows[0], "extra_info": {"level": 3}}, rows[1]])
        assert verl.scores == (1.0, 0.0)
        assert verl.extras[0] == {"acc": 1.0, "pred": "7", "level": 3.0, "reward": 5.0}
        assert verl.extras[1] == {"acc": 0.0, "pred": "88", "level": None, "reward": 5.0}
        assert scores("of_verl_awaited") == (0.5, 0.5)
        assert scores("of_trl") == (1.0, 0.0) and scores("of_trl_plain") == (0.25, 0.5)
        refused = {
            "too_many": "returned [1.0, 2.0] (list), 2 scores for one completion, not a finite number",
            "too_few": "returned [] (list), 0 scores for one completion, not a finite number",
            "not_listed": "returned 1.0 (float), where a list of one score is due, not a finite number",
            "not_applicable": "returned None, not a finite number",
            "scoreless": "returned {'acc': 1.0} (dict), which has no `score`, not a finite number",
            "crowded": "41 entries; at most 32 beside `score` are recorded, not a finite number",
            "unscored": "returned {'score': nan, 'acc': 1.0} (dict), not a finite number",
            "texts": "returned {'score': '1'} (dict), not a finite number",
            "closed": "(Closed), which cannot be read: ValueError: closed, not a finite number",
            "leaving": "a value without a repr (Leaving), which cannot be read: SystemExit: gone, not a finite number",
        }
        for name, text in refused.items():
            with pytest.raises(RuleError) as caught:
                scores(name)
            assert text in str(caught.value), name
        assert graders.grade(resolve(f"{others}:scoreless"), rows, on_error=-1.0).scores == (-1.0, -1.0)


def answered(make_rollout: Callable[..., Rollout], responses: list[str], sources: list[str]) -> Rollout:
    rollout = make_rollout([2] * len(responses), group=[0] * len(responses))
    columns = pa.table({"ground_truth": ["7"] * len(responses), "data_source": sources})
    return Rollout(**{**rollout.parts, "text": Text(pa.array(responses)), "columns": Columns(columns)})


@pytest.mark.processes
def test_what_a_rule_returns_is_a_metric_and_a_column(
    make_rollout: Callable[..., Rollout], tmp_path: Path, others: Path
) -> None:
    rollout = answered(make_rollout, ["Answer: 7", "Answer: 8", "7"], ["math_dapo", "aime_2025", "addition"])
    scores = score(rollout)
    assert scores.data.tolist() == [1.0, -1.0, 1.0]
    means = {measure.name: (measure.total, measure.count) for measure in scores.measures}
    assert means["acc"] == (1.0, 2) and "pred" not in means  # of the rows that have one
    tables = [to_table(rollout), to_table(scores)]
    assert write_rollout(tables, ["score"], tmp_path / "r.parquet").refused == ""
    recorded = pq.read_table(tmp_path / "r.parquet")
    assert recorded["score.acc"].to_pylist() == [1.0, 0.0, None]
    assert recorded["score.pred"].to_pylist() == ["7", "8", None]
    assert not [name for name in recorded.column_names if name.endswith(".extras")]
    assert from_table(Scores, tables[1], "x").data.tolist() == scores.data.tolist()

    kept = take(scores, torch.tensor([2, 0]))
    assert [kept.extras[0], kept.extras[1]] == [scores.extras[2], scores.extras[0]]
    parts = [to_table(take(scores, torch.tensor([0]))), to_table(Scores(torch.tensor([0.5])))]
    assert join_shards(parts, "score").column("value.extras").to_pylist() == [scores.extras[0], None]

    clashing = score(rollout, by=f"{others}:of_verl")
    assert {measure.name: measure.total for measure in clashing.measures}["rule_reward"] == 15.0


@looped(
    "value, extra",
    [
        (True, 1.0),
        (3, 3.0),
        (float("inf"), None),
        (10**400, "1" + "0" * (TEXT_CHARACTERS - 1)),
        (None, None),
        (torch.tensor(2.0), 2.0),
        ([1, 2], "[1, 2]"),
        ("x" * 1_000, "x" * TEXT_CHARACTERS),
    ],
)
def test_extras_are_numbers_or_short_texts(value: object, extra: object) -> None:
    assert extras_of({"score": 1.0, "of it": value}) == {"of_it": extra}


def test_extras_are_bounded() -> None:
    many = extras_of({"score": 1.0, **{f"n{i}" * 90: "x" * 1_000 for i in range(MAX_EXTRAS)}})
    assert sum(len(str(text)) for text in many.values()) == TEXTS_CHARACTERS and max(map(len, many)) == 64
    assert finite("1") is None and single([2]) == 2


class NoNumber(float):
    def __float__(self) -> float:
        raise RuntimeError


class NoText:
    def __str__(self) -> str:
        raise RuntimeError


def test_an_extra_without_a_text_is_named() -> None:
    with pytest.raises(ValueError, match="whose `pred` has no text: RuntimeError"):
        extras_of({"score": 1.0, "pred": NoText()})


def test_a_number_that_a_score_cannot_be_is_not_finite() -> None:
    assert LARGEST == LARGEST_SCORE
    assert [finite(number) for number in (1e300, -(10**400), NoNumber(1), LARGEST)] == [None, None, None, LARGEST]
