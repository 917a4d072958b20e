"""Whitening by hand: mean and variance over the tokens of the whole batch, and what has no variance."""

from __future__ import annotations

import pytest
import torch

from flowgraph.language.values import Mask
from nodes.values import Advantages, TokenAdvantages
from nodes.whitening import whiten

NAN = float("nan")
HOLES = Mask(torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]))


def test_the_tokens_of_the_batch_have_mean_0_and_variance_1() -> None:
    given = whiten(TokenAdvantages(torch.tensor([[1.0, NAN, 2.0], [6.0, 9.0, NAN]])), HOLES)
    kept = given.data[HOLES.data == 1]
    assert float(kept.mean()) == pytest.approx(0, abs=1e-6) and float(kept.var()) == pytest.approx(1)
    assert given.data[HOLES.data == 0].tolist() == [0, 0]
    assert isinstance(given, TokenAdvantages)


def test_an_advantage_of_a_row_counts_once_for_each_of_its_tokens() -> None:
    mask = Mask(torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]))
    given = whiten(Advantages(torch.tensor([0.0, 4.0])), mask)
    assert given.data.tolist() == [pytest.approx([-0.5] * 3), pytest.approx([1.5, 0, 0])]


def test_the_mean_can_be_kept() -> None:
    values = TokenAdvantages(torch.tensor([[1.0, NAN, 2.0], [6.0, 9.0, NAN]]))
    shifted, kept = whiten(values, HOLES), whiten(values, HOLES, shift_mean=False)
    assert torch.allclose(kept.data, (shifted.data + 4.5) * HOLES.data)


@pytest.mark.parametrize("value", [0.1, 100.1, -7e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_advantages_give_exactly_nothing(value: float, dtype: torch.dtype) -> None:
    equal, seven = Advantages(torch.full((1,), value, dtype=dtype)), Mask(torch.ones(1, 7))
    assert whiten(equal, seven).data.tolist() == [[0.0] * 7]
    assert whiten(equal, seven, shift_mean=False).data.tolist() == (equal.per_token() * seven.data).tolist()


def test_a_single_token_gives_0_or_itself() -> None:
    one = Mask(torch.tensor([[0.0, 1.0]]))
    assert whiten(Advantages(torch.tensor([3.0])), one).data.tolist() == [[0, 0]]
    assert whiten(Advantages(torch.tensor([3.0])), one, shift_mean=False).data.tolist() == [[0, 3]]


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (2, 0), (0, 0)])
def test_without_a_token_there_is_nothing_to_do(shape: tuple[int, int], shift: bool) -> None:
    none = Mask(torch.zeros(shape))
    for advantages in (Advantages(torch.full(shape[:1], NAN)), TokenAdvantages(torch.full(shape, NAN))):
        assert torch.equal(whiten(advantages, none, shift_mean=shift).data, torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_is_kept(dtype: torch.dtype) -> None:
    assert whiten(Advantages(torch.ones(2, dtype=dtype)), HOLES).data.dtype == dtype
