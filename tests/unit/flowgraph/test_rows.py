"""Rows: a minibatch is taken from every captured value alike; token columns are trimmed together."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Mask, Record
from flowgraph.errors import LawError
from flowgraph.rows import find, leaves, row_count, take, widest
from flowgraph.values import Context, Group, Lengths, Tokens
from nodes import Columns, Scores
from nodes.values import Temperature


class Part(Record):
    mask: Mask
    lengths: Lengths


class Batch(Record):
    group: Group
    part: Part
    context: Context
    columns: Columns
    temperature: Temperature


LENGTHS = [3, 1, 2]
BATCH = Batch(
    group=Group(torch.tensor([5, 5, 6])),
    part=Part(
        mask=Mask(torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])),
        lengths=Lengths(torch.tensor(LENGTHS)),
    ),
    context=Context(pa.array([[1], [2, 2], [3]], pa.list_(pa.int32()))),
    columns=Columns(pa.table({"answer": ["a", "b", "c"]})),
    temperature=Temperature(0.7),
)


def test_leaves_are_the_parts_of_records_within_records() -> None:
    assert [type(each).__name__ for each in leaves([BATCH, Scores(1)])] == [
        "Group",
        "Mask",
        "Lengths",
        "Context",
        "Columns",
        "Temperature",
        "Scores",
    ]


def test_a_part_is_found_by_its_type() -> None:
    assert find([BATCH], Mask) is BATCH.part.mask
    assert find([BATCH], Tokens) is None


def test_rows_are_counted_on_values_that_have_rows() -> None:
    assert row_count([BATCH]) == 3
    assert row_count([Temperature(1.0)]) == 0
    with pytest.raises(LawError) as raised:
        row_count([BATCH, Scores(torch.ones(2))])
    assert str(raised.value) == "the values of one loss differ in their rows: Scores has 2, Columns has 3"


@given(st.lists(st.integers(0, 2), max_size=6))
def test_any_rows_are_taken_from_every_column_and_tokens_trimmed_to_the_longest(chosen: list[int]) -> None:
    rows = torch.tensor(chosen, dtype=torch.int64)
    width = widest([BATCH], rows)
    taken = take(BATCH, rows, width)
    assert width == max([LENGTHS[row] for row in chosen], default=1)
    assert taken.group.data.tolist() == [[5, 5, 6][row] for row in chosen]
    assert taken.part.lengths.data.tolist() == [LENGTHS[row] for row in chosen]
    assert taken.part.mask.data.tolist() == [BATCH.part.mask.data[row, :width].tolist() for row in chosen]
    assert taken.context.data.to_pylist() == [[[1], [2, 2], [3]][row] for row in chosen]
    assert taken.columns.data.column("answer").to_pylist() == ["abc"[row] for row in chosen]
    assert taken.temperature is BATCH.temperature


def test_without_lengths_nothing_is_trimmed() -> None:
    mask = Mask(torch.ones(2, 5))
    assert widest([mask], torch.tensor([0])) is None
    assert take(mask, torch.tensor([1])).data.shape == (1, 5)
