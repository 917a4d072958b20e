"""The seeded tasks: right answers, no overlap, and the same rows for the same seed."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from flowgraph.errors import DataError
from nodes.data.checks import check_rows
from nodes.data.tasks import KINDS, Kind, addition, digits


def asked(table: pa.Table) -> list[str]:
    return [messages[0]["content"] for messages in table["prompt"].to_pylist()]


def truths(table: pa.Table) -> list[str]:
    return [each["ground_truth"] for each in table["reward_model"].to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
def test_digits_ask_every_combination_once_and_hold_out_a_fifth(kind: Kind) -> None:
    train, held_out = digits(kind)
    check_rows(train, file="train", where=str)
    check_rows(held_out, file="held out", where=str)
    assert (train.num_rows, held_out.num_rows) == (800, 200)
    assert sorted(asked(train) + asked(held_out)) == [f"{number:03d}" for number in range(1000)]


@pytest.mark.parametrize(("kind", "truth"), [("copy", "374"), ("max", "7"), ("sort", "347"), ("reverse", "473")])
def test_each_kind_has_its_ground_truth(kind: Kind, truth: str) -> None:
    answers: dict[str, str] = {}
    for table in digits(kind):
        answers |= dict(zip(asked(table), truths(table), strict=True))
    assert answers["374"] == truth


def test_a_row_says_where_it_stands() -> None:
    _, held_out = digits("sort")
    assert held_out["extra_info"].to_pylist() == [{"split": "test", "index": index} for index in range(200)]
    assert set(held_out["data_source"].to_pylist()) == {"digits"}
    assert set(held_out["ability"].to_pylist()) == {"sort"}


def test_sums_are_right_and_none_held_out_is_a_turned_round_one_of_train() -> None:
    train, held_out = addition()
    assert (train.num_rows, held_out.num_rows) == (129, 15)
    pairs = {}
    for name, table in (("train", train), ("held out", held_out)):
        words = [text.removesuffix("? Reply with the number only.").split() for text in asked(table)]
        assert all(each[:2] == ["What", "is"] and each[3] == "+" for each in words)
        numbers = [(int(each[2]), int(each[4])) for each in words]
        assert [str(x + y) for x, y in numbers] == truths(table)
        assert len(set(numbers)) == table.num_rows
        pairs[name] = {tuple(sorted(each)) for each in numbers}
    assert not pairs["train"] & pairs["held out"]


@pytest.mark.parametrize("make", [digits, addition])
def test_a_seed_gives_the_same_split_and_another_seed_another(make: Callable[..., tuple[pa.Table, pa.Table]]) -> None:
    assert make(seed=1) == make(seed=1)
    assert make(seed=1) != make(seed=2)


def test_other_lengths_of_digits() -> None:
    train, held_out = digits("copy", length=2)
    assert (train.num_rows, held_out.num_rows) == (80, 20)
    with pytest.raises(DataError) as caught:
        digits("copy", length=9)
    assert str(caught.value) == "digits: length=9, but it may be 1 to 4"


def test_an_addition_with_too_few_pairs_is_refused() -> None:
    assert [table.num_rows for table in addition(largest=4)] == [14, 2]
    with pytest.raises(DataError) as caught:
        addition(largest=3)
    assert str(caught.value) == "addition: largest=3, but it may be 4 to 1000"
