"""Rows of a data set as prompts: which ones is a pure function of seed and step."""

from __future__ import annotations

from itertools import chain

import pyarrow as pa
import pytest

from flowgraph.errors import DataError
from nodes.data.order import batch_indices
from nodes.data.source import PromptSource, prompts_at


def test_prompts_are_the_rows_asked_for_and_named_by_their_index(uneven_rows: pa.Table) -> None:
    prompts = prompts_at(uneven_rows, [9, 0, 9])
    assert prompts.group.data.tolist() == [9, 0, 9]
    assert [row[0]["content"] for row in prompts.columns.data["prompt"].to_pylist()] == [
        "10-20-30=?",
        "7",
        "10-20-30=?",
    ]
    assert prompts.columns.data.schema == uneven_rows.schema
    assert prompts_at(uneven_rows, []).columns.data.num_rows == 0


def test_a_step_reads_the_same_rows_whenever_it_is_asked_and_an_epoch_reads_every_row_once(
    uneven_rows: pa.Table,
) -> None:
    source = PromptSource(uneven_rows, 4, seed=3)
    steps = [source.batch(step).group.data.tolist() for step in range(6)]
    assert steps[4] == source.batch(4).group.data.tolist()
    assert steps[4] == batch_indices(seed=3, step=4, batch=4, count=12).tolist()
    assert sorted(chain(*steps[:3])) == sorted(chain(*steps[3:])) == list(range(12))
    assert steps != [PromptSource(uneven_rows, 4, seed=4).batch(step).group.data.tolist() for step in range(6)]


def test_a_step_cannot_read_more_rows_than_there_are(uneven_rows: pa.Table) -> None:
    with pytest.raises(DataError, match="a step reads 13 prompts, but the data set has 12"):
        PromptSource(uneven_rows, 13).batch(0)
