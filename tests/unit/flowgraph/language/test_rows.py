"""Rows: a minibatch is taken from every captured value alike; token columns are trimmed together."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Mask, Record
from flowgraph.errors import LawError
from flowgraph.language.rows import find, leaf_paths, leaves, narrowed, row_count, take, widest, without_gradient
from flowgraph.language.values import Context, Group, Lengths, Tokens
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


def test_a_narrowed_record_holds_some_parts_and_refuses_the_others() -> None:
    narrow = narrowed(BATCH, ["group", "part.mask"])
    assert type(narrow) is Batch and narrow.narrowed and not BATCH.narrowed
    assert (list(narrow.parts), list(narrow.part.parts)) == (["group", "part"], ["mask"])
    assert narrow.group is BATCH.group and narrow.part.mask is BATCH.part.mask
    with pytest.raises(LawError) as caught:
        _ = narrow.context
    assert str(caught.value) == (
        "it reads the part `context` of Batch, but declares group, part\n"
        '  hint: add "context" to the Parts(…) of its port'
    )
    with pytest.raises(LawError, match="it reads the part `lengths` of Part, but declares mask"):
        _ = narrow.part.lengths
    with pytest.raises(AttributeError, match="Batch has no part `nothing`"):
        _ = narrow.nothing  # type: ignore[attr-defined]


def test_rows_of_a_narrowed_record_are_narrow() -> None:
    taken = take(without_gradient(narrowed(BATCH, ["group", "part"])), torch.tensor([2]))
    assert (list(taken.parts), taken.group.data.tolist()) == (["group", "part"], [6])
    assert [type(each).__name__ for each in leaves([taken])] == ["Group", "Mask", "Lengths"]


def test_parts_are_named_by_their_paths() -> None:
    assert [path for path, _ in leaf_paths(Batch)] == [
        "group",
        "part.mask",
        "part.lengths",
        "context",
        "columns",
        "temperature",
    ]
    assert list(leaf_paths(Mask)) == [("", Mask)]
