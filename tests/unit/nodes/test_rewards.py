"""Rewards by hand: where a score stands, which factor a KL has, and how long is too long."""

from __future__ import annotations

import pytest
import torch

from flowgraph.errors import SettingError
from flowgraph.language.values import Lengths, Mask
from nodes.rewards import kl_penalized, overlong_penalty, token_rewards
from nodes.values import KLWeight, Rewards, Scores, TokenKL

NAN = float("nan")


def mask(*rows: list[int]) -> Mask:
    return Mask(torch.tensor(rows, dtype=torch.float32))


def test_a_score_stands_at_the_last_token_that_counts() -> None:
    given = token_rewards(Scores(torch.tensor([1.0, 2.0, NAN])), mask([1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]))
    assert given.data.tolist() == [[0, 0, 1, 0], [0, 0, 0, 2], [0, 0, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.float64])
def test_rewards_are_floating_point_as_their_scores_are(dtype: torch.dtype) -> None:
    given = token_rewards(Scores(torch.tensor([1], dtype=dtype)), mask([1, 1])).data
    assert given.dtype == (dtype if dtype.is_floating_point else torch.float32)
    assert given.tolist() == [[0, 1]]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_no_rows_or_no_tokens_earn_nothing(shape: tuple[int, int]) -> None:
    empty = torch.zeros(shape)
    assert token_rewards(Scores(torch.ones(shape[0])), Mask(empty)).data.shape == shape
    assert kl_penalized(Rewards(empty), TokenKL(empty), Mask(empty)).data.shape == shape


def test_the_factor_of_the_kl_is_what_is_carried_or_else_the_setting() -> None:
    earned, kl = Rewards(torch.tensor([[1.0, NAN, 2.0]])), TokenKL(torch.tensor([[2.0, NAN, -4.0]]))
    for given, factor in (
        (kl_penalized(earned, kl, mask([1, 0, 1])), 0.05),
        (kl_penalized(earned, kl, mask([1, 0, 1]), weight=0.0), 0.0),
        (kl_penalized(earned, kl, mask([1, 0, 1]), weight=0.5, beta=KLWeight(0.25)), 0.25),
        (kl_penalized(earned, kl, mask([1, 0, 1]), weight=0.5, beta=KLWeight(0.0)), 0.0),
    ):
        assert given.data.tolist() == [pytest.approx([1 - 2 * factor, 0, 2 + 4 * factor])]
        assert [(each.name, each.total, each.count) for each in given.measures] == [("kl_weight", factor, 1)]


def test_a_factor_below_0_is_refused() -> None:
    none = torch.zeros(1, 1)
    with pytest.raises(SettingError):
        kl_penalized(Rewards(none), TokenKL(none), mask([1]), weight=-0.1)


def test_the_penalty_grows_over_the_buffer_and_no_more_beyond_the_limit() -> None:
    lengths = Lengths(torch.tensor([0, 6, 7, 8, 10, 11, 50]))
    given = overlong_penalty(Scores(torch.ones(7)), lengths, max_tokens=10, buffer=4, factor=2.0)
    assert given.data.tolist() == [1, 1, 0.5, 0, -1, -1, -1]
    assert [(each.name, each.total, each.count) for each in given.measures] == [("overlong", 5, 7)]


def test_the_whole_of_a_response_may_be_the_buffer() -> None:
    given = overlong_penalty(Scores(torch.tensor([1, 1])), Lengths(torch.tensor([0, 1])), max_tokens=2, buffer=2)
    assert given.data.tolist() == [1, 0.5]


def test_no_rows_are_not_too_long() -> None:
    given = overlong_penalty(Scores(torch.zeros(0)), Lengths(torch.zeros(0)), max_tokens=2, buffer=1)
    assert given.data.shape == (0,)


def test_a_buffer_beyond_the_limit_is_refused() -> None:
    with pytest.raises(SettingError) as raised:
        overlong_penalty(Scores(torch.ones(1)), Lengths(torch.ones(1)), max_tokens=4, buffer=5)
    assert str(raised.value) == "overlong_penalty: buffer=5: no more than max_tokens=4"


@pytest.mark.parametrize("buffer", [0, -1])
def test_no_buffer_is_refused(buffer: int) -> None:
    with pytest.raises(SettingError):
        overlong_penalty(Scores(torch.ones(1)), Lengths(torch.ones(1)), max_tokens=4, buffer=buffer)
