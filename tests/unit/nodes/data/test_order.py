"""The order of prompts: permutations, a pure function of the step, no row twice in a batch."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.errors import DataError
from nodes.data.order import StepRows, batch_indices, epoch_order, permutation

SIZES = st.integers(1, 40).flatmap(lambda count: st.tuples(st.integers(1, count), st.just(count)))
SEEDS = st.integers(-(2**63), 2**63)


def stream(seed: int, steps: int, batch: int, count: int) -> list[int]:
    each = [batch_indices(seed=seed, step=step, batch=batch, count=count) for step in range(steps)]
    return [int(row) for row in np.concatenate(each)]


@given(seed=SEEDS, sizes=SIZES)
def test_every_epoch_is_a_permutation_and_nothing_is_left_out(seed: int, sizes: tuple[int, int]) -> None:
    batch, count = sizes
    rows = stream(seed, 4 * count, batch, count)
    epochs = [rows[start : start + count] for start in range(0, len(rows), count)]
    assert len(epochs) == 4 * batch
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)


@given(seed=SEEDS, sizes=SIZES)
def test_no_batch_holds_a_row_twice(seed: int, sizes: tuple[int, int]) -> None:
    batch, count = sizes
    for step in range(3 * count):
        rows = batch_indices(seed=seed, step=step, batch=batch, count=count)
        assert rows.dtype == np.int64
        assert rows.shape == (batch,)
        assert len(set(rows.tolist())) == batch


@given(seed=SEEDS, sizes=SIZES, steps=st.lists(st.integers(0, 120), min_size=1, max_size=5))
def test_a_step_reads_the_same_rows_whatever_was_read_before(
    seed: int, sizes: tuple[int, int], steps: list[int]
) -> None:
    batch, count = sizes
    permutation.cache_clear()
    alone = [batch_indices(seed=seed, step=step, batch=batch, count=count).tolist() for step in steps]
    in_order = {step: batch_indices(seed=seed, step=step, batch=batch, count=count) for step in range(max(steps) + 1)}
    assert alone == [in_order[step].tolist() for step in steps]


@given(seed=SEEDS, sizes=SIZES, epoch=st.integers(0, 60))
def test_the_shortcut_over_epochs_gives_what_going_from_the_first_gives(
    seed: int, sizes: tuple[int, int], epoch: int
) -> None:
    batch, count = sizes
    order = permutation(seed, 0, count).tolist()
    for each in range(1, epoch + 1):
        shared = each * count % batch
        held, fresh = set(order[count - shared :]), permutation(seed, each, count).tolist()
        head = [row for row in fresh if row not in held][: batch - shared] if shared else []
        order = head + [row for row in fresh if row not in head]
    assert epoch_order(seed=seed, epoch=epoch, batch=batch, count=count).tolist() == order


@given(
    seed=SEEDS, whole=st.integers(0, 6), more=st.lists(st.booleans(), min_size=1, max_size=6), spare=st.integers(0, 9)
)
def test_batches_of_changing_sizes_have_no_row_twice_and_leave_nothing_out(
    seed: int, whole: int, more: list[bool], spare: int
) -> None:
    rows_of = StepRows(whole, (0, *accumulate(map(int, more))))
    if not rows_of.most:
        return
    count = rows_of.most + spare
    steps = [batch_indices(seed=seed, step=step, batch=rows_of, count=count).tolist() for step in range(8 * count)]
    assert [len(rows) for rows in steps] == [whole + more[step % len(more)] for step in range(len(steps))]
    assert all(len(set(rows)) == len(rows) for rows in steps)
    rows = [row for step in steps for row in step]
    epochs = [rows[start : start + count] for start in range(0, len(rows) - count, count)]
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
    for step in (7 * count, 3 * count + 1):
        assert batch_indices(seed=seed, step=step, batch=rows_of, count=count).tolist() == steps[step]


def test_rows_that_a_shared_batch_passes_over_begin_the_next() -> None:
    batch, count = 3, 4
    for seed in range(50):
        first, second, third = (
            batch_indices(seed=seed, step=step, batch=batch, count=count).tolist() for step in range(3)
        )
        left = (set(range(count)) - set(first)).pop()
        assert second[0] == left
        raw = permutation(seed, 1, count).tolist()
        if raw.index(left) < 2:
            assert third[0] == left


def test_epochs_and_seeds_differ() -> None:
    orders = [permutation(seed, stream, 100).tolist() for seed in (0, 1, -1) for stream in (0, 1)]
    assert all(one != two for one, two in pairwise(sorted(orders)))


def test_the_order_is_the_same_on_every_machine_and_version() -> None:
    assert stream(seed=0, steps=4, batch=3, count=8) == [0, 2, 1, 5, 4, 3, 6, 7, 5, 3, 7, 2]


def test_a_batch_can_be_changed_without_changing_the_order() -> None:
    batch_indices(seed=0, step=0, batch=4, count=4)[:] = 0
    assert sorted(batch_indices(seed=0, step=0, batch=4, count=4).tolist()) == [0, 1, 2, 3]


def test_a_batch_larger_than_the_data_set_is_refused_with_both_numbers() -> None:
    with pytest.raises(DataError) as caught:
        batch_indices(seed=0, step=0, batch=32, count=10)
    assert str(caught.value) == ("a step reads 32 prompts, but the data set has 10\n  hint: read at most 10 in a step")


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(DataError) as caught:
        batch_indices(seed=0, step=0, batch=0, count=10)
    assert str(caught.value) == "a step: batch=0, but it may be 1 or more"


def test_a_long_run_on_a_large_set_stays_quick_to_resume() -> None:
    rows = batch_indices(seed=0, step=10**9, batch=512, count=1023)
    assert len(set(rows.tolist())) == 512
