"""Groups are shared out over ranks by the work that their rows are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.lowering.program import Run
from flowgraph.runtime.row_identity import (
    LINEAR_TOKENS,
    PLACE,
    Guide,
    Shares,
    balance_work,
    balanced_shares,
    join_shards,
    rows_of_rank,
    split_guide,
)
from nodes.values import Prompts, Rollout, Scores

GUIDE = Guide("rollout", "context", "lengths")
TYPES = {"prompts": Prompts, "rollout": Rollout, "scores": Scores}


def table(groups: Sequence[int], contexts: Sequence[int], lengths: Sequence[int]) -> pa.Table:
    """Return rows of these groups, with contexts and responses of these lengths."""
    lists = pa.array([[0] * size for size in contexts], pa.list_(pa.int32()))
    return pa.table({"context": lists, "lengths": [*lengths], "#group": pa.array(groups, pa.int64())})


def test_a_task_is_shared_out_by_the_responses_that_it_reads() -> None:
    assert split_guide(Run(("a",), "all", ("scores", "prompts", "rollout")), TYPES) == GUIDE
    assert split_guide(Run(("a",), "all", ("scores", "prompts")), TYPES) is None


@pytest.mark.parametrize(("parts", "told"), [(("context", "lengths"), True), (("mask", "lengths"), False)])
def test_responses_of_which_a_task_does_not_read_the_lengths_tell_no_work(parts: tuple[str, ...], told: bool) -> None:
    task = Run(("a",), "all", ("rollout",), parts=(("rollout", parts),))
    assert (split_guide(task, TYPES) is not None) is told


def test_one_long_response_weighs_as_much_as_many_short_ones() -> None:
    rows = table([3, 1, 2, 7, 7], [4, 4, 4, 4, 4], [9000, 10, 10, 10, 20])
    shares = balanced_shares(rows, GUIDE, 2)
    assert dict(zip(shares.groups.tolist(), shares.ranks.tolist(), strict=True)) == {3: 0, 1: 1, 2: 1, 7: 1}


def test_the_square_of_the_tokens_counts() -> None:
    half = LINEAR_TOKENS
    rows = table([0, 1, 2, 3], [0, 0, 0, 0], [2 * half, half, half, half])
    # Twice the length is three times the work: 2 n (a + 2 n) against n (a + n), at n = a.
    assert balanced_shares(rows, GUIDE, 2).ranks.tolist() == [0, 1, 1, 1]


@given(st.lists(st.floats(0, 1e9), max_size=40), st.integers(1, 9))
def test_the_busiest_rank_has_at_most_four_thirds_of_the_best(works: list[float], count: int) -> None:
    ranks = balance_work(works, count)
    loads = [sum(work for work, rank in zip(works, ranks, strict=True) if rank == each) for each in range(count)]
    ordered = sorted(works, reverse=True)
    two = ordered[count - 1] + ordered[count] if len(works) > count else 0.0  # some rank has two of the largest
    least = max([sum(works) / count, *ordered[:1], two])
    assert max(loads) <= least * 4 / 3 + 1e-6 * (1 + least)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.integers(1, 5), st.data())
def test_each_group_is_dealt_to_one_rank_whole_and_put_back_in_its_place(
    groups: list[int], count: int, data: st.DataObject
) -> None:
    size = st.lists(st.integers(0, 50), min_size=len(groups), max_size=len(groups))
    rows = table(groups, data.draw(size), data.draw(size)).append_column("row", pa.array(range(len(groups))))
    shares = balanced_shares(rows, GUIDE, count)
    parts = [rows_of_rank(rows, rank, count, "rows", shares) for rank in range(count)]
    if count > 1:
        assert all(PLACE in part.column_names for part in parts)
    held = [set(part.column("#group").to_pylist()) for part in parts]
    assert sum(map(len, held)) == len(set(groups))
    assert join_shards(parts, "rows").column("row").to_pylist() == [*range(len(groups))]


def test_groups_that_the_guide_does_not_know_go_by_number() -> None:
    shares = Shares(np.array([1, 2]), np.array([1, 1]))
    found = np.array([1, 2, 5, 6, 9])
    assert [sorted(shares.of(found, rank, 2).tolist()) for rank in range(2)] == [[5, 6], [1, 2, 9]]
