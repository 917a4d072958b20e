"""Rows cut, shared out, padded and written: nothing is lost, doubled or moved, whatever their number and lengths."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pyarrow.parquet as pq
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Key
from flowgraph.language.rows import leaves, row_count, take, widest
from flowgraph.runtime.batch import from_table, to_table
from nodes import Rollout
from nodes.training import micro_batches, minibatches

Make = Callable[..., Rollout]

lengths = st.lists(st.integers(0, 12), min_size=1, max_size=12)
groups = st.lists(st.integers(-3, 8), min_size=1, max_size=40).map(torch.tensor)


@given(groups, st.integers(0, 12), st.integers(0, 3), st.integers(0, 2))
def test_minibatches_hold_every_row_once_and_groups_whole(
    groups: torch.Tensor, size: int, seed: int, epoch: int
) -> None:
    parts = minibatches(groups, torch.unique(groups), size, Key(seed), epoch)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(groups)))
    held = [set(groups[rows].tolist()) for rows in parts]
    count = len(set(groups.tolist()))
    assert sum(map(len, held)) == count
    assert max(map(len, held)) <= (size or count) and max(map(len, held)) - min(map(len, held)) <= 1


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 200), st.data())
def test_micro_batches_hold_every_row_once_and_keep_the_budget(
    tokens: list[int], budget: int, data: st.DataObject
) -> None:
    counts = torch.tensor(tokens)
    rows = torch.tensor(data.draw(st.lists(st.integers(0, len(tokens) - 1), unique=True)), dtype=torch.int64)
    parts = micro_batches(counts, rows, budget)
    assert sorted(torch.cat(parts).tolist()) == sorted(rows.tolist())
    assert all(len(part) <= 1 or len(part) * int(counts[part].max()) <= budget for part in parts)
    assert all(len(part) for part in parts) or parts[0].tolist() == rows.tolist() == []


@given(lengths, st.integers(0, 2**31 - 1), st.sampled_from([0.0, 0.7, 1.0]))
def test_a_rollout_survives_a_file(make_rollout: Make, lengths: list[int], seed: int, temperature: float) -> None:
    contexts = np.random.default_rng(seed).integers(0, 9, len(lengths)).tolist()
    rollout, file = make_rollout(lengths, contexts, temperature=temperature, seed=seed), io.BytesIO()
    pq.write_table(to_table(rollout), file, row_group_size=3)
    back = from_table(Rollout, pq.read_table(io.BytesIO(file.getvalue())), "file")
    for one, two in zip(leaves([rollout]), leaves([back]), strict=True):
        assert type(one) is type(two)
        equal = torch.equal if isinstance(one.data, torch.Tensor) else lambda a, b: a == b
        same = (
            one.data.to_pylist() == two.data.to_pylist()
            if hasattr(one.data, "to_pylist")
            else equal(one.data, two.data)
        )
        assert same, type(one).__name__


@given(lengths, st.data())
def test_rows_are_taken_together_and_cut_no_shorter_than_their_longest(
    make_rollout: Make, lengths: list[int], data: st.DataObject
) -> None:
    rollout = make_rollout(lengths)
    picked = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=6))
    rows = torch.tensor(picked, dtype=torch.int64)
    part = take(rollout, rows, widest([rollout], rows))
    assert row_count([part]) == len(picked)
    assert part.group.data.tolist() == picked and part.text.data.to_pylist() == [f"response {row}" for row in picked]
    assert part.columns.data["place"].to_pylist() == picked
    for place, row in enumerate(picked):
        assert part.tokens.data[place, : lengths[row]].tolist() == rollout.tokens.data[row, : lengths[row]].tolist()
        assert part.context.data[place].as_py() == rollout.context.data[row].as_py()
    assert part.tokens.data.shape[1] <= max([1, *(lengths[row] for row in picked)])
