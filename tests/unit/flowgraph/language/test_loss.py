"""A loss is terms: the same total however rows are cut, each under the global count of its own mask."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flowgraph import Aggregation, Loss, Mask
from flowgraph.errors import LawError
from flowgraph.language.loss import Counts, Term

VALUES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
MASK = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])


def total(loss: Loss) -> Tensor:
    return loss.total([term.counts() for term in loss.terms])


@pytest.mark.parametrize(
    ("aggregation", "wanted"),
    [
        (Aggregation.TOKEN_MEAN, (1 + 2 + 4) / 3),
        (Aggregation.SEQUENCE_MEAN, ((1 + 2) / 2 + 4) / 2),
        (Aggregation.SEQUENCE_SUM, ((1 + 2) + 4) / 2),
    ],
)
def test_terms_are_averaged_as_written_by_hand(aggregation: Aggregation, wanted: float) -> None:
    assert total(Loss.of(VALUES, Mask(MASK), aggregation)).item() == pytest.approx(wanted)


@given(
    st.sampled_from(Aggregation),
    st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=6),
    st.lists(st.integers(0, 2), min_size=6, max_size=6),
    st.floats(-3, 3),
)
def test_shares_of_any_cut_add_up_to_the_whole(
    aggregation: Aggregation, masks: list[list[bool]], places: list[int], weight: float
) -> None:
    mask = torch.tensor(masks, dtype=torch.float64)
    values = torch.arange(mask.numel(), dtype=torch.float64).reshape(mask.shape) + 1
    whole = Loss.of(values, Mask(mask), aggregation).times(weight)
    counts = [term.counts() for term in whole.terms]
    parts = [
        torch.tensor([row for row in range(len(mask)) if places[row] == part], dtype=torch.int64) for part in range(3)
    ]
    shares = [Loss([Term(values[rows], mask[rows], aggregation, weight)]).total(counts) for rows in parts]
    assert torch.allclose(torch.stack(shares).sum(), whole.total(counts))


def test_two_terms_keep_their_own_masks_weights_and_aggregations() -> None:
    first = Loss.of(VALUES, Mask(MASK))
    second = Loss.of(VALUES, Mask(torch.ones(3, 3)), Aggregation.SEQUENCE_MEAN)
    both = first + 0.5 * second - first
    assert [term.weight for term in both.terms] == [1.0, 0.5, -1.0]
    assert total(both).item() == pytest.approx(0.5 * 5.0)


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_a_mask_that_keeps_nothing_gives_zero_and_a_zero_gradient(aggregation: Aggregation) -> None:
    values = VALUES.clone().requires_grad_()
    loss = total(Loss.of(values, Mask(torch.zeros(3, 3)), aggregation))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0.0
    assert values.grad is not None
    assert values.grad.abs().sum().item() == 0.0


def test_what_the_mask_leaves_out_may_be_nan() -> None:
    values = VALUES.masked_fill(MASK == 0, float("nan")).requires_grad_()
    loss = total(Loss.of(values, Mask(MASK)))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(7 / 3)
    assert values.grad is not None
    assert values.grad.isfinite().all()


def test_counts_are_of_tokens_and_of_rows_that_keep_any() -> None:
    assert Term(None, MASK, Aggregation.TOKEN_MEAN).counts() == Counts(3.0, 2.0)


def test_terms_of_another_shape_than_their_mask_are_refused() -> None:
    with pytest.raises(LawError) as raised:
        total(Loss.of(torch.ones(3), Mask(MASK)))
    assert str(raised.value) == (
        "a loss has terms of shape [3] under a mask of [3, 3]\n"
        "  hint: both are [rows, tokens]; a number for each row is [rows, 1] to broadcast over tokens"
    )
