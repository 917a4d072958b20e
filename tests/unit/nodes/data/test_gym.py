"""reasoning-gym tasks as rows. Skipped where the package is not installed."""

from __future__ import annotations

import json
import sys

import pyarrow as pa
import pytest

from flowgraph.errors import DataError
from nodes.data.checks import check_rows
from nodes.data.gym import reasoning_gym_rows


def questions(table: pa.Table) -> list[str]:
    return [messages[0]["content"] for messages in table["prompt"].to_pylist()]


class TestWithThePackage:
    @pytest.fixture(autouse=True)
    def package(self) -> None:
        pytest.importorskip("reasoning_gym")

    @pytest.mark.parametrize("name", ["leg_counting", "tower_of_hanoi", "coin_flip"])
    def test_no_question_comes_twice_and_none_is_in_both(self, name: str) -> None:
        train, held_out = reasoning_gym_rows(name, size=100, held_out=20)
        check_rows(train, file="train", where=str)
        check_rows(held_out, file="held out", where=str)
        every = questions(train) + questions(held_out)
        assert held_out.num_rows
        assert len(set(every)) == len(every)

    def test_a_row_carries_its_entry_for_the_scorer_of_its_task(self) -> None:
        import reasoning_gym

        _, held_out = reasoning_gym_rows("leg_counting", size=10, held_out=2)
        row = held_out.to_pylist()[1]
        entry = json.loads(row["extra_info"]["entry"])
        assert row["data_source"] == "reasoning_gym/leg_counting"
        assert row["prompt"] == [{"role": "user", "content": entry["question"]}]
        assert row["reward_model"]["ground_truth"] == entry["answer"]
        assert {key: row["extra_info"][key] for key in ("dataset", "split", "index")} == {
            "dataset": "leg_counting",
            "split": "test",
            "index": 1,
        }
        assert reasoning_gym.get_score_answer_fn("leg_counting")(entry["answer"], entry) == 1.0

    def test_a_task_without_an_answer_of_its_own_has_null(self) -> None:
        train, _ = reasoning_gym_rows("graph_color", size=3, held_out=1)
        assert train["reward_model"].to_pylist()[0] == {"style": "rule", "ground_truth": None}

    def test_a_seed_gives_the_same_rows_and_the_next_seed_others(self) -> None:
        one, again, other = (reasoning_gym_rows("basic_arithmetic", size=20, held_out=4, seed=s) for s in (1, 1, 2))
        assert one == again
        assert not set(questions(one[0])) & set(questions(other[0]))

    def test_an_unknown_task_names_the_nearest(self) -> None:
        with pytest.raises(DataError) as caught:
            reasoning_gym_rows("leg_count")
        assert str(caught.value) == "unknown reasoning_gym task `leg_count`\n  hint: did you mean `leg_counting`?"

    def test_a_task_that_refuses_is_quoted(self) -> None:
        with pytest.raises(DataError) as caught:
            reasoning_gym_rows("composite")
        assert str(caught.value) == (
            "reasoning_gym/composite: the task returns no questions\n    Must specify at least one dataset"
        )


def test_without_the_package_it_says_which_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(DataError) as caught:
        reasoning_gym_rows("leg_counting")
    assert str(caught.value) == (
        "reasoning_gym/leg_counting: needs the package reasoning-gym\n  hint: pip install reasoning-gym"
    )
